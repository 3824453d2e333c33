//! Writes the backlog to drain.

use rdkafka::Message as _;
use rdkafka::message::BorrowedMessage;

use crate::conditions::{Conditions, OtherWrites};
use crate::fixture::Fixture;
use crate::other_writes::OtherTable;

/// In what transactions the rows were committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    OneRowTransactions,
    OneTransaction,
}

/// So many keys take turns.
const KEYS: u64 = 1000;

/// What a payload has beside its text.
const AROUND_TEXT: u32 = 30;

/// PostgreSQL compresses a row of about 2 KB; shorter texts may repeat.
const LONGEST_REPETITION: u32 = 1000;

const COLUMNS: &str = "aggregate_type, aggregate_id, event_type, payload";

impl Shape {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneRowTransactions => "one-row transactions",
            Self::OneTransaction => "one transaction",
        }
    }

    /// Commits that many rows behind the slot `base`, and what belongs to them of the other table.
    pub(crate) async fn write(
        self,
        fixture: &Fixture,
        conditions: &Conditions,
        other: Option<&OtherTable>,
        rows: u64,
    ) {
        match self {
            Self::OneRowTransactions => write_rows(fixture, conditions, other, rows).await,
            Self::OneTransaction => write_one(fixture, conditions, other, rows).await,
        }
    }
}

async fn write_one(
    fixture: &Fixture,
    conditions: &Conditions,
    other: Option<&OtherTable>,
    rows: u64,
) {
    let row = row(conditions);
    let insert = format!(
        "INSERT INTO public.outbox ({COLUMNS}) SELECT {row} FROM generate_series(1, {rows}) AS i"
    );
    match other {
        Some(other) if other.how == OtherWrites::Interleaved => {
            let beside = other.write_small(fixture, other.rows(rows));
            tokio::join!(fixture.execute(&insert), beside);
        }
        Some(other) => {
            other.write_lumps(fixture, rows).await;
            fixture.execute(&insert).await;
        }
        None => fixture.execute(&insert).await,
    }
}

async fn write_rows(
    fixture: &Fixture,
    conditions: &Conditions,
    other: Option<&OtherTable>,
    rows: u64,
) {
    match other {
        Some(other) if other.how == OtherWrites::Lumps => {
            let (lumps, size) = other.lumps(rows);
            for number in 0..lumps {
                other.write_lump(fixture, size).await;
                let range = (rows * number / lumps + 1, rows * (number + 1) / lumps);
                write_events(fixture, conditions, None, range).await;
            }
        }
        Some(other) if other.how == OtherWrites::LumpsFirst => {
            other.write_lumps(fixture, rows).await;
            write_events(fixture, conditions, None, (1, rows)).await;
        }
        interleaved => write_events(fixture, conditions, interleaved, (1, rows)).await,
    }
}

/// Commits the rows from the first to the last, each in a transaction of its own, and after each
/// what belongs to it of the other table.
pub(crate) async fn write_events(
    fixture: &Fixture,
    conditions: &Conditions,
    between: Option<&OtherTable>,
    (first, last): (u64, u64),
) {
    let (row, other) = (row(conditions), between.map(OtherTable::after_event).unwrap_or_default());
    fixture
        .execute(&format!(
            "CREATE OR REPLACE PROCEDURE write_rows(first int8, last int8) LANGUAGE plpgsql AS $$ \
             BEGIN SET synchronous_commit = off; \
             FOR i IN first..last LOOP INSERT INTO public.outbox ({COLUMNS}) VALUES ({row}); COMMIT; \
             {other} END LOOP; \
             END $$"
        ))
        .await;
    // Two sessions write at once; who checks the order has to know which rows are whose.
    let middle = first - 1 + (last + 1 - first) / 2;
    let (first, second) = (
        format!("CALL write_rows({first}, {middle})"),
        format!("CALL write_rows({}, {last})", middle + 1),
    );
    tokio::join!(fixture.execute(&first), fixture.execute(&second));
}

/// The values of the row `i`. `KEYS` is in it, and [`number`] reads it again.
fn row(conditions: &Conditions) -> String {
    let text = text(conditions, AROUND_TEXT, "i");
    let aggregate_type = aggregate_type(conditions, "i");
    format!(
        "{aggregate_type}, (i % 1000)::text, 'placed', \
         jsonb_build_object('i', i, 'text', {text})"
    )
}

/// SQL for a text that fills a payload up to its size, of the row with that number.
pub(crate) fn text(conditions: &Conditions, around: u32, number: &str) -> String {
    let length = conditions.payload_bytes - around;
    if conditions.payload_bytes <= LONGEST_REPETITION {
        return format!("repeat('x', {length})");
    }
    // The same in each run, and another part of it in each row.
    let mut random = fastrand::Rng::with_seed(1);
    let all: String = (0..u64::from(length) + KEYS).map(|_| random.alphanumeric()).collect();
    format!("substr('{all}', 1 + ({number} % {KEYS})::int, {length})")
}

/// SQL for the aggregate type, which chooses the topic, of the row with that number.
pub(crate) fn aggregate_type(conditions: &Conditions, number: &str) -> String {
    match conditions.topics {
        1 => "'order'".to_owned(),
        topics => format!("'t' || ({number} % {topics})"),
    }
}

/// What of a backlog has come: rows of each key in order, none twice.
pub(crate) struct Arrivals {
    rows: u64,
    pub(crate) count: u64,
    /// What was wrong first.
    pub(crate) fault: Option<String>,
    /// The last row of each key, for each of the two sessions that wrote.
    last: Vec<u64>,
}

impl Arrivals {
    pub(crate) fn of(rows: u64) -> Self {
        let last = vec![0; 2 * usize::try_from(KEYS).expect("a few")];
        Self { rows, count: 0, fault: None, last }
    }

    /// One record more. With as many of them as rows, and no fault, none is missing.
    pub(crate) fn take(&mut self, record: &BorrowedMessage<'_>) {
        self.count += 1;
        let (key, row) = (record.key().and_then(digits), record.payload().and_then(number));
        let (Some(key), Some(row)) = (key, row) else {
            return self.note(format!("not of the backlog: {record:?}"));
        };
        if key != row % KEYS || !(1..=self.rows).contains(&row) {
            return self.note(format!("row {row} has the key {key}"));
        }
        let session = u64::from(row > self.rows / 2);
        let at = usize::try_from(session * KEYS + key).expect("a few");
        if row <= self.last[at] {
            self.note(format!("row {row} came behind row {} of its key", self.last[at]));
        }
        self.last[at] = row;
    }

    fn note(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
    }
}

/// A row's number, from its payload.
fn number(payload: &[u8]) -> Option<u64> {
    let behind = payload.strip_prefix(br#"{"i": "#)?;
    digits(behind.split(|byte| *byte == b',').next()?)
}

fn digits(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
