//! Converts the configuration of Debezium's PostgreSQL connector, with its outbox event router, to
//! walpost's, with a report that names every option once.
//!
//! Pure: text in, text out. The meaning of the options is defined by
//! [Debezium](https://debezium.io/documentation/reference/stable/connectors/postgresql.html);
//! `tests/corpus/debezium/README.md` has facts about its records. No server is queried, so the
//! state of slot, tables and topics is not checked: `walpost check` does that.

mod connection;
mod converters;
mod draft;
mod error;
mod options;
mod producer;
mod properties;
mod reference;
mod report;
mod router;
mod rules;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use error::ImportError;
pub use properties::PropertiesError;
pub use report::{Finding, Mapping, line};

use self::draft::Draft;
use self::options::{Host, Options};

/// The result of a conversion.
#[derive(Debug)]
pub struct Import {
    /// The configuration as TOML, with the report as comments.
    pub toml: String,
    /// One per option, in the order of the file, and some for missing options.
    pub findings: Vec<Finding>,
}

impl Import {
    /// The options that are not supported.
    pub fn refused(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.mapping == Mapping::Refused)
    }
}

/// Converts a connector's configuration: JSON in the format of Kafka Connect's REST interface, or
/// properties, including those of Debezium Server.
pub fn import(text: &str) -> Result<Import, ImportError> {
    let mut options = Options::read(text)?;
    let mut draft = Draft::default();
    connection::take_class(&mut options, &mut draft);
    connection::take(&mut options, &mut draft);
    connection::take_tables(&mut options, &mut draft);
    converters::take(&mut options, &mut draft);
    router::take(&mut options, &mut draft);
    producer::take(&mut options, &mut draft);
    rest(&mut options, &mut draft);
    let findings = std::mem::take(&mut draft.report).into_findings();
    Ok(Import { toml: draft.toml(&findings), findings })
}

/// Options that only need a rule, and unknown ones.
fn rest(options: &mut Options, draft: &mut Draft) {
    const EXTENDED: &str = "extended.headers.enabled";
    if options.value(EXTENDED).is_none() {
        draft.report.absent(
            EXTENDED,
            Mapping::NotNeeded,
            "Debezium 3.6 then sends four headers __debezium.context.*, which walpost does not",
        );
    }
    let host = options.host;
    let mut custom = BTreeSet::new();
    for list in ["converters", "post.processors"] {
        custom.extend(options::items(options.value(list).unwrap_or_default()).map(str::to_owned));
    }
    for (name, given) in options.take_rest() {
        let mut beginnings = name.match_indices('.').map(|(dot, _)| &name[..dot]);
        let part = beginnings.find(|beginning| custom.contains(*beginning));
        let is_other_sink = host == Host::Server && name.starts_with("sink.");
        match (rules::find(rules::OPTIONS, &name), part) {
            (_, Some(part)) => draft
                .report
                .refused(&given, format!("part of `{part}`, which walpost does not have")),
            (Some(rule), None) => rules::apply(rule, draft, &given),
            (None, None) if is_other_sink => {
                draft.report.refused(&given, "only configurations for Kafka are converted");
            }
            (None, None) => {
                draft.report.refused(&given, "unknown to walpost: nothing is done with it");
            }
        }
    }
}
