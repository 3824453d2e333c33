//! SQL about rows of an outbox table, which is called `o`.

use postgres_protocol::escape::escape_identifier;

/// A value of any type as the output plugin sends it: by the type's output function, or NULL. A cast
/// to text would strip the padding of `character`, and may run a function of the type's owner. A
/// composite value of NULLs alone `IS NULL`, and is sent.
pub(crate) fn in_text_form(value: &str) -> String {
    format!("CASE WHEN {value} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {value}) END")
}

/// The type of a column `a` of the table `c` behind its domains, whether it is built in, and a role that
/// is neither a superuser, nor the table's owner, nor this user, and owns that type or a domain: code of
/// that role runs when a value gets the type. To be joined as `type (oid, is_built_in, stranger)`.
pub(crate) const COLUMN_TYPE: &str = "LATERAL (
    WITH RECURSIVE chain (oid, kind, base, owner, depth) AS (
        SELECT t.oid, t.typtype, t.typbasetype, t.typowner, 0
          FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid
         UNION ALL
        SELECT t.oid, t.typtype, t.typbasetype, t.typowner, chain.depth + 1
          FROM chain JOIN pg_catalog.pg_type t ON t.oid = chain.base
         WHERE chain.kind = 'd' AND chain.depth < 32)
    -- From FirstNormalObjectId on, objects are those of users.
    SELECT pg_catalog.max(chain.oid) FILTER (WHERE kind <> 'd'),
           coalesce(pg_catalog.max(chain.oid) FILTER (WHERE kind <> 'd') < 16384::pg_catalog.oid, false),
           pg_catalog.max(r.rolname::pg_catalog.text)
               FILTER (WHERE chain.oid >= 16384::pg_catalog.oid AND NOT r.rolsuper
                         AND r.oid <> c.relowner AND r.rolname <> current_user)
      FROM chain JOIN pg_catalog.pg_roles r ON r.oid = chain.owner)";

/// The condition that an id is none of the first parameter's.
pub(in crate::source) fn is_not_one_of(id: &str) -> String {
    format!(
        "NOT EXISTS (SELECT FROM pg_catalog.unnest($1::pg_catalog.text[]) AS w (id)
                      WHERE w.id = {})",
        in_text_form(id)
    )
}

/// The time in a column of the row `o`, with its zone: without one it is UTC.
pub(crate) fn in_utc(column: &str, is_without_zone: bool) -> String {
    let column = escape_identifier(column);
    if is_without_zone { format!("(o.{column} AT TIME ZONE 'UTC')") } else { format!("o.{column}") }
}

/// The condition for rows of transactions from an id on. A row has the lower 32 bits of the id, and
/// keeps them when it is frozen; the others are those of the highest possible id, so that no row is
/// taken for an older one than it is.
pub(in crate::source) fn from_xid(from: u64, xmax: u64) -> String {
    const EPOCH: u64 = 1 << 32;
    let (epoch, low) = (xmax / EPOCH * EPOCH, xmax % EPOCH);
    let xmin = "o.xmin::pg_catalog.text::pg_catalog.int8";
    format!("({xmin} + CASE WHEN {xmin} > {low} THEN {epoch} - {EPOCH} ELSE {epoch} END) >= {from}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_the_last_epoch_are_lower() {
        let text = from_xid(7, (3 << 32) + 500);
        assert!(
            text.contains("> 500 THEN 12884901888 - 4294967296 ELSE 12884901888 END"),
            "{text}"
        );
        assert!(text.ends_with(">= 7"), "{text}");
    }
}
