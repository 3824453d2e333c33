//! The SQL of `walpost init`: the files in `sql/`, with the default names replaced by the
//! configured ones.
//!
//! In a file, a default name occurs only as a name; the places are found by the words around them.
//! Nothing is executed here.

use postgres_protocol::escape::{escape_identifier, escape_literal};

use crate::config::Config;
use crate::outbox::{ColumnNames, TableName};

const SCHEMA: &str = include_str!("../../sql/01-schema.sql");
const ROLE: &str = include_str!("../../sql/02-role.sql");
const PUBLICATION: &str = include_str!("../../sql/03-publication.sql");
const SLOT: &str = include_str!("../../sql/04-slot.sql");

const DEFAULT_TABLE: &str = "public.outbox";
const DEFAULT_NAME: &str = "walpost";
/// The dollar quote of the `DO` blocks.
const DOLLAR_QUOTE: &str = "$init$";

/// The objects that init creates, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InitPlan {
    tables: Vec<TableName>,
    columns: ColumnNames,
    role: Option<String>,
    publication: String,
    slot: String,
    failover: bool,
    stage: Stage,
}

/// Which objects are created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// All.
    All,
    /// All but the slot.
    BeforeSlot,
    /// The slot.
    Slot,
}

/// A name that the SQL cannot contain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "init cannot write SQL for the name {0:?}: it is empty, longer than 63 bytes, or holds a control character or `{DOLLAR_QUOTE}`"
)]
pub(crate) struct UnwritableName(String);

/// An object to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Object {
    /// A table.
    Table(TableName),
    /// A role, unquoted.
    Role(String),
    /// A publication, unquoted.
    Publication(String),
    /// A replication slot.
    Slot(String),
}

/// An object to create, and the SQL that creates it if it does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The object.
    pub object: Object,
    /// For psql; runs in its own transaction.
    pub sql: String,
}

impl InitPlan {
    /// The configured names; `role` is the role to create, if any.
    pub(crate) fn new(
        config: &Config,
        columns: ColumnNames,
        role: Option<&str>,
    ) -> Result<Self, UnwritableName> {
        let plan = Self {
            tables: config.outbox.tables.clone(),
            columns,
            role: role.map(str::to_owned),
            publication: config.source.publication.clone(),
            slot: config.source.slot.clone(),
            failover: false,
            stage: Stage::All,
        };
        let tables: Vec<_> = plan.tables.iter().map(ToString::to_string).collect();
        let columns = plan.columns().into_iter().filter_map(|(_, name)| name);
        let names = [&plan.publication, &plan.slot].into_iter().chain(&plan.role).chain(columns);
        let long = names.clone().find(|name| !(1..=63).contains(&name.len()));
        let odd = names
            .chain(&tables)
            .find(|name| name.contains(DOLLAR_QUOTE) || name.contains(|c: char| c.is_control()));
        match long.or(odd) {
            Some(name) => Err(UnwritableName(name.clone())),
            None => Ok(plan),
        }
    }

    /// Makes the slot a failover slot, which PostgreSQL supports since version 17.
    #[must_use]
    pub(crate) fn with_failover(mut self, failover: bool) -> Self {
        self.failover = failover;
        self
    }

    /// The same with these objects only.
    #[must_use]
    pub(crate) fn only(&self, stage: Stage) -> Self {
        Self { stage, ..self.clone() }
    }

    /// Whether the slot is a failover slot.
    pub(crate) fn failover(&self) -> bool {
        self.failover
    }

    /// The tables.
    pub(crate) fn tables(&self) -> &[TableName] {
        &self.tables
    }

    /// The publication's unquoted name.
    pub(crate) fn publication(&self) -> &str {
        &self.publication
    }

    /// The slot's name.
    pub(crate) fn slot(&self) -> &str {
        &self.slot
    }

    /// The objects to create, in the required order: a slot only sees publications that are older
    /// than itself.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let tables = self
            .tables
            .iter()
            .map(|table| Part { object: Object::Table(table.clone()), sql: self.schema(table) });
        let role = self
            .role
            .iter()
            .map(|role| Part { object: Object::Role(role.clone()), sql: role_sql(role) });
        let publication = Part {
            object: Object::Publication(self.publication.clone()),
            sql: self.publication_sql(),
        };
        let slot = Part {
            object: Object::Slot(self.slot.clone()),
            sql: slot_sql(&self.slot, self.failover),
        };
        let before_slot = tables.chain(role).chain([publication]);
        match self.stage {
            Stage::All => before_slot.chain([slot]).collect(),
            Stage::BeforeSlot => before_slot.collect(),
            Stage::Slot => vec![slot],
        }
    }

    /// All SQL, for psql. With default names it is the files, byte for byte.
    pub(crate) fn sql(&self) -> String {
        self.parts().into_iter().map(|part| part.sql).collect()
    }

    fn columns(&self) -> [(&'static str, Option<&String>); 7] {
        let columns = &self.columns;
        [
            ("id", columns.id.as_ref()),
            ("aggregate_type", columns.aggregate_type.as_ref()),
            ("aggregate_id", columns.aggregate_id.as_ref()),
            ("event_type", columns.event_type.as_ref()),
            ("payload", columns.payload.as_ref()),
            ("headers", columns.headers.as_ref()),
            ("created_at", columns.timestamp.as_ref()),
        ]
    }

    fn schema(&self, table: &TableName) -> String {
        let mut places = vec![(DEFAULT_TABLE.to_owned(), table.to_string())];
        for (default, name) in self.columns() {
            if let Some(name) = name.filter(|name| *name != default) {
                let quoted = escape_identifier(name);
                places.push((format!("\n    {default:<14} "), format!("\n    {quoted:<14} ")));
            }
        }
        put(SCHEMA, &places)
    }

    fn publication_sql(&self) -> String {
        let tables: Vec<_> = self.tables.iter().map(ToString::to_string).collect();
        let mut places = named("PUBLICATION walpost", &self.publication);
        if tables.is_empty() {
            // Logical messages are sent to any session that requests them.
            places.push((format!(" FOR TABLE {DEFAULT_TABLE}"), String::new()));
        }
        places.push((DEFAULT_TABLE.to_owned(), tables.join(", ")));
        put(PUBLICATION, &places)
    }
}

fn role_sql(role: &str) -> String {
    let mut places = named("ROLE walpost", role);
    places.extend(named("your_database  walpost", role));
    places.extend(named("\\password walpost", role));
    put(ROLE, &places)
}

fn slot_sql(slot: &str, failover: bool) -> String {
    // A slot name consists of letters, digits and underscores.
    let mut places = named("slot walpost", slot);
    if failover {
        places.push(("'pgoutput')".to_owned(), "'pgoutput', failover => true)".to_owned()));
    }
    put(SLOT, &places)
}

/// The place where `identifier` ends with the default name, and the one where the default name is a
/// string, each with its replacement.
fn named(identifier: &str, name: &str) -> Vec<(String, String)> {
    if name == DEFAULT_NAME {
        return Vec::new();
    }
    let before = identifier.strip_suffix(DEFAULT_NAME).unwrap_or(identifier);
    vec![
        (format!("'{DEFAULT_NAME}'"), escape_literal(name).trim_start().to_owned()),
        (identifier.to_owned(), format!("{before}{}", escape_identifier(name))),
    ]
}

/// Inserts the names at their places, in one pass: a name that looks like a place is not treated as
/// one.
fn put(template: &str, places: &[(String, String)]) -> String {
    let mut sql = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(next) = rest.chars().next() {
        let here = places.iter().find(|(place, _)| rest.starts_with(place.as_str()));
        if let Some((place, name)) = here {
            sql.push_str(name);
            rest = &rest[place.len()..];
        } else {
            sql.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    sql
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Flags, Setting};

    fn plan(
        settings: &[(Setting, &[&str])],
        toml: &str,
        role: Option<&str>,
    ) -> Result<InitPlan, UnwritableName> {
        let directory = tempfile::TempDir::new().unwrap();
        std::fs::write(directory.path().join("walpost.toml"), toml).unwrap();
        let flags = settings.iter().fold(Flags::default(), |flags, (setting, values)| {
            flags.with(*setting, values.iter().map(ToString::to_string))
        });
        let config = Config::load(&flags, &Environment::new([], directory.path())).unwrap();
        InitPlan::new(&config, config.outbox.columns.clone(), role)
    }

    #[test]
    fn with_default_names_the_sql_is_the_files_byte_for_byte() {
        let sql = plan(&[], "", Some("walpost")).unwrap().sql();
        assert_eq!(sql, [SCHEMA, ROLE, PUBLICATION, SLOT].concat());
    }

    #[test]
    fn without_a_role_the_sql_is_the_other_files() {
        let sql = plan(&[], "", None).unwrap().sql();
        assert_eq!(sql, [SCHEMA, PUBLICATION, SLOT].concat());
    }

    #[test]
    fn a_failover_slot_differs_only_in_failover() {
        let plan = plan(&[], "", None).unwrap();
        let (before, after) = (plan.clone().sql(), plan.with_failover(true).sql());
        assert_eq!(before.replace("'pgoutput')", "'pgoutput', failover => true)"), after);
        assert_ne!(before, after);
    }

    #[test]
    fn an_outbox_of_messages_has_a_publication_without_tables() {
        let toml = "[outbox]\ntable = []\nmessage_prefix = 'outbox'\n";
        let sql = plan(&[], toml, None).unwrap().sql();
        assert!(sql.contains("CREATE PUBLICATION walpost\n            WITH (publish"), "{sql}");
        assert!(!sql.contains("TABLE"), "{sql}");
    }

    #[test]
    fn every_default_name_is_replaced_by_the_configured_one() {
        let settings: &[(Setting, &[&str])] = &[
            (Setting::OutboxTable, &[r#""Sales dept"."Out""Box""#, "billing.outbox"]),
            (Setting::SourcePublication, &[r#"It's "mine""#]),
            (Setting::SourceSlot, &["slot_2"]),
        ];
        let plan = plan(settings, "", Some("Relay")).unwrap();
        let sql = plan.sql();
        for expected in [
            r#"CREATE TABLE IF NOT EXISTS "Sales dept"."Out""Box" ("#,
            "CREATE TABLE IF NOT EXISTS billing.outbox (",
            r#"CREATE PUBLICATION "It's ""mine""" FOR TABLE "Sales dept"."Out""Box", billing.outbox"#,
            r#"pubname OPERATOR(pg_catalog.=) 'It''s "mine"'"#,
            r#"CREATE ROLE "Relay" LOGIN REPLICATION;"#,
            "rolname OPERATOR(pg_catalog.=) 'Relay'",
            "pg_catalog.pg_create_logical_replication_slot('slot_2', 'pgoutput')",
            "pg_catalog.pg_drop_replication_slot('slot_2')",
            "slot_name OPERATOR(pg_catalog.=) 'slot_2'",
        ] {
            assert!(sql.contains(expected), "{expected} in\n{sql}");
        }
        for left in [
            "public.outbox",
            "'walpost'",
            "ROLE walpost",
            "PUBLICATION walpost",
            "password walpost",
            "database  walpost",
        ] {
            assert!(!sql.contains(left), "{left} in\n{sql}");
        }
    }

    #[test]
    fn the_configured_columns_are_created() {
        let toml = "[outbox.columns]\nid = 'Event Id'\npayload = 'body'\ntimestamp = 'at'\n";
        let sql = plan(&[], toml, None).unwrap().sql();
        for expected in [
            "\n    \"Event Id\"     pg_catalog.uuid",
            "\n    \"body\"         pg_catalog.jsonb",
            "\n    \"at\"           pg_catalog.timestamptz",
        ] {
            assert!(sql.contains(expected), "{expected} in\n{sql}");
        }
        assert!(!sql.contains("\n    payload") && !sql.contains("\n    created_at"), "{sql}");
    }

    #[test]
    fn a_name_that_could_inject_sql_is_rejected() {
        for name in ["a\nb", "$init$", "a$init$b"] {
            assert!(plan(&[(Setting::SourcePublication, &[name])], "", None).is_err(), "{name}");
        }
        assert!(plan(&[], "", Some("")).is_err());
        assert!(plan(&[], "", Some(&"a".repeat(64))).is_err());
    }
}
