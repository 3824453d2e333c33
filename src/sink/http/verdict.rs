//! What an answer means for its event.

use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};

use crate::outlet::{Ground, Refusal};
use crate::sink::attempts::Failure;

/// The longest wait that an endpoint can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The endpoint has taken the event.
    Delivered,
    /// It rejects the event.
    Refused { refusal: Refusal, patience: Patience, after: Option<Duration> },
    /// The event is to be sent again, at the earliest after that time.
    Later(Failure, Option<Duration>),
}

/// How long a rejection has to last before it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    None,
    /// As long as an earlier request of the same event may still be at work.
    Timeout,
}

/// By the status code (<https://www.rfc-editor.org/rfc/rfc9110.html#name-status-codes>).
///
/// A code that would be the same for every event does not count against this one: with a policy that
/// skips, a wrong URL would skip everything.
pub(super) fn verdict(address: &str, status: StatusCode, headers: &HeaderMap) -> Verdict {
    if status.is_success() {
        return Verdict::Delivered;
    }
    let after = retry_after(headers, SystemTime::now());
    let wait = after.map(|after| format!(", retry-after: {} s", after.as_secs()));
    let reason = format!("{address} answered {status}{}", wait.unwrap_or_default());
    let unusable = |advice: &str| Failure::Unusable(format!("{reason} ({advice})"));
    let failure = match status {
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED => Failure::Unauthenticated(reason),
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            unusable("nothing takes events there: correct http.url, or start what should")
        }
        StatusCode::GONE => {
            unusable("it wants no events any more: correct http.url, or stop walpost")
        }
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::MISDIRECTED_REQUEST
        | StatusCode::FAILED_DEPENDENCY
        | StatusCode::LOCKED
        | StatusCode::TOO_EARLY
        | StatusCode::TOO_MANY_REQUESTS => unusable("it is tried again"),
        _ if status.is_redirection() => {
            unusable("walpost does not follow redirects: write the target into http.url")
        }
        _ if status.is_client_error() => {
            let is_size = status == StatusCode::PAYLOAD_TOO_LARGE;
            let ground = if is_size { Ground::Size } else { Ground::Other };
            let passes = status == StatusCode::CONFLICT || after.is_some();
            let patience = if passes { Patience::Timeout } else { Patience::None };
            let refusal = Refusal { ground, may_pass: false, reason };
            return Verdict::Refused { refusal, patience, after };
        }
        _ => unusable("it is tried again"),
    };
    Verdict::Later(failure, after)
}

/// The wait that the header `retry-after` asks for: seconds or a date
/// (<https://www.rfc-editor.org/rfc/rfc9110.html#name-retry-after>).
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            LONGEST_WAIT
        }
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn of(status: u16) -> Verdict {
        let status = StatusCode::from_u16(status).expect("a status");
        verdict("h:80", status, &HeaderMap::new())
    }

    #[test]
    fn only_what_is_about_the_event_itself_refuses_it() {
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(of(status), Verdict::Delivered, "{status}");
        }
        for status in [400, 406, 409, 411, 412, 413, 414, 415, 418, 422, 428, 431, 451] {
            let Verdict::Refused { refusal, patience, .. } = of(status) else { panic!("{status}") };
            assert!(refusal.reason.contains(&format!("h:80 answered {status}")));
            assert_eq!(refusal.ground == Ground::Size, status == 413);
            assert_eq!(patience == Patience::Timeout, status == 409);
        }
        for status in [401, 403, 407] {
            assert!(matches!(of(status), Verdict::Later(Failure::Unauthenticated(_), None)));
        }
        for status in
            [301, 302, 304, 307, 404, 405, 408, 410, 421, 423, 424, 425, 429, 500, 501, 503, 599]
        {
            assert!(matches!(of(status), Verdict::Later(Failure::Unusable(_), None)), "{status}");
        }
    }

    #[test]
    fn a_wait_is_named_and_one_answer_with_it_refuses_nothing() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
        let of = |status| verdict("h:80", status, &headers);
        let Verdict::Refused { refusal, patience, after } = of(StatusCode::PAYLOAD_TOO_LARGE)
        else {
            panic!("413")
        };
        assert_eq!((patience, after), (Patience::Timeout, Some(Duration::from_secs(7))));
        assert!(refusal.reason.ends_with("413 Payload Too Large, retry-after: 7 s"));
        let Verdict::Later(failure, after) = of(StatusCode::SERVICE_UNAVAILABLE) else {
            panic!("503")
        };
        assert_eq!(after, Some(Duration::from_secs(7)));
        assert!(failure.to_string().contains("retry-after: 7 s"), "{failure}");
    }

    #[test]
    fn a_wait_is_seconds_or_a_date_and_bounded() {
        let after = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
            retry_after(&headers, now).map(|wait| wait.as_secs())
        };
        assert_eq!(
            [
                after("7"),
                after("99999"),
                after("99999999999999999999"),
                after("x"),
                after("-1"),
                after("")
            ],
            [Some(7), Some(300), Some(300), None, None, None]
        );
        assert_eq!(after("Sun, 06 Nov 1994 08:49:47 GMT"), Some(10));
        assert_eq!(after("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0));
    }
}
