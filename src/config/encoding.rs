//! How values get the prefix of a schema registry.

use super::{Config, ConfigError, Origin, Setting};
use crate::record::{SchemaChoice, SubjectTemplate, TemplateError, ValueEncoding, ValueFormat};

/// How values get the prefix of their schema; `None`: they do not. A setting of `[registry]` without effect is an
/// error.
pub(super) fn encoding(config: &Config) -> Result<Option<ValueEncoding>, ConfigError> {
    let values = config.values();
    let invalid = |setting: Setting, reason: &str| Err(config.invalid(setting, &reason));
    let is_framed = match values.text(Setting::RECORD_VALUE_ENCODING).unwrap_or_default() {
        "none" => {
            let given = Setting::REGISTRY.iter().find(|setting| is_given(config, **setting));
            let reason = "has no effect: record.value_encoding is \"none\"";
            return given.map_or(Ok(None), |setting| invalid(*setting, reason));
        }
        "check" => false,
        "frame" => true,
        other => {
            let reason = format!("`{other}` is not one of `none`, `check`, `frame`");
            return invalid(Setting::RECORD_VALUE_ENCODING, &reason);
        }
    };
    if !config.is_kafka() {
        let reason = "is for Kafka: other destinations have no readers of schema registries";
        return invalid(Setting::RECORD_VALUE_ENCODING, reason);
    }
    if config.record.value != ValueFormat::Payload {
        let reason = "is for payloads: it needs record.value = \"payload\"";
        return invalid(Setting::RECORD_VALUE_ENCODING, reason);
    }
    let [subject, version, id] = [
        Setting::REGISTRY_VALUE_SUBJECT,
        Setting::REGISTRY_VALUE_VERSION,
        Setting::REGISTRY_VALUE_ID,
    ];
    let choices = [subject, version, id];
    if !is_framed {
        let given = choices.into_iter().find(|setting| is_given(config, *setting));
        let reason =
            "has no effect with record.value_encoding = \"check\": payloads name their schemas";
        return given.map_or(Ok(Some(ValueEncoding::Check)), |setting| invalid(setting, reason));
    }
    if let Some(text) = values.text(id) {
        let number = text.parse().ok().filter(|id| (1..=0x7FFF_FFFF).contains(id));
        let given = [subject, version].into_iter().find(|setting| is_given(config, *setting));
        return match (number, given) {
            (_, Some(setting)) => invalid(setting, "has no effect beside registry.value_id"),
            (None, None) => invalid(id, &format!("`{text}` is not the id of a schema")),
            (Some(number), None) => Ok(Some(ValueEncoding::Frame(SchemaChoice::Id(number)))),
        };
    }
    let version = values.parsed(version, value_version)?;
    let subject: SubjectTemplate =
        values.parsed(subject, |text| text.parse().map_err(|error: TemplateError| error.why))?;
    Ok(Some(ValueEncoding::Frame(SchemaChoice::Version(subject, version))))
}

fn is_given(config: &Config, setting: Setting) -> bool {
    *config.origin(setting) != Origin::Default
}

/// A version of a subject; `None`: the latest one.
fn value_version(text: &str) -> Result<Option<u32>, String> {
    if text == "latest" {
        return Ok(None);
    }
    let number = text.parse().ok().filter(|version| (1..=0x7FFF_FFFF).contains(version));
    number.map(Some).ok_or_else(|| format!("`{text}` is neither `latest` nor a version"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::of_toml;

    #[test]
    fn subject_names_columns() {
        let toml = "record.value_encoding = 'frame'\n[registry]\nvalue_subject = \
                    '{topic}-{tenant}'\nvalue_version = 3";
        let config = of_toml(toml).expect("valid");
        match encoding(&config).expect("valid") {
            Some(ValueEncoding::Frame(SchemaChoice::Version(subject, Some(3)))) => {
                assert_eq!(subject.to_string(), "{topic}-{tenant}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(crate::config::profile(&config).expect("a profile").placed(), ["tenant"]);
    }

    #[test]
    fn settings_without_effect_and_wrong_values_are_errors() {
        for (toml, part) in [
            ("registry.url = 'http://a'", "value_encoding is \"none\""),
            ("record.value_encoding = 'avro'", "not one of `none`, `check`, `frame`"),
            ("record.value_encoding = 'check'\nregistry.value_id = 7", "name their schemas"),
            ("record.value_encoding = 'frame'\nregistry.value_id = 0", "not the id"),
            ("record.value_encoding = 'frame'\nregistry.value_id = 2147483648", "not the id"),
            (
                "record.value_encoding = 'frame'\n[registry]\nvalue_id = 7\nvalue_subject = 'a'",
                "beside registry.value_id",
            ),
            ("record.value_encoding = 'frame'\nregistry.value_version = 0", "neither `latest`"),
            ("record.value_encoding = 'frame'\nregistry.value_subject = '{a'", "not closed"),
            ("record.value_encoding = 'frame'\nrecord.value = 'envelope'", "is for payloads"),
        ] {
            let error = encoding(&of_toml(toml).expect(toml)).expect_err(toml).to_string();
            assert!(error.contains(part), "{toml}: {error}");
        }
    }
}
