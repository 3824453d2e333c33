//! The oracle: checks what was delivered, and is deliberately simple.
//!
//! Each committed row must be delivered, and no rolled-back row; for each key, first deliveries
//! must be in commit order. [`Verdict::assert_ok`] allows duplicates (at least once),
//! [`Verdict::assert_exact`] does not. The oracle looks at the `id` header and the key of each
//! record, not at payloads.
//!
//! Order is checked within a topic: rows of one key that are routed to different topics have no
//! order. A key in two partitions of one topic has no order either, and is reported separately.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::consumer::Consumed;

/// How many of each kind a report shows.
const SHOWN: usize = 5;

/// A row of the outbox: its id as text and the key of its record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub id: String,
    /// Without a key there is no order to keep.
    pub key: Option<String>,
}

// By value, so that a test may write numbers and texts as they are.
#[allow(clippy::needless_pass_by_value)]
impl Row {
    pub fn new(id: impl ToString, key: impl ToString) -> Self {
        Self { id: id.to_string(), key: Some(key.to_string()) }
    }

    pub fn unkeyed(id: impl ToString) -> Self {
        Self { id: id.to_string(), key: None }
    }
}

/// A record's partition and offset, and the row that it claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub id: String,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
}

impl Location {
    fn of(record: &Consumed) -> Self {
        Self {
            id: record.header("id").unwrap_or("(no id)").to_owned(),
            topic: record.topic.clone(),
            partition: record.partition,
            offset: record.offset,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}/{}@{}", self.id, self.topic, self.partition, self.offset)
    }
}

/// What differs from what was committed. All empty is exactly once.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// How many rows were expected and how many records seen.
    pub expected: usize,
    pub consumed: usize,
    /// Committed, not delivered.
    pub missing: Vec<Row>,
    /// Delivered, rolled back.
    pub rolled_back: Vec<Location>,
    /// Delivered, of no known row.
    pub unexpected: Vec<Location>,
    /// Under another key than the row's.
    pub wrong_key: Vec<Location>,
    /// Each repeat of a row after its first occurrence.
    pub duplicates: Vec<Location>,
    /// First occurrences that came after one that was committed later (its id is the second).
    pub out_of_order: Vec<(Location, String)>,
    /// In another partition than an earlier record of the same key and topic.
    pub scattered: Vec<Location>,
}

/// The latest row seen of a key, and where the key lives.
struct KeyState {
    latest: usize,
    partition: i32,
}

/// Checks records against the committed rows, which are in commit order per key.
///
/// The records of a partition must be in their order, as every reader of
/// the bed hands them out.
pub fn judge<'a>(
    committed: &[Row],
    rolled_back: impl IntoIterator<Item = &'a str>,
    consumed: &[Consumed],
) -> Verdict {
    let rolled_back: HashSet<&str> = rolled_back.into_iter().collect();
    let mut position: HashMap<&str, usize> = HashMap::with_capacity(committed.len());
    for (at, row) in committed.iter().enumerate() {
        let before = position.insert(&row.id, at);
        assert!(before.is_none(), "the id {} appears twice among the committed rows", row.id);
        let both = rolled_back.contains(row.id.as_str());
        assert!(!both, "the id {} is said to be committed and rolled back", row.id);
    }
    let mut seen = vec![false; committed.len()];
    let mut keys: HashMap<(&str, &str), KeyState> = HashMap::new();
    let mut verdict =
        Verdict { expected: committed.len(), consumed: consumed.len(), ..Verdict::default() };
    for record in consumed {
        let id = record.header("id");
        let Some(at) = id.and_then(|id| position.get(id).copied()) else {
            let known = id.is_some_and(|id| rolled_back.contains(id));
            let list = if known { &mut verdict.rolled_back } else { &mut verdict.unexpected };
            list.push(Location::of(record));
            continue;
        };
        let row = &committed[at];
        if row.key.as_deref().map(str::as_bytes) != record.key.as_deref() {
            verdict.wrong_key.push(Location::of(record));
        }
        let first = !std::mem::replace(&mut seen[at], true);
        if !first {
            verdict.duplicates.push(Location::of(record));
        }
        let Some(key) = row.key.as_deref() else {
            continue;
        };
        let state = keys
            .entry((&record.topic, key))
            .or_insert(KeyState { latest: at, partition: record.partition });
        if state.partition != record.partition {
            verdict.scattered.push(Location::of(record));
        } else if first && at < state.latest {
            let later = committed[state.latest].id.clone();
            verdict.out_of_order.push((Location::of(record), later));
        }
        state.latest = state.latest.max(at);
    }
    let unseen = committed.iter().zip(&seen).filter(|(_, seen)| !**seen);
    verdict.missing = unseen.map(|(row, _)| row.clone()).collect();
    verdict
}

impl Verdict {
    /// Whether at least once and per-key order held.
    pub fn is_ok(&self) -> bool {
        self.missing.is_empty()
            && self.rolled_back.is_empty()
            && self.unexpected.is_empty()
            && self.wrong_key.is_empty()
            && self.out_of_order.is_empty()
            && self.scattered.is_empty()
    }

    /// Whether, beyond that, nothing came twice.
    pub fn is_exact(&self) -> bool {
        self.is_ok() && self.duplicates.is_empty()
    }

    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(self.is_ok(), "{self}");
    }

    #[track_caller]
    pub fn assert_exact(&self) {
        assert!(self.is_exact(), "{self}");
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows committed, {} records seen", self.expected, self.consumed)?;
        let row = |row: &Row| match &row.key {
            Some(key) => format!("{} (key {key})", row.id),
            None => row.id.clone(),
        };
        let order = |(place, later): &(Location, String)| format!("{place}, after {later}");
        list(f, "missing", &self.missing, row)?;
        list(f, "rolled back, yet there", &self.rolled_back, Location::to_string)?;
        list(f, "of no known row", &self.unexpected, Location::to_string)?;
        list(f, "under a wrong key", &self.wrong_key, Location::to_string)?;
        list(f, "out of order", &self.out_of_order, order)?;
        list(f, "in another partition than their key", &self.scattered, Location::to_string)?;
        list(f, "repeated", &self.duplicates, Location::to_string)
    }
}

fn list<T>(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    all: &[T],
    show: impl Fn(&T) -> String,
) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    write!(f, "\n  {} {what}:", all.len())?;
    for one in all.iter().take(SHOWN) {
        write!(f, "\n    {}", show(one))?;
    }
    if all.len() > SHOWN {
        write!(f, "\n    and {} more", all.len() - SHOWN)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str, key: &str, partition: i32, offset: i64) -> Consumed {
        Consumed {
            topic: "t".to_owned(),
            partition,
            offset,
            key: Some(key.into()),
            value: None,
            headers: vec![("id".to_owned(), Some(id.into()))],
            timestamp_ms: None,
        }
    }

    /// Rows 1 to 4, of the keys a, b, a, b.
    fn committed() -> Vec<Row> {
        [(1, "a"), (2, "b"), (3, "a"), (4, "b")].map(|(id, key)| Row::new(id, key)).into()
    }

    fn judged(records: &[(&str, &str)]) -> Verdict {
        let records: Vec<_> =
            records.iter().zip(0..).map(|((id, key), offset)| record(id, key, 0, offset)).collect();
        judge(&committed(), ["9"], &records)
    }

    #[test]
    fn order_across_keys_is_not_checked() {
        judged(&[("2", "b"), ("4", "b"), ("1", "a"), ("3", "a")]).assert_exact();
    }

    #[test]
    fn replayed_records_are_ok_but_not_exact() {
        let runs = [("1", "a"), ("2", "b"), ("3", "a"), ("1", "a"), ("3", "a"), ("4", "b")];
        let verdict = judged(&runs);
        verdict.assert_ok();
        assert!(!verdict.is_exact());
        assert_eq!(verdict.duplicates.len(), 2);
    }

    #[test]
    fn missing_row_is_reported() {
        let verdict = judged(&[("1", "a"), ("2", "b"), ("4", "b")]);
        assert!(!verdict.is_ok());
        assert_eq!(verdict.missing, [Row::new(3, "a")]);
    }

    #[test]
    fn rolled_back_row_is_reported() {
        let all = [("1", "a"), ("2", "b"), ("9", "a"), ("3", "a"), ("4", "b")];
        let verdict = judged(&all);
        assert!(!verdict.is_ok());
        assert_eq!(verdict.rolled_back[0].offset, 2);
    }

    #[test]
    fn record_without_a_row_is_reported() {
        let all = [("1", "a"), ("2", "b"), ("3", "a"), ("4", "b"), ("77", "a")];
        let verdict = judged(&all);
        assert!(!verdict.is_ok());
        assert_eq!(verdict.unexpected[0].id, "77");
    }

    #[test]
    fn first_delivery_after_a_later_row_is_reported() {
        let verdict = judged(&[("3", "a"), ("1", "a"), ("2", "b"), ("4", "b")]);
        assert!(!verdict.is_ok());
        assert_eq!(verdict.out_of_order[0].0.id, "1");
        assert_eq!(verdict.out_of_order[0].1, "3");
        assert!(verdict.to_string().contains("1 at t/0@1, after 3"), "{verdict}");
    }

    #[test]
    fn gap_filled_by_a_replay_is_out_of_order() {
        // 1 came late, with the second run: its first occurrence is after 3.
        let runs = [("3", "a"), ("2", "b"), ("4", "b"), ("1", "a"), ("3", "a")];
        assert_eq!(judged(&runs).out_of_order.len(), 1);
    }

    #[test]
    fn wrong_key_is_reported() {
        let verdict = judged(&[("1", "a"), ("2", "a"), ("3", "a"), ("4", "b")]);
        assert!(!verdict.is_ok());
        assert_eq!(verdict.wrong_key[0].id, "2");
    }

    #[test]
    fn key_in_two_partitions_is_reported() {
        let rows = [Row::new(1, "a"), Row::new(2, "a")];
        let records = [record("1", "a", 0, 0), record("2", "a", 1, 0)];
        let verdict = judge(&rows, [], &records);
        assert!(!verdict.is_ok());
        assert_eq!(verdict.scattered[0].id, "2");
    }

    #[test]
    fn a_million_rows_are_verified() {
        let rows: Vec<_> = (0..1_000_000).map(|id| Row::new(id, id % 1000)).collect();
        let records: Vec<_> = (0..1_000_000)
            .map(|id: i64| record(&id.to_string(), &(id % 1000).to_string(), 0, id))
            .collect();
        judge(&rows, [], &records).assert_exact();
    }
}
