//! What a registry's answers say.

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use crate::excerpt::{at_most, beginning};
use crate::record::{Known, SchemaKind, SchemaRef};

/// Maximum length of what is shown of an answer, in characters.
const SHOWN: usize = 200;

/// Why a registry has not answered the question.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// It may answer later.
    #[error("{0}")]
    Unavailable(String),
    /// It refuses walpost's credentials.
    #[error("the registry refuses walpost's credentials: {0}; see registry.authorization")]
    Denied(String),
    /// The settings cannot be used as they are now.
    #[error("{0}")]
    Unusable(String),
}

/// A schema, as `GET /subjects/…/versions/…` and `GET /schemas/ids/…` return it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Schema {
    /// Not with a question by id.
    id: Option<i64>,
    #[serde(rename = "schemaType")]
    kind: Option<String>,
    /// Rules by which a field is encrypted, for instance.
    rule_set: Option<Value>,
}

/// An error, as registries return it.
#[derive(Debug, Deserialize)]
struct Error {
    error_code: Option<u64>,
    message: Option<String>,
}

/// What the answer to a question for `schema` says.
pub(super) fn read(schema: &SchemaRef, status: StatusCode, body: &[u8]) -> Result<Known, Failure> {
    match status {
        StatusCode::OK => known(schema, body),
        StatusCode::NOT_FOUND => missing(body),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(Failure::Denied(format!("{status}{}", said(body))))
        }
        _ => Err(Failure::Unavailable(format!("it answers {status}{}", said(body)))),
    }
}

/// Only the registry knows that it has none: a proxy before it answers 404 too.
fn missing(body: &[u8]) -> Result<Known, Failure> {
    match serde_json::from_slice::<Error>(body) {
        Ok(Error { error_code: Some(code), message }) => {
            let message = message.map_or(String::new(), |message| format!(", {}", shown(&message)));
            Ok(Known::Missing(format!("it answers 404, error_code {code}{message}")))
        }
        _ => Err(Failure::Unavailable(format!(
            "it answers 404 without an error_code, so it is none of a registry: see the path in \
             registry.url{}",
            said(body)
        ))),
    }
}

fn known(schema: &SchemaRef, body: &[u8]) -> Result<Known, Failure> {
    let found: Schema = serde_json::from_slice(body).map_err(|error| {
        Failure::Unavailable(format!("its answer is no schema: {error}{}", said(body)))
    })?;
    let id = match (schema, found.id) {
        (SchemaRef::Id(id), None) => i64::from(*id),
        (SchemaRef::Id(id), Some(other)) if i64::from(*id) != other => {
            return Err(Failure::Unavailable(format!("it answers with id {other}, not {id}")));
        }
        (_, Some(id)) => id,
        (SchemaRef::Version(..), None) => {
            return Err(Failure::Unavailable("its answer has no id".to_owned()));
        }
    };
    let Some(id) =
        i32::try_from(id).ok().and_then(|id| u32::try_from(id).ok()).filter(|id| *id > 0)
    else {
        return Ok(Known::Unusable(format!("its id {id} does not fit into the wire format")));
    };
    let kind = match found.kind.as_deref() {
        None | Some("AVRO") => SchemaKind::Avro,
        Some("JSON") => SchemaKind::Json,
        Some("PROTOBUF") => SchemaKind::Protobuf,
        Some(other) => return Ok(Known::Unusable(format!("its schemaType is {}", shown(other)))),
    };
    // Who has put the id before the value has applied them.
    let has_rules = found.rule_set.is_some_and(|rules| !rules.is_null());
    if has_rules && matches!(schema, SchemaRef::Version(..)) {
        let why =
            "it has a ruleSet, such as the encryption of fields, which walpost does not apply";
        return Ok(Known::Unusable(why.to_owned()));
    }
    Ok(Known::Schema { id, kind })
}

/// What the answer says, for a message.
fn said(body: &[u8]) -> String {
    match serde_json::from_slice::<Error>(body) {
        Ok(Error { message: Some(message), .. }) => format!(": {}", shown(&message)),
        _ if body.is_empty() => String::new(),
        _ => format!(": {}", shown(&beginning(body))),
    }
}

fn shown(text: &str) -> String {
    at_most(SHOWN, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version() -> SchemaRef {
        SchemaRef::Version("s".to_owned(), None)
    }

    fn ok(schema: &SchemaRef, body: &str) -> Result<Known, Failure> {
        read(schema, StatusCode::OK, body.as_bytes())
    }

    #[test]
    fn schemas_of_all_languages_are_known_by_their_ids() {
        for (kind, named) in [
            (SchemaKind::Avro, ""),
            (SchemaKind::Avro, r#", "schemaType": "AVRO""#),
            (SchemaKind::Json, r#", "schemaType": "JSON""#),
            (SchemaKind::Protobuf, r#", "schemaType": "PROTOBUF", "references": []"#),
        ] {
            let body =
                format!(r#"{{"subject": "s", "version": 3, "id": 7, "schema": "x"{named}}}"#);
            assert_eq!(ok(&version(), &body), Ok(Known::Schema { id: 7, kind }));
            let by_id = format!(r#"{{"schema": "x"{named}}}"#);
            assert_eq!(ok(&SchemaRef::Id(9), &by_id), Ok(Known::Schema { id: 9, kind }));
        }
    }

    #[test]
    fn schema_that_walpost_cannot_use_is_unusable() {
        for (body, part) in [
            (r#"{"id": 1, "ruleSet": {"domainRules": [{}]}}"#, "ruleSet"),
            (r#"{"id": 1, "schemaType": "XML"}"#, "XML"),
            (r#"{"id": 2147483648}"#, "2147483648"),
            (r#"{"id": 0}"#, "id 0"),
            (r#"{"id": -1}"#, "id -1"),
        ] {
            match ok(&version(), body) {
                Ok(Known::Unusable(why)) => assert!(why.contains(part), "{why}"),
                other => panic!("{body}: {other:?}"),
            }
        }
        let with_rules = r#"{"schema": "x", "ruleSet": {}}"#;
        assert!(matches!(ok(&SchemaRef::Id(1), with_rules), Ok(Known::Schema { id: 1, .. })));
    }

    #[test]
    fn only_a_registry_says_that_it_has_no_schema() {
        let none = r#"{"error_code": 40401, "message": "Subject 's' not found.\u001b[2K"}"#;
        let found = read(&version(), StatusCode::NOT_FOUND, none.as_bytes());
        match found {
            Ok(Known::Missing(why)) => {
                assert!(why.contains("40401, Subject 's' not found."), "{why}");
                assert!(!why.contains(char::is_control), "{why}");
            }
            other => panic!("{other:?}"),
        }
        for (status, body, is_denied) in [
            (404, "<html>404 page not found</html>", false),
            (404, "{}", false),
            (200, "<html>Sign in</html>", false),
            (200, "{}", false),
            (200, "[]", false),
            (200, r#"{"id": "7"}"#, false),
            (302, "", false),
            (422, r#"{"error_code": 42202, "message": "invalid"}"#, false),
            (429, "", false),
            (500, "", false),
            (503, "busy", false),
            (401, "", true),
            (403, r#"{"message": "no"}"#, true),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            let failure = read(&version(), status, body.as_bytes()).expect_err(body);
            assert_eq!(matches!(failure, Failure::Denied(_)), is_denied, "{failure}");
            assert!(failure.to_string().len() < 400, "{failure}");
        }
        let other = ok(&SchemaRef::Id(1), r#"{"id": 2, "schema": "x"}"#).expect_err("another one");
        assert!(other.to_string().contains("id 2, not 1"), "{other}");
    }
}
