//! What RabbitMQ replies, by what can be done about it.

use crate::destination::parts::Failure;

/// Reply codes of AMQP (<https://www.rabbitmq.com/amqp-0-9-1-reference#constants>).
const CONNECTION_FORCED: u16 = 320;
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

impl Failure {
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
            ACCESS_REFUSED => Self::Unauthorized(format!(
                "{text} (docs/rabbitmq.md lists what walpost's user needs to be allowed)"
            )),
            NOT_ALLOWED => Self::Unauthorized(format!(
                "{text} (correct the virtual host in rabbitmq.url, or allow walpost's user what \
                 docs/rabbitmq.md lists)"
            )),
            NOT_FOUND => Self::Missing(format!(
                "{text} (declare it, or correct rabbitmq.exchange and the vhost in rabbitmq.url)"
            )),
            PRECONDITION_FAILED => match max_size(&text) {
                Some(max) => Self::TooLarge { max, reason: text },
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
