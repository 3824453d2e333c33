//! Writes the backlog to drain: rows with a payload of 200 bytes.

use rdkafka::Message as _;
use rdkafka::message::BorrowedMessage;

use crate::fixture::Fixture;

/// In what transactions the rows were committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    OneRowTransactions,
    OneTransaction,
}

/// So many keys take turns.
const KEYS: u64 = 1000;

/// `KEYS` is in it, and [`number`] reads it again.
const ROW: &str = "'order', (i % 1000)::text, 'placed', \
     jsonb_build_object('i', i, 'text', repeat('x', 170))";

impl Shape {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneRowTransactions => "one-row transactions",
            Self::OneTransaction => "one transaction",
        }
    }

    /// Commits that many rows behind the slot `base`.
    pub(crate) async fn write(self, fixture: &Fixture, rows: u64) {
        let columns = "aggregate_type, aggregate_id, event_type, payload";
        if self == Self::OneTransaction {
            let insert = format!(
                "INSERT INTO public.outbox ({columns}) SELECT {ROW} FROM generate_series(1, {rows}) AS i"
            );
            return fixture.execute(&insert).await;
        }
        fixture
            .execute(&format!(
                "CREATE OR REPLACE PROCEDURE write_rows(first int8, last int8) LANGUAGE plpgsql AS $$ \
                 BEGIN SET synchronous_commit = off; \
                 FOR i IN first..last LOOP INSERT INTO public.outbox ({columns}) VALUES ({ROW}); COMMIT; END LOOP; \
                 END $$"
            ))
            .await;
        // Two sessions write at once; who checks the order has to know which rows are whose.
        let half = rows / 2;
        let (first, second) = (
            format!("CALL write_rows(1, {half})"),
            format!("CALL write_rows({}, {rows})", half + 1),
        );
        tokio::join!(fixture.execute(&first), fixture.execute(&second));
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
