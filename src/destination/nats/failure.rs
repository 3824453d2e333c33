//! What NATS answers, by what can be done about it.

use async_nats::{ConnectError, ConnectErrorKind, RequestError, RequestErrorKind};
use serde::Deserialize;

use crate::destination::parts::Failure;

/// Codes of JetStream's errors
/// (<https://github.com/nats-io/nats-server/blob/main/server/errors.json>).
pub(super) const STREAM_NOT_FOUND: u32 = 10059;
pub(super) const MESSAGE_NOT_FOUND: u32 = 10037;
const WRONG_LAST_SEQUENCE: u32 = 10071;
const WRONG_LAST_SEQUENCE_CONSTANT: u32 = 10164;
const WRONG_LAST_ID: u32 = 10070;
const OTHER_STREAM: u32 = 10060;
const NOT_ENABLED: u32 = 10076;
const NOT_ENABLED_FOR_ACCOUNT: u32 = 10039;
const TOO_LARGE: u32 = 10054;
const STORE_FAILED: u32 = 10077;
const HEADERS_TOO_LARGE: u32 = 10097;
const ACCOUNT_RESOURCES: u32 = 10002;
const SEALED: u32 = 10109;

/// The lowest error code that is the server's fault, as in HTTP.
const OF_SERVER: u32 = 500;

/// An error of JetStream's, as its API and its acknowledgements have it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ApiError {
    #[serde(default)]
    code: u32,
    #[serde(default)]
    pub(super) err_code: u32,
    #[serde(default)]
    description: String,
}

impl ApiError {
    /// Whether the stream, or the key, ends elsewhere than expected.
    pub(super) fn is_wrong_last(&self) -> bool {
        matches!(self.err_code, WRONG_LAST_SEQUENCE | WRONG_LAST_SEQUENCE_CONSTANT | WRONG_LAST_ID)
    }

    /// Why the answer to a message may be because of it, and whether that is known; `None`: the stream
    /// or the server is at fault.
    pub(super) fn of_message(&self) -> Option<(String, bool)> {
        let is_of_server = self.is_wrong_last()
            || self.code >= OF_SERVER
            || matches!(
                self.err_code,
                OTHER_STREAM
                    | NOT_ENABLED
                    | NOT_ENABLED_FOR_ACCOUNT
                    | TOO_LARGE
                    | STORE_FAILED
                    | ACCOUNT_RESOURCES
                    | SEALED
                    | STREAM_NOT_FOUND
            );
        let Self { err_code, description, .. } = self;
        let reason = || format!("{description} (JetStream error {err_code})");
        (!is_of_server).then(|| (reason(), *err_code == HEADERS_TOO_LARGE))
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let is_gap = error.is_wrong_last();
        let ApiError { err_code, description, .. } = error;
        let with = |fix: &str| Self::Unusable(format!("{description} ({fix})"));
        match err_code {
            _ if is_gap => Self::Gap(description),
            OTHER_STREAM => Self::Unsupported(format!(
                "{description}: the subject belongs to another stream than nats.stream; let only \
                 that stream have it"
            )),
            NOT_ENABLED | NOT_ENABLED_FOR_ACCOUNT => {
                with("enable JetStream for the server and for the account of walpost's user")
            }
            TOO_LARGE => with("the stream's max_msg_size was lowered: it is read again now"),
            STORE_FAILED => with(
                "see to the stream's limits (max_msgs, max_bytes, max_msgs_per_subject) and the disk \
                 of the servers",
            ),
            _ => Self::Unusable(format!("{description} (JetStream error {err_code})")),
        }
    }
}

impl Failure {
    /// The failure in an error that a server has sent instead of an answer.
    pub(super) fn of_server(text: &str) -> Self {
        if let Some(subject) = denied(text) {
            return Self::Denied(subject.to_owned());
        }
        let lower = text.to_ascii_lowercase();
        if lower.contains("permissions violation") {
            Self::Unauthorized(format!(
                "{text} (docs/nats.md lists what walpost's user needs to be allowed)"
            ))
        } else if lower.contains("authorization") || lower.contains("authentication") {
            Self::Unauthenticated(text.to_owned())
        } else {
            Self::Unreachable(text.to_owned())
        }
    }

    /// The login or the connection has failed.
    pub(super) fn of_connect(error: &ConnectError, address: &str) -> Self {
        let text = format!("{address}: {error}");
        match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                Self::Unauthenticated(text)
            }
            ConnectErrorKind::Tls => Self::Unreachable(format!("TLS to {text}")),
            ConnectErrorKind::Io => match Self::of_server(&text) {
                authentication @ Self::Unauthenticated(_) => authentication,
                _ => Self::Unreachable(text),
            },
            ConnectErrorKind::ServerParse
            | ConnectErrorKind::Dns
            | ConnectErrorKind::TimedOut
            | ConnectErrorKind::MaxReconnects => Self::Unreachable(text),
        }
    }

    /// A request was not answered.
    pub(super) fn of_request(error: &RequestError, subject: &str) -> Self {
        match error.kind() {
            RequestErrorKind::NoResponders => Self::Unusable(no_responders(subject)),
            _ => Self::Unreachable(format!("the request {subject} was not answered: {error}")),
        }
    }
}

/// The subject that a server does not let the user publish to, if that is what it says: a protocol of
/// its own has no code for it. Subjects of NATS itself are none of events.
fn denied(text: &str) -> Option<&str> {
    const BEGINNING: &str = "permissions violation for publish to \"";
    let lower = text.to_ascii_lowercase();
    let start = lower.find(BEGINNING)? + BEGINNING.len();
    let subject = text.get(start..)?.split('"').next()?;
    (!subject.starts_with('$')).then_some(subject)
}

/// Nobody takes messages of this subject.
pub(super) fn no_responders(subject: &str) -> String {
    format!(
        "nothing answers on {subject}: JetStream is not enabled, or the stream has no leader; see to \
         the servers"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(err_code: u32, description: &str) -> Failure {
        Failure::from(ApiError { code: 400, err_code, description: description.to_owned() })
    }

    #[test]
    fn errors_are_told_apart_by_their_codes() {
        assert!(matches!(error(10071, "wrong last sequence: 7"), Failure::Gap(_)));
        assert!(matches!(error(10060, "expected stream does not match"), Failure::Unsupported(_)));
        for (code, part) in
            [(10077, "max_bytes"), (10039, "enable JetStream"), (10008, "JetStream error 10008")]
        {
            let failure = error(code, "x");
            assert!(matches!(failure, Failure::Unusable(_)), "{code}: {failure:?}");
            assert!(failure.to_string().contains(part), "{failure}");
        }
    }

    #[test]
    fn errors_of_a_server_are_told_apart_by_their_texts() {
        for (text, code) in [
            ("nats: Permissions Violation for Publish to \"a.B\"", "denied"),
            ("nats: Permissions Violation for Publish to \"$JS.API.INFO\"", "unauthorized"),
            ("nats: Permissions Violation for Subscription to \"x\"", "unauthorized"),
            ("nats: authorization violation", "unauthenticated"),
            ("nats: User Authentication Expired", "unauthenticated"),
            ("nats: maximum connections exceeded", "unreachable"),
        ] {
            assert_eq!(Failure::of_server(text).code(), code, "{text}");
        }
        let denied = Failure::of_server("nats: Permissions Violation for Publish to \"a.B\"");
        assert_eq!(denied, Failure::Denied("a.B".to_owned()));
    }

    #[test]
    fn only_an_answer_that_may_be_about_the_message_is_taken_for_one() {
        let of = |code, err_code| {
            let description = String::new();
            ApiError { code, err_code, description }.of_message().map(|(_, is_known)| is_known)
        };
        assert_eq!((of(400, HEADERS_TOO_LARGE), of(400, 19999)), (Some(true), Some(false)));
        for (code, err_code) in [(503, STORE_FAILED), (500, 10047), (503, 10008), (400, 10071)] {
            assert_eq!(of(code, err_code), None, "{err_code}");
        }
    }
}
