//! Checks the registry: reads only.

use super::answer::Failure;
use super::client;
use super::encoding;
use super::settings::registry_config;
use crate::config::Config;
use crate::findings::{Finding, Findings};
use crate::record::{Known, SchemaChoice, SchemaKind, SchemaRef, ValueEncoding};

const SUBJECT: &str = "schema registry";

/// What every registry has: the languages that it knows.
const TYPES: &str = "/schemas/types";

/// Whether the registry answers, and has the schema of all values if that is one.
pub(crate) async fn check(config: &Config, offline: bool, findings: &mut Findings) {
    let settings = encoding(config).and_then(|encoding| match encoding {
        Some(encoding) => registry_config(config).map(|registry| Some((encoding, registry))),
        None => Ok(None),
    });
    let (encoding, registry) = match settings {
        Ok(Some(settings)) => settings,
        Ok(None) => return,
        Err(error) => {
            let finding = Finding::error((SUBJECT, "registry"), error.to_string());
            return findings.add(finding.why("`run` does not start").advice("see the message"));
        }
    };
    if offline {
        let text = "whether it answers was not checked";
        return findings.add(Finding::skipped((SUBJECT, "registry"), text));
    }
    if let Some(address) = registry.exposed() {
        let text = format!("credentials are sent without TLS to {address}");
        findings.add(
            Finding::warning((SUBJECT, "registry_credentials_without_tls"), text)
                .why("whoever can read the network has them, and can answer in its place")
                .advice("write https:// in registry.url"),
        );
    }
    let schema = match &encoding {
        ValueEncoding::Check => None,
        ValueEncoding::Frame(SchemaChoice::Id(id)) => Some(SchemaRef::Id(*id)),
        ValueEncoding::Frame(SchemaChoice::Version(subject, version)) => {
            subject.of_all().map(|subject| SchemaRef::Version(subject.to_owned(), *version))
        }
    };
    let Some(schema) = schema else {
        let finding = match client::answers(&registry, TYPES).await {
            Ok(status) if status.is_success() => Finding::ok((SUBJECT, "registry"), "it answers"),
            Ok(status) => {
                let text = format!("it answers {status} to GET {TYPES}");
                Finding::warning((SUBJECT, "registry"), text)
                    .why("an event may wait until it answers")
                    .advice("see the path in registry.url, and registry.authorization")
            }
            Err(failure) => failed(&failure),
        };
        return findings.add(finding);
    };
    findings.add(match client::ask(&registry, &schema).await {
        Ok(Known::Schema { has_rules: true, .. }) => unusable(&schema, "it has rules for writers"),
        Ok(Known::Schema { kind: SchemaKind::Other, .. }) => {
            unusable(&schema, "its language is none that walpost knows")
        }
        Ok(Known::Schema { id, .. }) => {
            Finding::ok((SUBJECT, "registry"), format!("it has {schema}: id {id}"))
        }
        Ok(Known::Missing(why)) => {
            Finding::error((SUBJECT, "registry_schema_missing"), format!("no {schema}: {why}"))
                .why("no event can be published")
                .advice("register it, or correct registry.value_subject or registry.value_id")
        }
        Ok(Known::Unusable(why)) => unusable(&schema, &why),
        Err(failure) => failed(&failure),
    });
}

fn unusable(schema: &SchemaRef, why: &str) -> Finding {
    let text = format!("walpost cannot use {schema}: {why}");
    Finding::error((SUBJECT, "registry_schema_unusable"), text)
        .why("no event can be published")
        .advice("name another schema: registry.value_subject, registry.value_id")
}

fn failed(failure: &Failure) -> Finding {
    let (code, why) = match failure {
        Failure::Unavailable(_) => ("registry_unavailable", "an event waits until it answers"),
        Failure::Denied(_) => ("registry_credentials", "`run` ends with exit code 78"),
        Failure::Unusable(_) => ("registry", "an event waits until that is repaired"),
    };
    let finding = Finding::error((SUBJECT, code), failure.to_string());
    finding.why(why).advice("see registry.url and the network in between")
}
