//! The SQL of a replay: which rows, and the statement that inserts them again.

use postgres_protocol::escape::escape_identifier;

use super::error::RowReplayError;
use super::replayed_table::ReplayedTable;

/// Which events are published again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Those with these ids.
    Ids(Vec<String>),
    /// Those that were written at or after `since` and before `until`, in PostgreSQL's notation.
    Times {
        /// `None`: from the first on.
        since: Option<String>,
        /// `None`: until now.
        until: Option<String>,
    },
}

/// Member of the headers that marks a replayed event.
const MARK: &str = "replayed_at";

/// The rows of a table that are chosen, as the condition of a query on `o`. Its parameters are the
/// ids as one array, or the two times, as text.
pub(super) fn condition(
    table: &ReplayedTable,
    selection: &Selection,
) -> Result<String, RowReplayError> {
    match selection {
        Selection::Ids(_) => {
            let (id, kind) = (escape_identifier(&table.id.name), &table.id.kind);
            Ok(format!("o.{id} = ANY ($1::pg_catalog.text[]::{kind}[])"))
        }
        Selection::Times { .. } => {
            let Some(time) = &table.time else {
                return Err(RowReplayError::NoTime(table.name.clone()));
            };
            let (name, kind) = (escape_identifier(&time.name), &time.kind);
            Ok(format!(
                "o.{name} >= $1::pg_catalog.text::{kind} AND o.{name} < $2::pg_catalog.text::{kind}"
            ))
        }
    }
}

/// How a statement inserts rows again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manner {
    /// The rows get new ids, and the old ones stay.
    pub(super) new_ids: bool,
    /// The headers say that it is a replay.
    pub(super) mark: bool,
}

/// The columns that an INSERT names, and the expressions over `o` that it takes.
fn inserted(
    table: &ReplayedTable,
    manner: Manner,
) -> Result<(Vec<String>, Vec<String>), RowReplayError> {
    let (mut names, mut values) = (Vec::new(), Vec::new());
    if manner.mark && table.headers.is_none() {
        return Err(RowReplayError::NoHeaders(table.name.clone()));
    }
    for column in &table.columns {
        let name = escape_identifier(&column.name);
        let value = if manner.new_ids && *column == table.id {
            match column {
                _ if column.has_default => continue,
                _ if column.kind == "uuid" => "pg_catalog.gen_random_uuid()".to_owned(),
                _ => return Err(RowReplayError::NoNewIds(table.name.clone())),
            }
        } else if manner.mark && table.headers.as_ref() == Some(column) {
            let kind = &column.kind;
            format!(
                "(coalesce(o.{name}::pg_catalog.text::pg_catalog.jsonb, '{{}}') || \
                 pg_catalog.jsonb_build_object('{MARK}', pg_catalog.now()))::pg_catalog.text::{kind}"
            )
        } else {
            format!("o.{name}")
        };
        names.push(name);
        values.push(value);
    }
    Ok((names, values))
}

/// The statement that inserts up to `limit` chosen rows again, all if there is none, in their order.
/// It returns the number of rows, and the key of the last one as text; no row if none is left.
///
/// With `follows`, two further parameters are the key of the last row of the statement before:
/// inserted rows keep their key, so those of a former statement are not chosen again. Rows with the
/// same key are never divided.
pub(super) fn statement(
    table: &ReplayedTable,
    selection: &Selection,
    manner: Manner,
    limit: Option<u32>,
    follows: bool,
) -> Result<String, RowReplayError> {
    let chosen = condition(table, selection)?;
    let (names, values) = inserted(table, manner)?;
    let key: Vec<_> = table.time.iter().chain([&table.id]).collect();
    let over = |row: &str| {
        let key = key.iter().map(|column| format!("{row}.{}", escape_identifier(&column.name)));
        key.collect::<Vec<_>>().join(", ")
    };
    let parameters = match selection {
        Selection::Ids(_) => 1,
        Selection::Times { .. } => 2,
    };
    let after = if follows {
        let values = key.iter().enumerate().map(|(index, column)| {
            format!("${}::pg_catalog.text::{}", parameters + 1 + index, column.kind)
        });
        format!(" AND ({}) > ({})", over("o"), values.collect::<Vec<_>>().join(", "))
    } else {
        String::new()
    };
    let limit = limit.map_or_else(String::new, |limit| format!(" LIMIT {limit}"));
    let (name, key_of_o, key_of_last) = (&table.name, over("o"), over("last_row"));
    let descending = over("chosen").replace(", ", " DESC, ");
    let range = format!("{chosen}{after} AND ({key_of_o}) <= ({key_of_last})");
    let again = if manner.new_ids {
        format!("SELECT o.* FROM {name} AS o, last_row WHERE {range}")
    } else {
        format!("DELETE FROM {name} AS o USING last_row WHERE {range} RETURNING o.*")
    };
    let text = key
        .iter()
        .map(|column| format!("last_row.{}::pg_catalog.text", escape_identifier(&column.name)));
    Ok(format!(
        "WITH chosen AS MATERIALIZED (
             SELECT {key_of_o} FROM {name} AS o WHERE {chosen}{after} ORDER BY {key_of_o}{limit}),
         last_row AS MATERIALIZED (SELECT * FROM chosen ORDER BY {descending} DESC LIMIT 1),
         again AS ({again}),
         added AS (
             INSERT INTO {name} ({names}) OVERRIDING SYSTEM VALUE
             SELECT {values} FROM again AS o ORDER BY {key_of_o} RETURNING 1)
         SELECT (SELECT pg_catalog.count(*) FROM added), ARRAY[{text}] FROM last_row",
        names = names.join(", "),
        values = values.join(", "),
        text = text.collect::<Vec<_>>().join(", "),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::replayed_table::Column;
    use super::*;
    use crate::outbox::TableName;

    fn table() -> ReplayedTable {
        let column = |name| Column::named(name, "text");
        let time = Column::named("at", "timestamp with time zone");
        ReplayedTable {
            name: TableName { schema: "public".into(), name: "outbox".into() },
            columns: vec![Column::named("id", "uuid"), column("Key"), time.clone(), column("h")],
            id: Column::named("id", "uuid"),
            time: Some(time),
            headers: Some(column("h")),
            triggers: Vec::new(),
        }
    }

    const TIMES: Selection = Selection::Times { since: None, until: None };
    const AS_BEFORE: Manner = Manner { new_ids: false, mark: false };

    fn words(sql: &str) -> String {
        sql.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rows_are_deleted_and_inserted_in_the_order_of_their_keys() {
        let sql = statement(&table(), &TIMES, AS_BEFORE, Some(10), true).map(|sql| words(&sql));
        let sql = sql.expect("a statement");
        for part in [
            r#"SELECT o."at", o."id" FROM "public"."outbox""#,
            r#"(o."at", o."id") > ($3::pg_catalog.text::timestamp with time zone, $4::pg_catalog.text::uuid)"#,
            r#"ORDER BY o."at", o."id" LIMIT 10"#,
            r#"ORDER BY chosen."at" DESC, chosen."id" DESC LIMIT 1"#,
            r#"(o."at", o."id") <= (last_row."at", last_row."id") RETURNING o.*"#,
            r#"("id", "Key", "at", "h") OVERRIDING SYSTEM VALUE SELECT o."id", o."Key", o."at", o."h""#,
        ] {
            // The table's name is quoted only where it must be.
            let part = part.replace(r#""public"."outbox""#, "public.outbox");
            assert!(sql.contains(&part), "{part}\n{sql}");
        }
        let first = statement(&table(), &TIMES, AS_BEFORE, None, false).expect("a statement");
        assert!(!first.contains("$3") && !words(&first).contains(r#""id" LIMIT"#), "{first}");
    }

    #[test]
    fn ids_are_made_anew_where_they_can_be() {
        let manner = Manner { new_ids: true, mark: false };
        let made = |table: &ReplayedTable| statement(table, &TIMES, manner, None, false);
        let sql = made(&table()).expect("a statement");
        assert!(sql.contains("pg_catalog.gen_random_uuid()") && !sql.contains("DELETE"), "{sql}");
        let mut with_default = table();
        with_default.columns[0].has_default = true;
        with_default.id.has_default = true;
        let sql = made(&with_default).expect("a statement");
        assert!(sql.contains(r#"INSERT INTO public.outbox ("Key", "at", "h")"#), "{sql}");
        let mut text = table();
        text.columns[0].kind = "text".into();
        text.id.kind = "text".into();
        assert!(matches!(made(&text), Err(RowReplayError::NoNewIds(_))));
    }

    #[test]
    fn what_a_table_lacks_is_an_error() {
        let without = ReplayedTable { headers: None, time: None, ..table() };
        let mark = Manner { new_ids: false, mark: true };
        let ids = Selection::Ids(Vec::new());
        let refused = statement(&without, &ids, mark, None, false);
        assert!(matches!(refused, Err(RowReplayError::NoHeaders(_))));
        let refused = statement(&without, &TIMES, AS_BEFORE, None, false);
        assert!(matches!(refused, Err(RowReplayError::NoTime(_))));
        let sql = statement(&without, &ids, AS_BEFORE, None, false).expect("a statement");
        assert!(words(&sql).contains(r#"= ANY ($1::pg_catalog.text[]::uuid[]) ORDER BY o."id""#));
    }
}
