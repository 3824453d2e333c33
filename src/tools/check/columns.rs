//! Checks the outbox's columns: those that an event needs, their types, and whether they may be
//! NULL.

use tokio_postgres::{Client, Row};

use super::publication::relist;
use crate::config::{self, Config, nearest};
use crate::findings::{Finding, Findings, Level};
use crate::outbox::{Role, TableName, identifier_in_quotes};
use crate::record::Profile;
use crate::source::{self, SourceConfig};

const SUBJECT: &str = "columns";

/// A table's columns, with domains resolved to their base types.
const COLUMNS: &str = "
    SELECT a.attname::pg_catalog.text, NOT a.attnotnull AND NOT t.typnotnull, a.atthasdef,
           b.typname::pg_catalog.text, b.typcategory::pg_catalog.text,
           coalesce(m.published AND a.attgenerated = '' AND a.attnum <> ALL (m.columns), false),
           a.attgenerated <> ''
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
      JOIN pg_catalog.pg_type b ON b.oid = {base_type}
      LEFT JOIN {membership} ON true
     WHERE n.nspname::pg_catalog.text = $1 AND c.relname::pg_catalog.text = $2
     ORDER BY a.attnum";

/// A column of the table.
struct Column {
    name: String,
    nullable: bool,
    has_default: bool,
    kind: Kind,
    unsent: Option<Unsent>,
}

/// A column's type, with domains resolved.
struct Kind {
    name: String,
    /// `pg_type.typcategory`.
    category: String,
}

/// Why a column may not be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unsent {
    /// The publication's column list omits it.
    LeftOut,
    Generated,
}

impl Column {
    fn of(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let kind = Kind { name: row.try_get(3)?, category: row.try_get(4)? };
        Ok(Self {
            name: row.try_get(0)?,
            nullable: row.try_get(1)?,
            has_default: row.try_get(2)?,
            kind,
            unsent: match (row.try_get(5)?, row.try_get(6)?) {
                (true, _) => Some(Unsent::LeftOut),
                (false, true) => Some(Unsent::Generated),
                (false, false) => None,
            },
        })
    }
}

/// A table, and how it is configured.
struct Looked<'a> {
    config: &'a Config,
    source: &'a SourceConfig,
    profile: &'a Profile,
    version: i32,
    table: &'a TableName,
    columns: Vec<Column>,
}

/// Checks each table that exists.
pub(crate) async fn check(
    client: &Client,
    config: &Config,
    source: &SourceConfig,
    version: i32,
    tables: &[TableName],
    findings: &mut Findings,
) {
    let Ok(profile) = config::profile(config) else {
        return;
    };
    let query = COLUMNS
        .replace("{base_type}", source::BASE_TYPE)
        .replace("{membership}", &source::membership(version, "$3"));
    for table in tables {
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&table.schema, &table.name, &source.publication];
        let rows = client.query(&query, &parameters).await;
        let columns = rows.and_then(|rows| rows.iter().map(Column::of).collect());
        let Some(columns) = findings.answer((SUBJECT, "columns"), columns) else {
            return;
        };
        let looked = Looked { config, source, profile: &profile, version, table, columns };
        let before = findings.count(Level::Error);
        looked.check(findings);
        let one = SourceConfig { tables: vec![table.clone()], ..source.clone() };
        let sound = findings.count(Level::Error) == before;
        if let Some(finding) = remainder(client, config, &profile, &one).await {
            // A problem without its own finding is reported as `run` would report it.
            if sound && !findings.has_error_of("publication") && !findings.has_error_of("table") {
                findings.add(finding);
            }
        } else if sound {
            let text = format!("{table} has all columns that an event needs");
            findings.add(Finding::ok((SUBJECT, "columns"), text));
        }
    }
}

/// The error that `run` itself would report for the table.
async fn remainder(
    client: &Client,
    config: &Config,
    profile: &Profile,
    source: &SourceConfig,
) -> Option<Finding> {
    let error = |text: String| {
        Finding::error((SUBJECT, "columns"), text).why("`run` exits with this error")
    };
    let SourceConfig { publication, tables, typed, .. } = source;
    let found = match source::published_tables(client, publication, tables, *typed).await {
        Ok(found) => found,
        Err(refused) => return Some(error(refused.to_string())),
    };
    let mut outbox = config::outbox(config, profile);
    let refused = found.iter().find_map(|table| outbox.expect(table).err());
    refused.map(|refused| error(refused.to_string()))
}

impl Looked<'_> {
    fn check(&self, findings: &mut Findings) {
        let names = config::columns(self.config, self.profile);
        let needs = self.profile.needs();
        let mut used: Vec<&Column> = Vec::new();
        for role in Role::ALL {
            if !needs.used.contains(role) && !names.is_required(role, needs) {
                continue;
            }
            let looked_for: Vec<&str> = names.looked_for(role).collect();
            match looked_for.iter().find_map(|name| self.column(name)) {
                Some(column) => {
                    findings.extend(self.unsent(column));
                    findings.extend(self.of_type(column, role));
                    findings.extend(self.nullable(column, role));
                    used.push(column);
                }
                None if names.is_required(role, needs) => {
                    findings.add(self.missing(role.name(), looked_for.first().copied(), role));
                }
                None => {}
            }
        }
        let outbox_may_lack =
            matches!(self.profile, Profile::Debezium(debezium) if debezium.placed_optional());
        for name in self.profile.placed() {
            match self.column(&name) {
                Some(column) => {
                    findings.extend(self.unsent(column));
                    used.push(column);
                }
                None if outbox_may_lack => {}
                None => findings.add(self.missing_placed(&name)),
            }
        }
        if matches!(self.profile, Profile::Debezium(_)) {
            self.defaults(&used, findings);
        }
    }

    fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The advice to name another column, if one has a similar name.
    fn meant(&self, name: &str) -> Option<String> {
        let columns = self.columns.iter().map(|column| column.name.as_str());
        let meant = identifier_in_quotes(nearest(name, columns)?);
        Some(format!("did you mean {meant}? Then name that"))
    }

    fn missing(&self, part: &str, name: Option<&str>, role: Role) -> Finding {
        let kind = match role {
            Role::Id => "pg_catalog.uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid()",
            Role::Payload | Role::Headers => "pg_catalog.jsonb",
            Role::Timestamp => "pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now()",
            _ => "pg_catalog.text NOT NULL",
        };
        let Self { table, .. } = self;
        let column = identifier_in_quotes(name.unwrap_or(part));
        let text = format!("{table} has no column for `{part}`: {column} is missing");
        let finding = Finding::error((SUBJECT, "column_missing"), text);
        // One that the configuration names, not one that is looked for by itself.
        let named = name.filter(|name| *name != part);
        if let Some(advice) = named.and_then(|name| self.meant(name)) {
            return finding.why(format!("outbox.columns.{part} names this column")).advice(advice);
        }
        finding
            .why(format!(
                "the record needs this field; if the table has it under another name, set \
                 outbox.columns.{part} to that name instead"
            ))
            .sql(format!("ALTER TABLE {table} ADD COLUMN {column} {kind};"))
    }

    fn missing_placed(&self, name: &str) -> Finding {
        let Self { table, .. } = self;
        let column = identifier_in_quotes(name);
        let text = format!("{table} has no column {column}");
        let finding = Finding::error((SUBJECT, "column_missing"), text)
            .why("record.topic, record.key or record.place names this column");
        match self.meant(name) {
            Some(advice) => finding.advice(advice),
            None => {
                finding.sql(format!("ALTER TABLE {table} ADD COLUMN {column} pg_catalog.text;"))
            }
        }
    }

    /// A column that exists but is not sent.
    fn unsent(&self, column: &Column) -> Option<Finding> {
        let Self { table, .. } = self;
        let name = identifier_in_quotes(&column.name);
        if column.unsent == Some(Unsent::LeftOut) {
            let quoted = identifier_in_quotes(&self.source.publication);
            let text =
                format!("the column list of publication {quoted} omits column {name} of {table}");
            let finding = Finding::error((SUBJECT, "column_left_out"), text)
                .why("PostgreSQL does not send this column, and an event needs it");
            return Some(finding.sql(relist(&quoted, table)));
        }
        if column.unsent == Some(Unsent::Generated) && self.version < 180_000 {
            let text = format!("{name} of {table} is a generated column");
            let finding = Finding::error((SUBJECT, "column_generated"), text)
                .why("before PostgreSQL 18, logical replication does not send generated columns");
            return Some(
                finding.sql(format!("ALTER TABLE {table} ALTER COLUMN {name} DROP EXPRESSION;")),
            );
        }
        None
    }

    fn of_type(&self, column: &Column, role: Role) -> Option<Finding> {
        let Self { table, .. } = self;
        let name = identifier_in_quotes(&column.name);
        let finding = |code, text| Finding::error((SUBJECT, code), text);
        if let Profile::Debezium(debezium) = self.profile {
            let is_refused = role == Role::Payload && debezium.takes_bytes_only();
            return (is_refused && column.kind.name != "bytea").then(|| {
                let text = format!("column {name} of {table} is of type {}", column.kind.name);
                finding("column_type", text)
                    .why(
                        "with the profile debezium-binary an event is undeliverable if its \
                         payload is not bytea, so every event would be",
                    )
                    .advice(
                        "set record.profile to debezium-binary-json if Debezium's converter has a \
                         JsonConverter as its delegate, otherwise to debezium or debezium-string-json",
                    )
            });
        }
        let unexpected = match (role, column.kind.name.as_str()) {
            (Role::AggregateId, "bytea") => Some((
                "the key of a record is its text, such as \\x00ff10",
                "if consumers expect another key, have it in a column of type text or uuid",
            )),
            (Role::Payload, "oid") => Some((
                "an event has this number, not the large object that it may refer to",
                "store the payload itself in the row: jsonb, text or bytea",
            )),
            _ => None,
        };
        if let Some((why, advice)) = unexpected {
            let text = format!("column {name} of {table} is of type {}", column.kind.name);
            let finding = Finding::warning((SUBJECT, "column_type"), text);
            return Some(finding.why(why).advice(advice));
        }
        let (wanted, cast) = match role {
            Role::Headers if !is_json(column) => ("jsonb", format!("pg_catalog.to_jsonb({name})")),
            Role::Timestamp
                if !matches!(column.kind.name.as_str(), "timestamptz" | "timestamp" | "date") =>
            {
                ("timestamptz", format!("{name}::pg_catalog.text::pg_catalog.timestamptz"))
            }
            _ => return None,
        };
        let text = format!(
            "column {name} of {table} is of type {} and is used as `{}`",
            column.kind.name,
            role.name()
        );
        let finding = finding("column_type", text)
            .why(format!("it must be {wanted}; otherwise every event is undeliverable"));
        let drop = if column.has_default {
            format!("ALTER COLUMN {name} DROP DEFAULT, ")
        } else {
            String::new()
        };
        Some(finding.sql(format!(
            "ALTER TABLE {table} {drop}ALTER COLUMN {name} TYPE pg_catalog.{wanted} USING {cast};"
        )))
    }

    /// Columns from which topic, key or `id` are built should never be NULL.
    fn nullable(&self, column: &Column, role: Role) -> Option<Finding> {
        let (in_topic, in_key) = match self.profile {
            Profile::Walpost(record) => {
                (record.topic.roles().any(|it| it == role), record.key.roles().any(|it| it == role))
            }
            Profile::Debezium(_) => (role == Role::AggregateType, false),
        };
        let why = match role {
            _ if in_topic => {
                "a row with NULL in it has no topic and is undeliverable: it halts `run`, unless \
                 poison.missing_field says otherwise"
            }
            _ if in_key && !self.config.record.null_keys => {
                "a row with NULL in it has no key and is undeliverable: it halts `run`, unless \
                 poison.missing_field says otherwise (record.null_keys = \"allow\" sends a null \
                 key)"
            }
            Role::Id => "consumers cannot recognise a repeated event that has no id",
            Role::AggregateId if matches!(self.profile, Profile::Debezium(_)) => {
                "a row with NULL in it has no key, so its order is not kept"
            }
            _ => return None,
        };
        let Self { table, .. } = self;
        let name = identifier_in_quotes(&column.name);
        column.nullable.then(|| {
            Finding::warning(
                (SUBJECT, "column_nullable"),
                format!("column {name} of {table} may be NULL"),
            )
            .why(why)
            .sql(format!("ALTER TABLE {table} ALTER COLUMN {name} SET NOT NULL;"))
        })
    }

    /// Debezium writes a column's DEFAULT if NULL was committed.
    fn defaults(&self, used: &[&Column], findings: &mut Findings) {
        let Self { table, .. } = self;
        let mut told: Vec<&str> = Vec::new();
        for column in used
            .iter()
            .filter(|column| column.nullable && column.has_default && column.unsent.is_none())
        {
            if told.contains(&column.name.as_str()) {
                continue;
            }
            told.push(&column.name);
            let name = identifier_in_quotes(&column.name);
            let text = format!("column {name} of {table} may be NULL and has a DEFAULT");
            findings.add(
                Finding::warning((SUBJECT, "column_default"), text)
                    .why(
                        "for a committed NULL, Debezium writes the default and walpost writes NULL",
                    )
                    .sql(format!("ALTER TABLE {table} ALTER COLUMN {name} SET NOT NULL;")),
            );
        }
    }
}

/// Whether a column can contain the text of a JSON object.
fn is_json(column: &Column) -> bool {
    matches!(column.kind.name.as_str(), "json" | "jsonb") || column.kind.category == "S"
}
