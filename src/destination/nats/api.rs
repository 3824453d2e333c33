//! Requests to JetStream's API, and acknowledgements: JSON over subjects
//! (<https://docs.nats.io/reference/reference-protocols/nats_api_reference>).

use async_nats::{Client, HeaderMap, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::failure::{ApiError, MESSAGE_NOT_FOUND, STREAM_NOT_FOUND, no_responders};
use crate::destination::parts::Failure;

const PREFIX: &str = "$JS.API";

/// The sequence number that the last message of the same subject has to have.
const LAST_SUBJECT_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";

/// A stream: how it is set up, and what it has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct StreamInfo {
    /// When it was made, as text.
    #[serde(default)]
    pub(crate) created: String,
    pub(crate) config: StreamConfig,
    pub(crate) state: StreamState,
}

/// How a stream is set up. What an older server does not report has its default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct StreamConfig {
    #[serde(default)]
    pub(crate) subjects: Vec<String>,
    pub(crate) retention: String,
    pub(crate) storage: String,
    pub(crate) discard: String,
    #[serde(default)]
    pub(crate) max_msgs: i64,
    #[serde(default)]
    pub(crate) max_bytes: i64,
    /// The maximum age in nanoseconds, as all times.
    #[serde(default)]
    pub(crate) max_age: i64,
    #[serde(default)]
    pub(crate) max_msgs_per_subject: i64,
    #[serde(default)]
    pub(crate) max_msg_size: i64,
    #[serde(default)]
    pub(crate) num_replicas: u32,
    #[serde(default)]
    pub(crate) duplicate_window: i64,
    #[serde(default)]
    pub(crate) no_ack: bool,
    #[serde(default)]
    pub(crate) sealed: bool,
    #[serde(default)]
    pub(crate) mirror: Option<serde_json::Value>,
    #[serde(default)]
    pub(crate) sources: Option<Vec<serde_json::Value>>,
    #[serde(default)]
    pub(crate) subject_transform: Option<serde_json::Value>,
}

/// What a stream has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct StreamState {
    #[serde(default)]
    pub(crate) messages: u64,
    #[serde(default)]
    pub(crate) bytes: u64,
    #[serde(default)]
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
}

/// A stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) seq: u64,
    pub(super) subject: String,
    /// Names and values.
    pub(super) headers: Vec<(String, String)>,
    pub(super) data: Vec<u8>,
}

impl Stored {
    /// The first header with this name.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(one, _)| one == name)?;
        Some(&found.1)
    }
}

#[derive(Deserialize)]
struct StoredAnswer {
    message: StoredMessage,
}

#[derive(Deserialize)]
struct StoredMessage {
    seq: u64,
    #[serde(default)]
    subject: String,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

/// An answer, or the error in its place.
#[derive(Deserialize)]
struct Checked {
    #[serde(default)]
    error: Option<ApiError>,
}

/// The acknowledgement of a message.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Ack {
    #[serde(default)]
    pub(super) stream: String,
    #[serde(default)]
    pub(super) seq: u64,
}

/// Parses an answer of JetStream's.
fn parsed<T: DeserializeOwned>(payload: &[u8]) -> Result<Result<T, ApiError>, Failure> {
    let unexpected =
        |error| Failure::Unusable(format!("JetStream answers something unexpected: {error}"));
    let checked: Checked = serde_json::from_slice(payload).map_err(unexpected)?;
    match checked.error {
        Some(error) => Ok(Err(error)),
        None => serde_json::from_slice(payload).map(Ok).map_err(unexpected),
    }
}

async fn request<T: DeserializeOwned>(
    client: &Client,
    subject: String,
    body: &serde_json::Value,
) -> Result<Result<T, ApiError>, Failure> {
    let payload = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let answer = client.request(subject.clone(), payload).await;
    let answer = answer.map_err(|error| Failure::of_request(&error, &subject))?;
    parsed(&answer.payload)
}

/// The acknowledgement in an answer to a message for `subject`, or JetStream's error.
pub(super) fn answered(
    message: &async_nats::Message,
    subject: &str,
) -> Result<Result<Ack, ApiError>, Failure> {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(Failure::Unusable(no_responders(subject)));
    }
    parsed(&message.payload)
}

/// The stream; `None` if it does not exist.
pub(super) async fn stream_info(
    client: &Client,
    stream: &str,
) -> Result<Option<StreamInfo>, Failure> {
    let subject = format!("{PREFIX}.STREAM.INFO.{stream}");
    match request(client, subject, &serde_json::Value::Null).await? {
        Ok(info) => Ok(Some(info)),
        Err(error) if error.err_code == STREAM_NOT_FOUND => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The stored message that `which` names; `None` if there is none, or no stream.
pub(super) async fn stored(
    client: &Client,
    stream: &str,
    which: serde_json::Value,
) -> Result<Option<Stored>, Failure> {
    let subject = format!("{PREFIX}.STREAM.MSG.GET.{stream}");
    let answer: StoredAnswer = match request(client, subject, &which).await? {
        Ok(answer) => answer,
        Err(error) if matches!(error.err_code, MESSAGE_NOT_FOUND | STREAM_NOT_FOUND) => {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let StoredMessage { seq, subject, hdrs, data } = answer.message;
    let bytes = |text: &str| {
        let unexpected =
            |error| Failure::Unusable(format!("a stored message is not readable: {error}"));
        STANDARD.decode(text).map_err(unexpected)
    };
    Ok(Some(Stored { seq, subject, headers: headers(&bytes(&hdrs)?), data: bytes(&data)? }))
}

/// The headers of a stored message.
fn headers(lines: &[u8]) -> Vec<(String, String)> {
    let text = std::str::from_utf8(lines).unwrap_or_default();
    let pairs = text.split("\r\n").filter_map(|line| line.split_once(':'));
    // A value may begin and end with spaces.
    let value = |text: &str| text.strip_prefix(' ').unwrap_or(text).to_owned();
    pairs.map(|(name, text)| (name.to_owned(), value(text))).collect()
}

/// The last message of a subject that the stream of a bucket has.
pub(super) async fn last_of(
    client: &Client,
    stream: &str,
    subject: &str,
) -> Result<Option<Stored>, Failure> {
    stored(client, stream, json!({ "last_by_subj": subject })).await
}

/// Publishes a message if the last one of its subject has the sequence number `last`, or if there
/// is none and it is 0; returns its own. [`Failure::Gap`] if not.
pub(super) async fn compare_and_publish(
    client: &Client,
    subject: &str,
    last: u64,
    payload: String,
) -> Result<u64, Failure> {
    let mut headers = HeaderMap::new();
    headers.insert(LAST_SUBJECT_SEQUENCE, last.to_string());
    let ack = answered_by(client, subject, headers, payload.into()).await?;
    ack.map(|ack| ack.seq).map_err(Failure::from)
}

/// Publishes a message, and waits for its acknowledgement or JetStream's error.
pub(super) async fn answered_by(
    client: &Client,
    subject: &str,
    headers: HeaderMap,
    payload: Bytes,
) -> Result<Result<Ack, ApiError>, Failure> {
    let answer = client.request_with_headers(subject.to_owned(), headers, payload).await;
    answered(&answer.map_err(|error| Failure::of_request(&error, subject))?, subject)
}

/// Creates the stream of a key-value bucket, unless it exists.
pub(super) async fn create_bucket(
    client: &Client,
    bucket: &str,
    replicas: u32,
) -> Result<(), Failure> {
    let stream = format!("KV_{bucket}");
    if stream_info(client, &stream).await?.is_some() {
        return Ok(());
    }
    // As the tools of NATS create buckets.
    let config = json!({
        "name": stream,
        "subjects": [format!("$KV.{bucket}.>")],
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": true,
        "deny_delete": true,
        "allow_direct": true,
    });
    let subject = format!("{PREFIX}.STREAM.CREATE.{stream}");
    request::<serde_json::Value>(client, subject, &config).await?.map(drop).map_err(Failure::from)
}

/// What the account of the user uses of JetStream, in bytes of files.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Account {
    #[serde(default)]
    pub(crate) storage: u64,
    #[serde(default)]
    pub(crate) limits: AccountLimits,
}

/// What the account may use; not above 0: no limit.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct AccountLimits {
    #[serde(default)]
    pub(crate) max_storage: i64,
}

/// The account of the user; an error if it does not have JetStream.
pub(crate) async fn account_info(client: &Client) -> Result<Account, Failure> {
    let subject = format!("{PREFIX}.INFO");
    let answer = request::<Account>(client, subject, &serde_json::Value::Null).await?;
    answer.map_err(Failure::from)
}

#[cfg(test)]
mod tests {
    use super::super::message::MESSAGE_ID;
    use super::*;

    #[test]
    fn error_in_an_answer_is_found() {
        let text = br#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},"stream":"o","seq":0}"#;
        let error = parsed::<Ack>(text).expect("JSON").expect_err("an error");
        assert!(error.is_wrong_last());
        let ack = parsed::<Ack>(br#"{"stream":"o","seq":7,"duplicate": true}"#).expect("JSON");
        assert_eq!(ack, Ok(Ack { stream: "o".to_owned(), seq: 7 }));
        assert!(parsed::<Ack>(b"+OK").is_err());
    }

    #[test]
    fn header_of_a_stored_message_is_found() {
        let of = |lines| Stored {
            seq: 1,
            subject: String::new(),
            headers: headers(lines),
            data: Vec::new(),
        };
        let stored = of(b"NATS/1.0\r\nA: Nats-Msg-Id\r\nNats-Msg-Id: x-1\r\n\r\n");
        assert_eq!(stored.header(MESSAGE_ID), Some("x-1"));
        assert_eq!(of(b"").header(MESSAGE_ID), None);
    }
}
