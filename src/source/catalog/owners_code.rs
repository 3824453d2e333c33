//! Code of a table's owner that runs with the rights of whoever writes rows: an operator who is a
//! superuser should know.

use tokio_postgres::Client;

use crate::outbox::{TableName, identifier_text};

/// Whether this user is a superuser, and not the table's owner; the triggers of the table and of its
/// partitions that fire for these events in this session; what else calls functions that are not built
/// in for an inserted row.
const CODE: &str = "
    WITH root AS (SELECT pg_catalog.to_regclass($1) AS oid),
         tables AS (SELECT oid::pg_catalog.oid FROM root
                     UNION SELECT t.relid::pg_catalog.oid FROM root, pg_catalog.pg_partition_tree(root.oid) t)
    SELECT coalesce((SELECT r.rolsuper AND r.oid <> c.relowner
              FROM pg_catalog.pg_class c JOIN root ON root.oid = c.oid, pg_catalog.pg_roles r
             WHERE r.rolname = current_user), false),
           ARRAY(SELECT DISTINCT g.tgname::pg_catalog.text FROM pg_catalog.pg_trigger g JOIN tables t ON t.oid = g.tgrelid
                  WHERE NOT g.tgisinternal AND g.tgtype::pg_catalog.int4 & $2::pg_catalog.int4 <> 0
                    AND g.tgenabled = ANY (
                        CASE WHEN pg_catalog.current_setting('session_replication_role') = 'replica'
                             THEN '{R,A}' ELSE '{O,A}' END::pg_catalog.\"char\"[])
                  ORDER BY 1),
           $2::pg_catalog.int4 & 4 <> 0 AND EXISTS (
               SELECT FROM tables t
                 JOIN (SELECT 'pg_catalog.pg_constraint'::pg_catalog.regclass AS class, oid, conrelid AS relation
                         FROM pg_catalog.pg_constraint
                        UNION ALL SELECT 'pg_catalog.pg_attrdef'::pg_catalog.regclass, oid, adrelid
                         FROM pg_catalog.pg_attrdef
                        UNION ALL SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, indexrelid, indrelid
                         FROM pg_catalog.pg_index) AS part ON part.relation = t.oid
                 JOIN pg_catalog.pg_depend d
                   ON d.classid = part.class AND d.objid = part.oid
                  AND d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass)";

/// What is done with rows, by the bits of `pg_trigger.tgtype` (`TRIGGER_TYPE_INSERT`,
/// `TRIGGER_TYPE_DELETE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowEvents {
    /// Rows are inserted.
    Insert = 4,
    /// Rows are deleted.
    Delete = 8,
    /// Rows are deleted and inserted.
    Both = 12,
}

/// Code that runs for the rows that a command writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OwnersCode {
    /// The triggers that fire, a line each.
    pub(crate) triggers: Vec<String>,
    /// That it runs with the rights of a superuser who does not own the table.
    pub(crate) warning: Option<String>,
}

impl OwnersCode {
    /// Reads it for a table.
    pub(crate) async fn read(
        client: &Client,
        name: &TableName,
        events: RowEvents,
    ) -> Result<Self, tokio_postgres::Error> {
        let row = client.query_one(CODE, &[&name.regclass_text(), &(events as i32)]).await?;
        let (is_others, triggers, has_functions): (bool, Vec<String>, bool) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let what = match (triggers.is_empty(), has_functions) {
            (true, true) => Some("functions of its constraints, defaults and indexes"),
            (false, false) => Some("triggers"),
            (false, true) => {
                Some("triggers, and functions of its constraints, defaults and indexes,")
            }
            (true, false) => None,
        };
        let warning = what.filter(|_| is_others).map(|what| {
            format!(
                "{name}: its {what} run with the rights of this superuser; connect as its owner"
            )
        });
        let fires = |trigger: &String| {
            let trigger = identifier_text(trigger);
            format!("{name}: trigger {trigger} fires, with search_path = pg_catalog, pg_temp")
        };
        Ok(Self { triggers: triggers.iter().map(fires).collect(), warning })
    }
}
