//! Why RabbitMQ cannot be used, by what can be done about it.

use crate::destination::parts::link::Failing;
use crate::sink::{Condition, Fault};

/// Why RabbitMQ cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// The broker does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The broker rejects the login.
    #[error("{0}")]
    Unauthenticated(String),
    /// The user lacks a right.
    #[error("{0}")]
    Unauthorized(String),
    /// The exchange does not exist.
    #[error("{0}")]
    Missing(String),
    /// The broker answers, and cannot take messages now.
    #[error("{0}")]
    Unusable(String),
    /// The broker does not accept a payload of more bytes than `max`.
    #[error("{text}")]
    TooLarge {
        /// What it accepts.
        max: u64,
        /// The broker's answer.
        text: String,
    },
}

/// Reply codes of AMQP (<https://www.rabbitmq.com/amqp-0-9-1-reference#constants>).
const CONNECTION_FORCED: u16 = 320;
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

impl Failing for Failure {
    fn condition(&self) -> Option<Condition> {
        Some(match self.clone() {
            Self::Unreachable(reason) => Condition::Unreachable(reason),
            Self::Unauthenticated(reason) => Condition::Unauthenticated(reason),
            Self::Unauthorized(reason)
            | Self::Missing(reason)
            | Self::Unusable(reason)
            | Self::TooLarge { text: reason, .. } => {
                Condition::Stalled { reason, fault: Fault::OutOfReach }
            }
        })
    }
}

impl Failure {
    /// The label of the publish-error metric.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Unauthenticated(_) => "unauthenticated",
            Self::Unauthorized(_) => "unauthorized",
            Self::Missing(_) => "missing",
            Self::Unusable(_) => "unusable",
            Self::TooLarge { .. } => "too_large",
        }
    }

    /// The broker has closed the channel, or the connection, with this reply.
    pub(super) fn of_close(code: u16, text: &str) -> Self {
        let text = crate::excerpt::excerpt(text);
        match code {
            ACCESS_REFUSED if text.contains("ACCESS_REFUSED - Login") => {
                Self::Unauthenticated(text)
            }
            NOT_ALLOWED if text.contains("not found") => Self::Missing(format!(
                "{text} (create the virtual host, or correct it in rabbitmq.url)"
            )),
            NOT_ALLOWED if text.contains("limit (") => {
                Self::Unusable(format!("{text} (raise the limit, or close other connections)"))
            }
            ACCESS_REFUSED | NOT_ALLOWED => Self::Unauthorized(format!(
                "{text} (docs/rabbitmq.md lists what walpost's user needs to be allowed)"
            )),
            NOT_FOUND => Self::Missing(format!(
                "{text} (declare it, or correct rabbitmq.exchange and the vhost in rabbitmq.url)"
            )),
            PRECONDITION_FAILED => match max_size(&text) {
                Some(max) => Self::TooLarge { max, text },
                None => Self::Unusable(text),
            },
            CONNECTION_FORCED => Self::Unreachable(text),
            _ => Self::Unusable(format!("{text} (reply code {code})")),
        }
    }
}

/// The limit in the broker's answer to a message that is too large.
fn max_size(text: &str) -> Option<u64> {
    let (_, max) = text.split_once("message size ")?.1.rsplit_once("max size ")?;
    max.split(|sign: char| !sign.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_told_apart_by_their_codes() {
        let login = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.";
        assert_eq!(Failure::of_close(403, login).code(), "unauthenticated");
        for (code, text, expected) in [
            (
                403,
                "ACCESS_REFUSED - write access to exchange 'o' in vhost '/' refused",
                "unauthorized",
            ),
            (530, "NOT_ALLOWED - vhost eu not found", "missing"),
            (530, "NOT_ALLOWED - access to vhost 'eu' refused for user 'w'", "unauthorized"),
            (
                530,
                "NOT_ALLOWED - access to vhost 'eu' refused for user 'w': connection limit (5) is reached",
                "unusable",
            ),
            (404, "NOT_FOUND - no exchange 'o' in vhost '/'", "missing"),
            (320, "CONNECTION_FORCED - broker forced connection closure", "unreachable"),
            (406, "PRECONDITION_FAILED - x", "unusable"),
            (541, "INTERNAL_ERROR", "unusable"),
        ] {
            let failure = Failure::of_close(code, text);
            assert_eq!(failure.code(), expected, "{text}");
            assert!(failure.to_string().contains(text), "{failure}");
        }
    }

    #[test]
    fn size_that_the_broker_accepts_is_in_its_answer() {
        for text in [
            "PRECONDITION_FAILED - message size 7000 is larger than configured max size 5000",
            "PRECONDITION_FAILED - message size 7000 is larger than max size 5000",
        ] {
            let failure = Failure::of_close(406, text);
            assert!(matches!(failure, Failure::TooLarge { max: 5000, .. }), "{failure:?}");
        }
    }
}
