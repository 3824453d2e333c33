//! SQL about rows of an outbox table, which is called `o`.

use postgres_protocol::escape::escape_identifier;

/// A value as the output plugin sends it, or NULL; a cast would strip the padding of `character`.
pub(super) fn in_text_form(value: &str) -> String {
    format!("CASE WHEN {value} IS NOT NULL THEN pg_catalog.format('%s', {value}) END")
}

/// The condition that an id is none of the first parameter's.
pub(super) fn is_not_one_of(id: &str) -> String {
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
pub(super) fn from_xid(from: u64, xmax: u64) -> String {
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
