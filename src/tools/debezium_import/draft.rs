//! The configuration under construction, and its text.
//!
//! Only values that differ from Debezium's defaults are printed, except slot, publication and
//! table, which should be explicit.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::options::LayerValue;
use super::reference::Reference;
use super::report;
use super::report::{Finding, Report};

/// The configuration so far.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) report: Report,
    /// The connector's name.
    pub(crate) name: Option<String>,
    pub(crate) url: Option<String>,
    /// How walpost gets the password.
    pub(crate) password: Option<String>,
    pub(crate) slot: Option<String>,
    pub(crate) publication: Option<String>,
    /// The tables in SQL notation.
    pub(crate) tables: Vec<String>,
    /// Captured tables that are not treated as outboxes.
    pub(crate) excluded: Vec<String>,
    pub(crate) profile: Option<&'static str>,
    /// The table `[debezium]`: option names and their values as TOML.
    pub(crate) debezium: Vec<(&'static str, toml::Value)>,
    pub(crate) bootstrap_servers: Option<String>,
    pub(crate) properties: BTreeMap<String, String>,
    /// Properties whose values are secret and therefore not printed.
    pub(crate) secret_properties: Vec<&'static str>,
}

impl Draft {
    /// The option's value. A reference to a value that is stored elsewhere is reported, and `None`
    /// is returned.
    pub(crate) fn literal(&mut self, given: &LayerValue, setting: &str) -> Option<String> {
        let Some(reference) = Reference::find(&given.value) else {
            return Some(given.value.clone());
        };
        let text =
            format!("refers to {reference}, which walpost does not read: give it as {setting}");
        self.report.refused(given, text);
        None
    }

    /// The configuration's text, with the findings as comments before it.
    pub(crate) fn toml(&self, findings: &[Finding]) -> String {
        let mut text = String::new();
        self.head(&mut text, findings);
        text.push_str(&report::comments(findings));
        self.source(&mut text);
        self.outbox(&mut text);
        self.record(&mut text);
        self.kafka(&mut text);
        if !self.debezium.is_empty() {
            text.push_str("\n[debezium]\n");
            for (name, value) in &self.debezium {
                put(&mut text, name, value);
            }
        }
        text
    }

    fn head(&self, text: &mut String, findings: &[Finding]) {
        let of = self.name.as_deref().map(|name| format!(" from {}", report::printable(name)));
        let refused = findings.iter().filter(|it| it.mapping == report::Mapping::Refused).count();
        let sum = match refused {
            0 => "All of it is carried over, or not needed".to_owned(),
            1 => "One thing cannot be honoured: see below".to_owned(),
            many => format!("{many} things cannot be honoured: see below"),
        };
        let of = of.unwrap_or_default();
        let _ = writeln!(text, "# Made by `walpost import-debezium`{of}.\n# {sum}.");
        text.push_str("# How to move, step by step: docs/from-debezium.md\n");
    }

    fn source(&self, text: &mut String) {
        text.push_str("\n[source]\n");
        if let Some(how) = &self.password {
            let _ = writeln!(text, "# {}", report::printable(how));
        }
        for (key, value) in
            [("url", &self.url), ("slot", &self.slot), ("publication", &self.publication)]
        {
            put_or_leave(text, key, value.as_deref());
        }
    }

    fn outbox(&self, text: &mut String) {
        text.push_str("\n[outbox]\n");
        match self.tables.as_slice() {
            [] => put_or_leave(text, "table", None),
            [table] => put_or_leave(text, "table", Some(table)),
            tables => put(text, "table", &tables.to_vec().into()),
        }
    }

    fn record(&self, text: &mut String) {
        text.push_str("\n[record]\n");
        if self.profile.is_none() {
            // Without it the profile would be walpost's own, with different records.
            text.push_str("# None of walpost's profiles writes as the converters do: see above.\n");
        }
        put(text, "profile", &self.profile.unwrap_or("…").into());
    }

    fn kafka(&self, text: &mut String) {
        text.push_str("\n[kafka]\n");
        if self.bootstrap_servers.is_none() {
            text.push_str(
                "# Those of the Kafka Connect worker: `bootstrap.servers` in its own configuration.\n",
            );
        }
        put_or_leave(text, "bootstrap_servers", self.bootstrap_servers.as_deref());
        if self.properties.is_empty() && self.secret_properties.is_empty() {
            return;
        }
        text.push_str("\n[kafka.properties]\n");
        for (name, value) in &self.properties {
            let name = toml::Value::from(name.as_str()).to_string();
            put(text, &name, &value.as_str().into());
        }
        if !self.secret_properties.is_empty() {
            let names = self.secret_properties.join(", ");
            let _ = writeln!(
                text,
                "# Secret, so to be given by WALPOST_KAFKA_PROPERTIES_FILE, a file with a line \
                 NAME=VALUE for each: {names}"
            );
        }
    }
}

fn put(text: &mut String, key: &str, value: &toml::Value) {
    let _ = writeln!(text, "{key} = {value}");
}

/// The value, or a comment that asks the reader to set it.
fn put_or_leave(text: &mut String, key: &str, value: Option<&str>) {
    match value {
        Some(value) => put(text, key, &value.into()),
        None => {
            let _ = writeln!(text, "# {key} = \"…\"");
        }
    }
}
