//! The statements that publish.
//!
//! Their texts depend on the configuration alone and not on the number of events, so that drivers
//! can keep them prepared. All parameters are `text`, or `text[]` with one element per event.

use crate::columns::{Column, quoted};

/// The statements for one event, and for several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Statements {
    pub(crate) one: Statement,
    pub(crate) many: Statement,
}

/// A statement with parameters.
#[derive(Clone, Debug, Default)]
#[allow(dead_code, reason = "a driver reads the text or the pieces")]
pub(crate) struct Statement {
    /// With the parameters as `$1`, `$2`, ….
    pub(crate) text: String,
    /// What stands before, between and after the parameters.
    pub(crate) pieces: Vec<String>,
}

impl Statement {
    fn new(pieces: Vec<String>) -> Self {
        let mut text = String::new();
        for (number, piece) in pieces.iter().enumerate() {
            if number > 0 {
                text.push('$');
                text.push_str(&number.to_string());
            }
            text.push_str(piece);
        }
        Self { text, pieces }
    }
}

impl Statements {
    /// Inserts into a table; not where a row has the same value in the column `unique`, if there
    /// is one.
    pub(crate) fn rows(
        schema: &str,
        table: &str,
        columns: &[Column],
        unique: Option<&str>,
    ) -> Self {
        let names: Vec<_> = columns.iter().map(|column| quoted(&column.name)).collect();
        let into =
            format!("INSERT INTO {}.{} ({})", quoted(schema), quoted(table), names.join(", "));
        let conflict = unique
            .map(|column| format!(" ON CONFLICT ({}) DO NOTHING", quoted(column)))
            .unwrap_or_default();

        let mut one = vec![format!("{into} VALUES (")];
        let mut selected = Vec::new();
        for (column, number) in columns.iter().zip(1..) {
            let (before, after) = column.r#type.conversion();
            let comma = if number == 1 { "" } else { ", " };
            append(&mut one, &format!("{comma}{before}"));
            one.push(after.clone().into_owned());
            selected.push(format!("{before}e.c{number}{after}"));
        }
        append(&mut one, &format!("){conflict}"));

        let mut many = vec![format!("{into} SELECT {} FROM ", selected.join(", "))];
        elements(columns.len(), &mut many);
        append(&mut many, &conflict);
        Self { one: Statement::new(one), many: Statement::new(many) }
    }

    /// Emits logical messages, with a prefix and a content each.
    ///
    /// They are counted, so that the result is one row.
    pub(crate) fn messages() -> Self {
        let emit = "SELECT pg_catalog.count(pg_catalog.pg_logical_emit_message(true, ";
        let one = [emit, ", ", "))"].map(str::to_owned);
        let mut many = vec![format!("{emit}e.c1, e.c2)) FROM ")];
        elements(2, &mut many);
        Self { one: Statement::new(one.into()), many: Statement::new(many) }
    }
}

/// The elements of the parameters, in their order, as columns `c1`, `c2`, … of `e`.
fn elements(parameters: usize, pieces: &mut Vec<String>) {
    append(pieces, "ROWS FROM (");
    let mut names = Vec::new();
    for number in 1..=parameters {
        let comma = if number == 1 { "" } else { ", " };
        append(pieces, &format!("{comma}pg_catalog.unnest("));
        pieces.push("::pg_catalog.text[])".to_owned());
        names.push(format!("c{number}"));
    }
    append(pieces, &format!(") AS e({})", names.join(", ")));
}

/// Appends to the last piece.
fn append(pieces: &mut [String], text: &str) {
    if let Some(last) = pieces.last_mut() {
        last.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{ColumnType, Field, usual};

    #[test]
    fn the_usual_table_has_these_statements() {
        let statements = Statements::rows("public", "outbox", &usual(), None);
        let into = r#"INSERT INTO "public"."outbox" ("id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers")"#;
        let values =
            "VALUES ($1::pg_catalog.uuid, $2, $3, $4, $5::pg_catalog.jsonb, $6::pg_catalog.jsonb)";
        assert_eq!(statements.one.text, format!("{into} {values}"));
        assert!(statements.many.text.starts_with(&format!(
            "{into} SELECT e.c1::pg_catalog.uuid, e.c2, e.c3, e.c4, e.c5::pg_catalog.jsonb, e.c6::pg_catalog.jsonb \
             FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), "
        )));
    }

    #[test]
    fn messages_have_these_statements() {
        let Statements { one, many } = Statements::messages();
        let emit = "SELECT pg_catalog.count(pg_catalog.pg_logical_emit_message(true, ";
        assert_eq!(one.text, format!("{emit}$1, $2))"));
        assert_eq!(
            many.text,
            format!(
                "{emit}e.c1, e.c2)) FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), \
                 pg_catalog.unnest($2::pg_catalog.text[])) AS e(c1, c2)"
            )
        );
    }

    #[test]
    fn every_name_is_quoted() {
        let columns = [Column {
            field: Field::AggregateType,
            name: "a\"b".to_owned(),
            r#type: ColumnType::Other { schema: "S\"".to_owned(), name: "kind".to_owned() },
        }];
        let statements = Statements::rows("my\"schema", "Out\"box", &columns, Some("i\"d"));
        assert_eq!(
            statements.one.text,
            r#"INSERT INTO "my""schema"."Out""box" ("a""b") VALUES ($1::"S"""."kind") ON CONFLICT ("i""d") DO NOTHING"#
        );
    }
}
