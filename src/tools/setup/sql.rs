//! The SQL of `walpost init`: the files in `sql/`, with the default names replaced by the
//! configured ones.
//!
//! In a file, a default name occurs only as a name; the places are found by the words around them.
//! Nothing is executed here.

use postgres_protocol::escape::{escape_identifier, escape_literal};

use super::partition_by::{self, PartitionBy};
use crate::config::Config;
use crate::outbox::{ColumnNames, TableName};

const SCHEMA: &str = include_str!("../../../sql/01-schema.sql");
const ROLE: &str = include_str!("../../../sql/02-role.sql");
const PUBLICATION: &str = include_str!("../../../sql/03-publication.sql");
const SLOT: &str = include_str!("../../../sql/04-slot.sql");
const PUBLISH: &str = include_str!("../../../sql/publish.sql");

const DEFAULT_TABLE: &str = "public.outbox";
const DEFAULT_NAME: &str = "walpost";
/// The columns that the function inserts, in this order.
const PUBLISH_COLUMNS: &str = "(id, aggregate_type, aggregate_id, event_type, payload, headers)";
/// The dollar quote of the `DO` blocks and of the function.
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
    has_publish_function: bool,
    partition_by: Option<PartitionBy>,
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

/// An option of the table without a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} needs an outbox table, and outbox.table is empty: leave the option out, or configure a table"
)]
pub(crate) struct NoTable(&'static str);

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
    /// The function that inserts events, with its body as it should be.
    Function {
        /// Between the dollar quotes.
        body: String,
    },
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
    /// The text for psql, which runs in its own transaction.
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
            has_publish_function: false,
            partition_by: None,
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

    /// Creates the function `outbox.publish` too, which inserts into the first table.
    pub(crate) fn with_publish_function(mut self, wanted: bool) -> Result<Self, NoTable> {
        if wanted && self.tables.is_empty() {
            return Err(NoTable("--publish-function"));
        }
        self.has_publish_function = wanted;
        Ok(self)
    }

    /// Creates tables with partitions of this period.
    pub(crate) fn with_partitions(
        mut self,
        partition_by: Option<PartitionBy>,
    ) -> Result<Self, NoTable> {
        if partition_by.is_some() && self.tables.is_empty() {
            return Err(NoTable("--partition-by"));
        }
        self.partition_by = partition_by;
        Ok(self)
    }

    /// The period of the tables' partitions; `None`: they have none.
    pub(crate) fn partition_by(&self) -> Option<PartitionBy> {
        self.partition_by
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
        let function = self.tables.first().filter(|_| self.has_publish_function);
        let function = function.map(|table| {
            let sql = self.publish_function(table);
            Part { object: Object::Function { body: body(&sql) }, sql }
        });
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
        let before_slot = tables.chain(function).chain(role).chain([publication]);
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
        let literal = escape_literal(&table.regclass_text()).trim_start().to_owned();
        let mut places = vec![
            (format!("'{DEFAULT_TABLE}'"), literal),
            (DEFAULT_TABLE.to_owned(), table.to_string()),
        ];
        for (default, name) in self.columns() {
            if let Some(name) = name.filter(|name| *name != default) {
                let quoted = escape_identifier(name);
                places.push((format!("\n    {default:<14} "), format!("\n    {quoted:<14} ")));
            }
        }
        let Some(period) = self.partition_by else { return put(SCHEMA, &places) };
        let [id, time] = [(&self.columns.id, "id"), (&self.columns.timestamp, "created_at")].map(
            |(name, default)| match name.as_deref() {
                Some(name) if name != default => escape_identifier(name),
                _ => default.to_owned(),
            },
        );
        places.extend(period.places(&id, &time));
        put(partition_by::SCHEMA, &places)
    }

    fn publish_function(&self, table: &TableName) -> String {
        let literal = escape_literal(&table.regclass_text()).trim_start().to_owned();
        let mut places = vec![(format!("'{DEFAULT_TABLE}'"), literal)];
        places.push((DEFAULT_TABLE.to_owned(), table.to_string()));
        let columns = self.columns();
        let names = columns[..6].iter().map(|(default, name)| match name {
            Some(name) if name != default => escape_identifier(name),
            _ => (*default).to_owned(),
        });
        let list = format!("({})", names.collect::<Vec<_>>().join(", "));
        places.push((PUBLISH_COLUMNS.to_owned(), list));
        put(PUBLISH, &places)
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

/// The function's body in its SQL: the last text between two dollar quotes.
fn body(sql: &str) -> String {
    sql.rsplit(DOLLAR_QUOTE).nth(1).unwrap_or_default().to_owned()
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
    fn the_publish_function_follows_the_table_byte_for_byte() {
        let plan = plan(&[], "", None).unwrap().with_publish_function(true).unwrap();
        assert_eq!(plan.sql(), [SCHEMA, PUBLISH, PUBLICATION, SLOT].concat());
        let parts = plan.parts();
        let Object::Function { body } = &parts[1].object else { panic!("{:?}", parts[1].object) };
        assert!(body.starts_with("\nBEGIN") && body.ends_with("END\n"), "{body}");
        assert!(body.contains("INSERT INTO public.outbox (id, "), "{body}");
    }

    #[test]
    fn the_publish_function_inserts_into_the_configured_table_and_columns() {
        let toml = r#"
            [outbox]
            table = ["\"It's\".\"Out\"", "b.c"]
            [outbox.columns]
            id = "Event Id"
            payload = "body"
            "#;
        let plan = plan(&[], toml, None).unwrap().with_publish_function(true).unwrap();
        let sql = plan.sql();
        for expected in [
            r#"INSERT INTO "It's"."Out" ("Event Id", aggregate_type, aggregate_id, event_type, "body", headers)"#,
            r#"pg_catalog.to_regclass('"It''s"."Out"')"#,
            "RETURN publish.id;",
        ] {
            assert!(sql.contains(expected), "{expected} in\n{sql}");
        }
        assert!(!sql.contains(DEFAULT_TABLE), "{sql}");
    }

    #[test]
    fn an_outbox_of_messages_has_no_publish_function() {
        let toml = "[outbox]\ntable = []\nmessage_prefix = 'outbox'\n";
        assert!(plan(&[], toml, None).unwrap().with_publish_function(true).is_err());
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
            (Setting::OUTBOX_TABLE, &[r#""Sales dept"."Out""Box""#, "billing.outbox"]),
            (Setting::SOURCE_PUBLICATION, &[r#"It's "mine""#]),
            (Setting::SOURCE_SLOT, &["slot_2"]),
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
    fn a_partitioned_table_has_the_configured_names_and_period() {
        let by = |period, toml| {
            let plan = plan(&[], toml, None).unwrap();
            plan.with_partitions(Some(period)).unwrap().sql()
        };
        let default = by(PartitionBy::Day, "");
        assert_eq!(default, [partition_by::SCHEMA, PUBLICATION, SLOT].concat());
        let toml = r#"
            [outbox]
            table = "b.\"It's\""
            [outbox.columns]
            id = "Id"
            timestamp = "At"
            "#;
        let sql = by(PartitionBy::Hour, toml);
        for expected in [
            "CREATE TABLE IF NOT EXISTS b.\"It's\" (",
            "to_regclass('b.\"It''s\"')",
            "PRIMARY KEY (\"Id\", \"At\")\n) PARTITION BY RANGE (\"At\");",
            "'1 hour'",
            "date_trunc('hour'",
            "'YYYYMMDD_HH24MISS'",
        ] {
            assert!(sql.contains(expected), "{expected} in\n{sql}");
        }
        assert!(!sql.contains("outbox (") && !sql.contains("(created_at)"), "{sql}");
        assert!(by(PartitionBy::Month, "").contains("date_trunc('month'"));
    }

    #[test]
    fn a_name_that_could_inject_sql_is_rejected() {
        for name in ["a\nb", "$init$", "a$init$b"] {
            assert!(plan(&[(Setting::SOURCE_PUBLICATION, &[name])], "", None).is_err(), "{name}");
        }
        assert!(plan(&[], "", Some("")).is_err());
        assert!(plan(&[], "", Some(&"a".repeat(64))).is_err());
    }
}
