//! The SQL of a replay: which rows, in which order, and the statement that inserts some of them again.

use tokio_postgres::types::ToSql;

use super::error::RowReplayError;
use super::replayed_table::{Column, ReplayedTable};
use crate::source::in_utc;

/// Which events are published again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Rows with these ids.
    Ids(Vec<String>),
    /// Rows with these ids, in this order: that of their positions in Kafka.
    Published(Vec<String>),
    /// Rows that were written at or after `since` and before `until`, in PostgreSQL's notation.
    Times {
        /// `None`: from the first on.
        since: Option<String>,
        /// `None`: until now.
        until: Option<String>,
    },
}

/// Which events of a selection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Filter {
    /// Only rows with that aggregate type.
    pub(crate) aggregate_type: Option<String>,
    /// Only rows of that aggregate.
    pub(crate) aggregate_id: Option<String>,
}

/// How rows are inserted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    /// The rows get new ids, and the old ones stay.
    pub(crate) new_ids: bool,
    /// The headers say that it is a replay.
    pub(crate) mark: bool,
}

/// Member of the headers that marks a replayed event.
const MARK: &str = "replayed_at";

/// Column of the chosen rows with their order. No column of a table is called that.
const ORDER: &str = "\"walpost replay order\"";

/// A statement with its parameters, which are texts or arrays of texts.
#[derive(Default)]
pub(super) struct Sql {
    pub(super) text: String,
    parameters: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Sql {
    pub(super) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.parameters.iter().map(|one| one.as_ref() as &(dyn ToSql + Sync)).collect()
    }

    /// Adds a parameter; returns its place in the text.
    fn text(&mut self, value: Option<String>) -> String {
        self.parameters.push(Box::new(value));
        format!("${}::pg_catalog.text", self.parameters.len())
    }

    fn texts(&mut self, values: Vec<String>) -> String {
        self.parameters.push(Box::new(values));
        format!("${}::pg_catalog.text[]", self.parameters.len())
    }
}

/// A column's time with its zone.
fn shown(time: &Column) -> String {
    in_utc(&time.name, time.is_without_zone())
}

/// The rows of `o` that the filter and the times choose.
fn condition(
    table: &ReplayedTable,
    selection: &Selection,
    filter: &Filter,
    sql: &mut Sql,
) -> Result<String, RowReplayError> {
    let mut parts = vec![format!("o.{} IS NOT NULL", table.id.quoted())];
    if let Selection::Times { since, until } = selection {
        let time = table.time.as_ref().ok_or_else(|| RowReplayError::NoTime(table.name.clone()))?;
        let mut bound = |value: &Option<String>| {
            let value = sql.text(value.clone());
            // On the column's own type, so that an index serves.
            if time.is_without_zone() {
                format!("({value}::pg_catalog.timestamptz AT TIME ZONE 'UTC')")
            } else {
                format!("{value}::pg_catalog.timestamptz")
            }
        };
        let (since, until, name) = (bound(since), bound(until), time.quoted());
        parts.push(format!("o.{name} >= {since} AND o.{name} < {until}"));
    }
    let filters = [
        (&filter.aggregate_type, &table.aggregate_type, "the aggregates' types"),
        (&filter.aggregate_id, &table.aggregate_id, "the aggregates' ids"),
    ];
    for (value, column, what) in filters {
        let Some(value) = value else { continue };
        let Some(column) = column else {
            let (table, what) = (table.name.clone(), what.to_owned());
            return Err(RowReplayError::NoColumn { table, what });
        };
        let value = sql.text(Some(value.clone()));
        parts.push(format!("{} = {value}", column.text_form()));
    }
    Ok(parts.join(" AND "))
}

/// The ids with their places, each once, and the condition that a row `o` has the id `w.id`.
fn wanted(table: &ReplayedTable, ids: Vec<String>, sql: &mut Sql) -> (String, String) {
    let ids = sql.texts(ids);
    // Two texts can be one value of a built-in type.
    let value =
        if table.id.is_built_in { format!("w.id::{}", table.id.kind) } else { "w.id".to_owned() };
    let wanted = format!(
        "(SELECT {value} AS id, pg_catalog.min(w.n) AS n
            FROM pg_catalog.unnest({ids}) WITH ORDINALITY AS w (id, n) GROUP BY 1)"
    );
    let id = table.id.quoted();
    let own = if table.id.is_built_in { format!("o.{id}") } else { table.id.text_form() };
    (wanted, format!("{own} = w.id"))
}

/// What a query of the chosen rows begins with, from FROM on.
fn chosen(
    table: &ReplayedTable,
    selection: &Selection,
    filter: &Filter,
    sql: &mut Sql,
) -> Result<String, RowReplayError> {
    let name = &table.name;
    Ok(match selection {
        Selection::Ids(ids) | Selection::Published(ids) => {
            let (wanted, is_wanted) = wanted(table, ids.clone(), sql);
            let chosen = condition(table, selection, filter, sql)?;
            format!("FROM {wanted} AS w JOIN {name} AS o ON {is_wanted} WHERE {chosen}")
        }
        Selection::Times { .. } => {
            format!("FROM {name} AS o WHERE {}", condition(table, selection, filter, sql)?)
        }
    })
}

/// Counts the chosen rows, and selects the times of the first and the last one.
pub(super) fn count(
    table: &ReplayedTable,
    selection: &Selection,
    filter: &Filter,
) -> Result<Sql, RowReplayError> {
    let mut sql = Sql::default();
    let chosen = chosen(table, selection, filter, &mut sql)?;
    let times = table.time.as_ref().map(shown).map_or_else(
        || "NULL::pg_catalog.text, NULL::pg_catalog.text".to_owned(),
        |time| {
            format!(
                "pg_catalog.min({time})::pg_catalog.text, pg_catalog.max({time})::pg_catalog.text"
            )
        },
    );
    sql.text = format!("SELECT pg_catalog.count(*), {times} {chosen}");
    Ok(sql)
}

/// Declares a cursor over the ids of the chosen rows and their times, in the order in which they are
/// inserted again. Held: what is inserted again must not be chosen again, whatever triggers change.
pub(super) fn list(
    table: &ReplayedTable,
    selection: &Selection,
    filter: &Filter,
    cursor: &str,
) -> Result<Sql, RowReplayError> {
    let mut sql = Sql::default();
    let chosen = chosen(table, selection, filter, &mut sql)?;
    let time = table.time.as_ref().map(shown);
    let shown = time.clone().unwrap_or_else(|| "NULL".to_owned());
    let id = table.id.quoted();
    let order = table.order.iter().map(|order| format!("o.{}", order.quoted()));
    let time = time.map(|time| format!("{time} NULLS FIRST"));
    let (time, last) = match selection {
        Selection::Ids(_) => (time, "w.n".to_owned()),
        Selection::Published(_) => (None, "w.n".to_owned()),
        Selection::Times { .. } => (time, format!("o.{id}")),
    };
    let order = order.chain(time).chain([last]).collect::<Vec<_>>().join(", ");
    sql.text = format!(
        "DECLARE {cursor} NO SCROLL CURSOR WITH HOLD FOR
         SELECT {}, {shown}::pg_catalog.text {chosen} ORDER BY {order}",
        table.id.text_form()
    );
    Ok(sql)
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
    if manner.new_ids && !table.columns.contains(&table.id) {
        return Err(RowReplayError::NoNewIds(table.name.clone()));
    }
    for column in &table.columns {
        let name = column.quoted();
        let is_marked = manner.mark && table.headers.as_ref() == Some(column);
        let is_new = manner.new_ids && *column == table.id;
        if let Some(role) = column.stranger.clone().filter(|_| is_marked || is_new) {
            let (table, column) = (table.name.clone(), column.name.clone());
            return Err(RowReplayError::StrangeType { table, column, role });
        }
        let value = if is_new {
            match column {
                _ if column.has_default || column.is_identity => continue,
                _ if column.kind == "uuid" => "pg_catalog.gen_random_uuid()".to_owned(),
                _ => return Err(RowReplayError::NoNewIds(table.name.clone())),
            }
        } else if manner.new_ids && column.is_identity {
            continue;
        } else if is_marked && !column.is_built_in {
            return Err(RowReplayError::NoHeaders(table.name.clone()));
        } else if is_marked {
            let text = column.text_form();
            let (json, kind) = (format!("NULLIF({text}, '')::pg_catalog.jsonb"), &column.kind);
            // Anything else is undeliverable anyway.
            format!(
                "CASE WHEN coalesce(pg_catalog.jsonb_typeof({json}), 'null') IN ('object', 'null')
                 THEN (coalesce(NULLIF({json}, 'null'), '{{}}') ||
                       pg_catalog.jsonb_build_object('{MARK}', pg_catalog.now()))
                      ::pg_catalog.text::{kind}
                 ELSE o.{name} END"
            )
        } else {
            format!("o.{name}")
        };
        names.push(name);
        values.push(value);
    }
    Ok((names, values))
}

/// The statement that inserts the rows with these ids again, in that order. It returns how many it has
/// taken, and how many it has inserted.
pub(super) fn insert(
    table: &ReplayedTable,
    selection: &Selection,
    filter: &Filter,
    manner: Manner,
    ids: Vec<String>,
) -> Result<Sql, RowReplayError> {
    let mut sql = Sql::default();
    let (names, values) = inserted(table, manner)?;
    let (wanted, is_wanted) = wanted(table, ids, &mut sql);
    let name = &table.name;
    // An update may have changed it meanwhile.
    let chosen = condition(table, selection, filter, &mut sql)?;
    let taken = if manner.new_ids {
        format!(
            "SELECT o.*, w.n AS {ORDER} FROM {name} AS o, wanted AS w WHERE {is_wanted} AND {chosen}"
        )
    } else {
        format!(
            "DELETE FROM {name} AS o USING wanted AS w WHERE {is_wanted} AND {chosen}
             RETURNING o.*, w.n AS {ORDER}"
        )
    };
    sql.text = format!(
        "WITH wanted AS {wanted},
         taken AS ({taken}),
         added AS (
             INSERT INTO {name} ({names}) OVERRIDING SYSTEM VALUE
             SELECT {values} FROM taken AS o ORDER BY o.{ORDER} RETURNING 1)
         SELECT (SELECT pg_catalog.count(*) FROM taken), (SELECT pg_catalog.count(*) FROM added)",
        names = names.join(", "),
        values = values.join(", "),
    );
    Ok(sql)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::TableName;
    use crate::source::TableShape;

    fn table() -> ReplayedTable {
        let column = |name| Column::named(name, "text");
        let time = Column::named("at", "timestamp with time zone");
        ReplayedTable {
            name: TableName { schema: "public".into(), name: "outbox".into() },
            oid: 7,
            shape: TableShape { file: None, root: None, names: Vec::new(), columns: None },
            columns: vec![Column::named("id", "uuid"), column("Key"), time.clone(), column("h")],
            id: Column::named("id", "uuid"),
            time: Some(time),
            order: None,
            headers: Some(column("h")),
            aggregate_type: None,
            aggregate_id: Some(column("Key")),
            warnings: Vec::new(),
        }
    }

    const TIMES: Selection = Selection::Times { since: None, until: None };
    const AS_BEFORE: Manner = Manner { new_ids: false, mark: false };

    fn words(sql: &Sql) -> String {
        sql.text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn inserting(table: &ReplayedTable, manner: Manner) -> Result<String, RowReplayError> {
        let ids = vec!["a".to_owned()];
        insert(table, &TIMES, &Filter::default(), manner, ids).map(|sql| words(&sql))
    }

    #[test]
    fn rows_are_listed_by_time_and_id_or_as_they_are_named() {
        let filter = Filter { aggregate_id: Some("k".into()), ..Filter::default() };
        let sql = list(&table(), &TIMES, &filter, "c").expect("a statement");
        let text = words(&sql);
        for part in [
            r#"THEN pg_catalog.format('%s', o."id") END, o."at"::pg_catalog.text FROM public.outbox AS o"#,
            r#"o."at" >= $1::pg_catalog.text::pg_catalog.timestamptz"#,
            r#"THEN pg_catalog.format('%s', o."Key") END = $3::pg_catalog.text"#,
            r#"ORDER BY o."at" NULLS FIRST, o."id""#,
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert_eq!(sql.parameters().len(), 3);
        let order = Some(Column::named("number", "bigint"));
        let untimed = ReplayedTable { time: None, order, ..table() };
        let ids = Selection::Ids(vec!["b".into()]);
        let sql = list(&untimed, &ids, &Filter::default(), "c").expect("a statement");
        assert!(words(&sql).ends_with(r#"IS NOT NULL ORDER BY o."number", w.n"#), "{}", sql.text);
        let filter = Filter { aggregate_type: Some("t".into()), ..Filter::default() };
        let refused = list(&table(), &ids, &filter, "c");
        assert!(matches!(refused, Err(RowReplayError::NoColumn { .. })));
        let refused = list(&untimed, &TIMES, &Filter::default(), "c");
        assert!(matches!(refused, Err(RowReplayError::NoTime(_))));
    }

    #[test]
    fn times_without_a_zone_are_utc() {
        let mut table = table();
        table.time = Some(Column::named("at", "timestamp without time zone"));
        let sql = count(&table, &TIMES, &Filter::default()).expect("a statement");
        let text = words(&sql);
        assert!(text.contains(r#"min((o."at" AT TIME ZONE 'UTC'))"#), "{text}");
        assert!(
            text.contains("$1::pg_catalog.text::pg_catalog.timestamptz AT TIME ZONE"),
            "{text}"
        );
    }

    #[test]
    fn rows_are_deleted_and_inserted_in_the_order_of_the_list() {
        let text = inserting(&table(), AS_BEFORE).expect("a statement");
        for part in [
            r#"DELETE FROM public.outbox AS o USING wanted AS w WHERE o."id" = w.id AND o."id" IS"#,
            r#"("id", "Key", "at", "h") OVERRIDING SYSTEM VALUE SELECT o."id", o."Key", o."at", o."h""#,
            r#"ORDER BY o."walpost replay order" RETURNING 1"#,
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn no_cast_or_check_of_a_type_of_others_is_used() {
        let mut table = table();
        let foreign = |column: &mut Column| {
            column.kind = "shop.kind".into();
            column.is_built_in = false;
        };
        table.columns.iter_mut().for_each(foreign);
        table.headers.iter_mut().for_each(foreign);
        table.aggregate_id.iter_mut().for_each(foreign);
        foreign(&mut table.id);
        let filter = Filter { aggregate_id: Some("k".into()), ..Filter::default() };
        let ids = || vec!["a".to_owned()];
        for statement in [
            list(&table, &Selection::Ids(ids()), &filter, "c"),
            count(&table, &Selection::Ids(ids()), &filter),
            insert(&table, &TIMES, &filter, AS_BEFORE, ids()),
        ] {
            let text = words(&statement.expect("a statement"));
            assert!(!text.contains("shop.kind"), "{text}");
            assert!(!text.contains(r#"o."id"::"#) && !text.contains(r#"o."Key"::"#), "{text}");
        }
        let mark = Manner { new_ids: false, mark: true };
        assert!(matches!(inserting(&table, mark), Err(RowReplayError::NoHeaders(_))));
        // A domain of a third role over a built-in type.
        let mut domain = super::tests::table();
        domain.columns[3].stranger = Some("mallory".into());
        domain.headers = Some(domain.columns[3].clone());
        assert!(inserting(&domain, AS_BEFORE).is_ok());
        assert!(matches!(inserting(&domain, mark), Err(RowReplayError::StrangeType { .. })));
    }

    #[test]
    fn ids_are_made_anew_where_they_can_be() {
        let manner = Manner { new_ids: true, mark: false };
        let text = inserting(&table(), manner).expect("a statement");
        assert!(
            text.contains("pg_catalog.gen_random_uuid()") && !text.contains("DELETE"),
            "{text}"
        );
        let mut with_default = table();
        with_default.columns[0].has_default = true;
        with_default.id.has_default = true;
        with_default.columns[1].is_identity = true;
        let text = inserting(&with_default, manner).expect("a statement");
        assert!(text.contains(r#"INSERT INTO public.outbox ("at", "h")"#), "{text}");
        let mut text_ids = table();
        text_ids.columns[0].kind = "text".into();
        text_ids.id.kind = "text".into();
        assert!(matches!(inserting(&text_ids, manner), Err(RowReplayError::NoNewIds(_))));
        let mut generated = table();
        generated.columns.remove(0);
        assert!(matches!(inserting(&generated, manner), Err(RowReplayError::NoNewIds(_))));
    }

    #[test]
    fn a_mark_needs_headers() {
        let mark = Manner { new_ids: false, mark: true };
        assert!(inserting(&table(), mark).expect("a statement").contains("replayed_at"));
        let without = ReplayedTable { headers: None, ..table() };
        assert!(matches!(inserting(&without, mark), Err(RowReplayError::NoHeaders(_))));
    }
}
