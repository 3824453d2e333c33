//! The profile, from the combination of the key and value converters.

use super::draft::Draft;
use super::options::{Host, LayerValue, Options};
use super::reference::Reference;
use super::report::Mapping;

/// The output of a converter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `StringConverter`.
    Text,
    /// `JsonConverter`, without schemas.
    Json,
    /// `ByteArrayConverter` and Debezium's `BinaryDataConverter`.
    Bytes,
    /// Debezium's `BinaryDataConverter` with a `JsonConverter` as the delegate.
    BytesOrJson,
}

/// The option of Debezium's `BinaryDataConverter` that names the delegate for anything but bytes.
const DELEGATE: &str = "delegate.converter.type";

const SCHEMAS: &str = "the JsonConverter writes {\"schema\": …, \"payload\": …} around each, and walpost does not: \
    let the consumers go over to schemas.enable=false first";
const REGISTRY: &str = "records of a schema registry: walpost has no such profile";
const NO_PROFILE: &str = "no profile of walpost writes so: profiles are `debezium` (StringConverter for \
    key and value), `debezium-json` (JsonConverter with schemas.enable=false for both), \
    `debezium-string-json` (StringConverter for the key, such a JsonConverter for the value), \
    `debezium-binary` (StringConverter for the key, ByteArrayConverter for the value) and \
    `debezium-binary-json` (StringConverter for the key, Debezium's BinaryDataConverter with a \
    JsonConverter as its delegate for the value)";
const WORKER: &str = "the Kafka Connect worker's own converter is used then: put the lines of the worker's \
    configuration that begin with";

/// Converts the converters of key, value and headers.
pub(crate) fn take(options: &mut Options, draft: &mut Draft) {
    common(options, draft);
    let key = Side::take(options, "key");
    let value = Side::take(options, "value");
    let profile = match (&key.form, &value.form) {
        (Ok(Form::Text), Ok(Form::Text)) => Some("debezium"),
        (Ok(Form::Json), Ok(Form::Json)) => Some("debezium-json"),
        (Ok(Form::Text), Ok(Form::Json)) => Some("debezium-string-json"),
        (Ok(Form::Text), Ok(Form::Bytes)) => Some("debezium-binary"),
        (Ok(Form::Text), Ok(Form::BytesOrJson)) => Some("debezium-binary-json"),
        _ => None,
    };
    draft.profile = profile;
    let both = key.form.is_ok() && value.form.is_ok();
    key.report(draft, profile, both);
    value.report(draft, profile, both);
    headers(options, draft);
}

/// Debezium Server's `debezium.format.schemas.enable`, for key, value and headers.
fn common(options: &mut Options, draft: &mut Draft) {
    let Some(given) = options.take("format.schemas.enable") else { return };
    if given.value.eq_ignore_ascii_case("false") {
        let text = "give it for key and value, as debezium.format.key.schemas.enable and \
                    debezium.format.value.schemas.enable";
        draft.report.refused(&given, text);
    } else {
        draft.report.refused(&given, SCHEMAS);
    }
}

/// The converter of key or value.
struct Side {
    name: String,
    class: Option<LayerValue>,
    below: Vec<(String, LayerValue)>,
    form: Result<Form, String>,
}

impl Side {
    fn take(options: &mut Options, side: &str) -> Self {
        let name = format!("{side}.converter");
        let class = options.take(&name);
        let below = options.take_below(&format!("{name}."));
        let form = match (&class, options.host) {
            (Some(given), _) => form(&given.value),
            (None, Host::Server) => Ok(Form::Json),
            (None, Host::Connect) => {
                Err(format!("{WORKER} `{name}` into this file, and import it again"))
            }
        };
        let schemas = below.iter().find(|(name, _)| name == "schemas.enable");
        let has_schemas =
            schemas.is_none_or(|(_, given)| !given.value.eq_ignore_ascii_case("false"));
        let form = match form {
            Ok(Form::Bytes) => with_delegate(&below),
            Ok(Form::Json) if has_schemas => Err(format!(
                "schemas.enable is not false (it is true \
                where it is not set): {SCHEMAS}"
            )),
            other => other,
        };
        Self { name, class, below, form }
    }

    fn report(self, draft: &mut Draft, profile: Option<&str>, both: bool) {
        let (mapping, text) = match (&self.form, profile) {
            (Ok(_), Some(profile)) => (Mapping::Carried, format!("record.profile, `{profile}`")),
            (Err(why), _) => (Mapping::Refused, why.clone()),
            (Ok(_), None) if both => (Mapping::Refused, NO_PROFILE.to_owned()),
            (Ok(_), None) => (
                Mapping::Refused,
                "a profile is key and value together: see the other one".to_owned(),
            ),
        };
        match (&self.class, mapping) {
            (Some(given), Mapping::Carried) => draft.report.carried(given, text),
            (Some(given), _) => draft.report.refused(given, text),
            (None, _) => draft.report.absent(&self.name, mapping, &text),
        }
        for (name, given) in &self.below {
            self.below(draft, name, given, profile);
        }
    }

    /// An option of the converter itself.
    fn below(&self, draft: &mut Draft, name: &str, given: &LayerValue, profile: Option<&str>) {
        let is_json = self.class.as_ref().is_none_or(|class| is_json(&class.value));
        let value = given.value.to_ascii_lowercase();
        match (name, value.as_str()) {
            ("schemas.enable", "false") if is_json => match profile {
                Some(profile) => {
                    draft.report.carried(given, format!("record.profile, `{profile}`"));
                }
                None => draft.report.not_needed(given, "no profile of walpost writes schemas"),
            },
            ("schemas.enable", _) if is_json => draft.report.refused(given, SCHEMAS),
            ("schemas.enable", _) => {
                draft.report.not_needed(given, "this converter knows no schemas");
            }
            ("decimal.format", format) if is_json && format != "base64" => {
                draft.report.refused(
                    given,
                    "walpost writes numeric as base64 under this profile, Debezium's default",
                );
            }
            ("encoding" | "converter.encoding", encoding)
                if !matches!(encoding, "utf-8" | "utf8") =>
            {
                draft.report.refused(given, "walpost writes UTF-8");
            }
            _ if name.starts_with(DELEGATE) && self.form == Ok(Form::BytesOrJson) => {
                match profile {
                    Some(profile) => {
                        draft.report.carried(given, format!("record.profile, `{profile}`"));
                    }
                    None => draft.report.refused(given, NO_PROFILE),
                }
            }
            _ if self.form.is_err() => {
                draft.report.refused(given, "an option of a converter that walpost does not have");
            }
            _ => draft.report.not_needed(given, "it does not change what this converter writes"),
        }
    }
}

/// The output of the `BinaryDataConverter` by its own options: anything but bytes goes to its
/// delegate.
fn with_delegate(below: &[(String, LayerValue)]) -> Result<Form, String> {
    let option = |wanted: &str| below.iter().find(|(name, _)| name == wanted);
    let Some((_, delegate)) = option(DELEGATE) else { return Ok(Form::Bytes) };
    let lacks_schemas = option("delegate.converter.type.schemas.enable")
        .is_some_and(|(_, given)| given.value.eq_ignore_ascii_case("false"));
    match form(&delegate.value) {
        Ok(Form::Json) if lacks_schemas => Ok(Form::BytesOrJson),
        Ok(Form::Json) => Err(format!(
            "{DELEGATE}.schemas.enable is not false (it is true where it is not set): {SCHEMAS}. Where the \
             payload column is a bytea the delegate writes no payload: leave {DELEGATE} out"
        )),
        _ => Err(format!(
            "{DELEGATE} writes payloads that are no bytea, and walpost can be a JsonConverter there and \
             nothing else; where the payload column is a bytea, leave {DELEGATE} out"
        )),
    }
}

fn is_json(class: &str) -> bool {
    matches!(form(class), Ok(Form::Json))
}

/// The output of a class, or of a format of Debezium Server.
fn form(class: &str) -> Result<Form, String> {
    if let Some(reference) = Reference::find(class) {
        return Err(format!(
            "refers to {reference}, which walpost does not read: write the class here"
        ));
    }
    let lower = class.to_ascii_lowercase();
    match class.rsplit('.').next().unwrap_or_default() {
        "StringConverter" | "simplestring" => Ok(Form::Text),
        "JsonConverter" | "json" | "jsonbytearray" => Ok(Form::Json),
        "ByteArrayConverter" | "BinaryDataConverter" | "ByteBufferConverter" | "binary" => {
            Ok(Form::Bytes)
        }
        _ if ["avro", "protobuf", "jsonschema", "apicurio"]
            .iter()
            .any(|word| lower.contains(word)) =>
        {
            Err(REGISTRY.to_owned())
        }
        "CloudEventsConverter" | "cloudevents" => {
            Err("it wraps Debezium's change events; walpost's own CloudEvents are `record.value = \
             \"cloudevents\"`, without a profile, and other records than these"
                .to_owned())
        }
        _ => Err("walpost does not have this converter".to_owned()),
    }
}

fn headers(options: &mut Options, draft: &mut Draft) {
    const SERVER: &str = "Debezium Server writes headers as JSON, the id with quotes around it; \
        walpost writes them bare: see that no consumer minds";
    let class = options.take("header.converter");
    let below = options.take_below("header.converter.");
    let is_server = options.host == Host::Server;
    let simple = class.as_ref().is_none_or(|given| given.value.ends_with("SimpleHeaderConverter"));
    for (_, given) in below {
        if is_server || !simple {
            draft.report.refused(&given, "an option of a converter that walpost does not have");
        } else {
            draft.report.not_needed(
                &given,
                "the SimpleHeaderConverter has no options that change a header",
            );
        }
    }
    match class {
        Some(given) if is_server => draft.report.refused(&given, SERVER),
        None if is_server => {
            draft.report.absent("debezium.format.header", Mapping::Refused, SERVER);
        }
        None => {}
        Some(given) if simple => {
            draft.report.not_needed(&given, "the profiles write headers as it does");
        }
        Some(given) if given.value.ends_with("StringConverter") => {
            draft.report.not_needed(
                &given,
                "the profiles write headers as the SimpleHeaderConverter does: text, uuid, numbers, \
                 booleans and NULL are the same; arrays and bytea are not",
            );
        }
        Some(given) => draft
            .report
            .refused(&given, "the profiles write headers as the SimpleHeaderConverter does"),
    }
}
