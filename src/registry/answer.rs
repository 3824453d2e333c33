//! What a registry's answers say.

use hyper::StatusCode;
use serde::Deserialize;

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
    rule_set: Option<RuleSet>,
}

/// Rules of a schema; those of migrations concern readers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuleSet {
    domain_rules: Option<Vec<Rule>>,
    encoding_rules: Option<Vec<Rule>>,
}

#[derive(Debug, Deserialize)]
struct Rule {
    mode: Option<String>,
    disabled: Option<bool>,
}

impl RuleSet {
    fn concern_writers(&self) -> bool {
        let is_applied =
            |rule: &Rule| rule.disabled != Some(true) && rule.mode.as_deref() != Some("READ");
        let mut rules = self.domain_rules.iter().chain(&self.encoding_rules).flatten();
        rules.any(is_applied)
    }
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
        // About the subject or the version.
        StatusCode::BAD_REQUEST | StatusCode::URI_TOO_LONG | StatusCode::UNPROCESSABLE_ENTITY => {
            Ok(Known::Unusable(format!("the registry answers {status}{}", said(body))))
        }
        _ => Err(Failure::Unavailable(format!("it answers {status}{}", said(body)))),
    }
}

/// The codes by which a registry says that it does not have a subject, a version or a schema. 404 is what it, and
/// others, say of a path that they do not have.
const MISSING: std::ops::RangeInclusive<u64> = 40_400..=40_499;

fn missing(body: &[u8]) -> Result<Known, Failure> {
    match serde_json::from_slice::<Error>(body) {
        Ok(Error { error_code: Some(code), message }) if MISSING.contains(&code) => {
            let message = message.map_or(String::new(), |message| format!(", {}", shown(&message)));
            Ok(Known::Missing(format!("it answers 404, error_code {code}{message}")))
        }
        _ => Err(Failure::Unavailable(format!(
            "it answers 404 without an error_code of a registry that lacks a schema: see the path in \
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
        Some(_) => SchemaKind::Other,
    };
    Ok(Known::Schema {
        id,
        kind,
        has_rules: found.rule_set.is_some_and(|rules| rules.concern_writers()),
    })
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
            (SchemaKind::Other, r#", "schemaType": "XML""#),
        ] {
            let has_rules = false;
            let body =
                format!(r#"{{"subject": "s", "version": 3, "id": 7, "schema": "x"{named}}}"#);
            assert_eq!(ok(&version(), &body), Ok(Known::Schema { id: 7, kind, has_rules }));
            let by_id = format!(r#"{{"schema": "x"{named}}}"#);
            let known = Known::Schema { id: 9, kind, has_rules };
            assert_eq!(ok(&SchemaRef::Id(9), &by_id), Ok(known));
        }
    }

    #[test]
    fn rules_are_those_that_writers_apply() {
        for (rules, expected) in [
            ("null", false),
            ("{}", false),
            (r#"{"domainRules": [], "migrationRules": [{"mode": "UPGRADE"}]}"#, false),
            (r#"{"domainRules": [{"mode": "WRITE", "disabled": true}]}"#, false),
            (r#"{"domainRules": [{"mode": "READ"}]}"#, false),
            (r#"{"domainRules": [{"mode": "WRITEREAD", "disabled": false}]}"#, true),
            (r#"{"encodingRules": [{}]}"#, true),
        ] {
            let body = format!(r#"{{"id": 1, "schema": "x", "ruleSet": {rules}}}"#);
            match ok(&version(), &body) {
                Ok(Known::Schema { has_rules, .. }) => assert_eq!(has_rules, expected, "{rules}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn id_that_the_wire_format_lacks_and_a_question_that_is_refused_are_unusable() {
        for (status, body, part) in [
            (200, r#"{"id": 2147483648}"#, "2147483648"),
            (200, r#"{"id": 0}"#, "id 0"),
            (200, r#"{"id": -1}"#, "id -1"),
            (400, "Ambiguous URI", "Ambiguous"),
            (422, r#"{"error_code": 42202, "message": "invalid version"}"#, "invalid version"),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            match read(&version(), status, body.as_bytes()) {
                Ok(Known::Unusable(why)) => assert!(why.contains(part), "{why}"),
                other => panic!("{body}: {other:?}"),
            }
        }
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
            (404, r#"{"error_code": 404, "message": "HTTP 404 Not Found"}"#, false),
            (200, "<html>Sign in</html>", false),
            (200, "{}", false),
            (200, "[]", false),
            (200, r#"{"id": "7"}"#, false),
            (302, "", false),
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
