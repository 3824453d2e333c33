//! All scenarios, and the builder they are written with.

use serde_json::{Map, Value, json};
use walpost_bed::golden::{Scenario, Step};

use crate::{defaults, modes, options, payloads, placement, routing, types};

/// The converters that make a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Text,
    Json,
    TextJson,
    Binary,
    BinaryJson,
}

impl Profile {
    /// As walpost calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Text => "debezium",
            Self::Json => "debezium-json",
            Self::TextJson => "debezium-string-json",
            Self::Binary => "debezium-binary",
            Self::BinaryJson => "debezium-binary-json",
        }
    }

    fn converters(self) -> Vec<(&'static str, &'static str)> {
        let json = "org.apache.kafka.connect.json.JsonConverter";
        let string = "org.apache.kafka.connect.storage.StringConverter";
        let bytes = "org.apache.kafka.connect.converters.ByteArrayConverter";
        match self {
            Self::Text => vec![("key.converter", string), ("value.converter", string)],
            Self::Binary => vec![("key.converter", string), ("value.converter", bytes)],
            Self::BinaryJson => vec![
                ("key.converter", string),
                ("value.converter", "io.debezium.converters.BinaryDataConverter"),
                ("value.converter.delegate.converter.type", json),
                ("value.converter.delegate.converter.type.schemas.enable", "false"),
            ],
            Self::TextJson => vec![
                ("key.converter", string),
                ("value.converter", json),
                ("value.converter.schemas.enable", "false"),
            ],
            Self::Json => vec![
                ("key.converter", json),
                ("key.converter.schemas.enable", "false"),
                ("value.converter", json),
                ("value.converter.schemas.enable", "false"),
            ],
        }
    }
}

/// A scenario under construction.
#[derive(Debug)]
pub(crate) struct Plan(Scenario);

impl Plan {
    /// `columns` of the table `outbox`; the file lies in a folder of the profile's name.
    pub(crate) fn new(profile: Profile, name: &str, columns: &str) -> Self {
        Self(Scenario {
            name: format!("{}/{name}", profile.name()),
            profile: profile.name().to_owned(),
            router: Map::new(),
            connector: settings(&profile.converters()),
            ddl: format!("CREATE TABLE outbox ({columns})"),
            steps: Vec::new(),
        })
    }

    /// What is to be there before the table.
    pub(crate) fn before(mut self, ddl: &str) -> Self {
        if !ddl.is_empty() {
            self.0.ddl = format!("{ddl}; {}", self.0.ddl);
        }
        self
    }

    pub(crate) fn router(mut self, pairs: &[(&str, &str)]) -> Self {
        self.0.router.extend(settings(pairs));
        self
    }

    pub(crate) fn connector(mut self, pairs: &[(&str, &str)]) -> Self {
        self.0.connector.extend(settings(pairs));
        self
    }

    /// A row that Debezium makes a record of, or dies of.
    pub(crate) fn row(self, values: &str) -> Self {
        let sql = format!("INSERT INTO outbox VALUES ({values})");
        self.step(&sql, false)
    }

    /// A transaction that inserts nothing.
    pub(crate) fn step(mut self, sql: &str, is_quiet: bool) -> Self {
        self.0.steps.push(Step { sql: sql.to_owned(), is_quiet });
        self
    }

    /// A row for each; `{id}` is a uuid that counts from 1, `{}` what the row is for.
    pub(crate) fn rows<'a>(
        self,
        template: &str,
        values: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        values.into_iter().zip(1..).fold(self, |plan, (value, number)| {
            let id = format!("'00000000-0000-0000-0000-{number:012}'");
            plan.row(&template.replace("{id}", &id).replace("{}", value))
        })
    }

    pub(crate) fn done(self) -> Scenario {
        self.0
    }
}

fn settings(pairs: &[(&str, &str)]) -> Map<String, Value> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
}

pub(crate) fn all() -> Vec<Scenario> {
    [
        types::scenarios(),
        payloads::scenarios(),
        placement::scenarios(),
        routing::scenarios(),
        options::scenarios(),
        modes::scenarios(),
        defaults::scenarios(),
    ]
    .concat()
}
