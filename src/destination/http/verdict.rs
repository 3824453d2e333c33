//! What an answer means for its event.

use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};

use super::patience::Patience;
use crate::destination::parts::Failure;
use crate::outlet::Ground;

/// The longest wait that an endpoint can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The endpoint has taken the event.
    Delivered,
    /// The event is to be sent again, at the earliest after that time; it may be the reason, if such answers
    /// last.
    Failed { failure: Failure, ground: Ground, patience: Patience, after: Option<Duration> },
}

/// The verdict by the status code
/// (<https://www.rfc-editor.org/rfc/rfc9110.html#name-status-codes>). No code proves that an event
/// is at fault: with a wrong URL or a wrong configuration, all events get the same answer.
/// `waits_for_topic`: whether a topic without a path is waited for; `None`: the URL is the same for
/// all topics.
pub(super) fn verdict(
    address: &str,
    status: StatusCode,
    headers: &HeaderMap,
    waits_for_topic: Option<bool>,
) -> Verdict {
    if status.is_success() {
        return Verdict::Delivered;
    }
    let after = retry_after(headers, SystemTime::now());
    let wait = after.map(|after| format!(", retry-after: {} s", after.as_secs()));
    let advice = advice(status, waits_for_topic.is_some());
    let advice = advice.map(|advice| format!(" ({advice})"));
    let reason = format!(
        "{address} answered {status}{}{}",
        wait.unwrap_or_default(),
        advice.unwrap_or_default()
    );
    let failure = Failure::Unusable(reason);
    let ground = match status {
        StatusCode::PAYLOAD_TOO_LARGE => Ground::Size,
        StatusCode::NOT_FOUND if waits_for_topic.is_some() => Ground::MissingTopic,
        _ => Ground::Other,
    };
    let patience = match ground {
        Ground::MissingTopic if waits_for_topic == Some(true) => Patience::Endless,
        _ => patience(status, after.is_some()),
    };
    Verdict::Failed { failure, ground, patience, after }
}

fn patience(status: StatusCode, asks_for_wait: bool) -> Patience {
    match status {
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::MISDIRECTED_REQUEST
        | StatusCode::FAILED_DEPENDENCY
        | StatusCode::LOCKED
        | StatusCode::TOO_EARLY => Patience::Long,
        StatusCode::TOO_MANY_REQUESTS => Patience::Endless,
        _ if status.is_server_error() => Patience::Long,
        // An earlier request of the event may be the other party.
        StatusCode::CONFLICT => Patience::Short,
        _ if asks_for_wait => Patience::Short,
        _ => Patience::None,
    }
}

fn advice(status: StatusCode, is_by_topic: bool) -> Option<&'static str> {
    Some(match status {
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            "correct http.authorization, or what the endpoint permits"
        }
        StatusCode::NOT_FOUND if is_by_topic => "create the path of the topic, or correct http.url",
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            "nothing takes events there: correct http.url, or start what should"
        }
        StatusCode::GONE => "it wants no events any more: correct http.url, or stop walpost",
        _ if status.is_redirection() => {
            "walpost does not follow redirects: write the target into http.url"
        }
        _ => return None,
    })
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

    /// The ground, and how long it takes.
    fn of(status: u16, waits_for_topic: Option<bool>) -> (Ground, Patience) {
        let status = StatusCode::from_u16(status).expect("a status");
        match verdict("h:80", status, &HeaderMap::new(), waits_for_topic) {
            Verdict::Failed { failure, ground, patience, after: None } => {
                let said = failure.to_string();
                assert!(said.contains(&format!("h:80 answered {status}")), "{said}");
                (ground, patience)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn status_alone_refuses_no_event_and_says_how_long_it_takes_to_suspect_it() {
        for status in [200, 201, 202, 204, 299] {
            let status = StatusCode::from_u16(status).expect("a status");
            let found = verdict("h:80", status, &HeaderMap::new(), None);
            assert_eq!(found, Verdict::Delivered, "{status}");
        }
        for status in 300..600 {
            let expected = match status {
                408 | 421 | 423 | 424 | 425 | 500.. => Patience::Long,
                429 => Patience::Endless,
                409 => Patience::Short,
                _ => Patience::None,
            };
            let ground = if status == 413 { Ground::Size } else { Ground::Other };
            assert_eq!(of(status, None), (ground, expected), "{status}");
        }
    }

    #[test]
    fn path_that_is_missing_for_a_topic_is_a_missing_topic() {
        assert_eq!(of(404, Some(true)), (Ground::MissingTopic, Patience::Endless));
        assert_eq!(of(404, Some(false)), (Ground::MissingTopic, Patience::None));
        for waits in [true, false] {
            assert_eq!(of(403, Some(waits)), (Ground::Other, Patience::None));
        }
    }

    #[test]
    fn a_wait_that_is_asked_for_is_named_and_kept_before_the_event_is_a_suspect() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
        for (status, expected) in
            [(413, Patience::Short), (403, Patience::Short), (503, Patience::Long)]
        {
            let status = StatusCode::from_u16(status).expect("a status");
            let found = verdict("h:80", status, &headers, None);
            let Verdict::Failed { failure, patience, after, .. } = found else {
                panic!("{found:?}")
            };
            assert_eq!((patience, after), (expected, Some(Duration::from_secs(7))));
            assert!(failure.to_string().contains(", retry-after: 7 s"), "{failure}");
        }
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
