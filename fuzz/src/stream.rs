//! A stream of pgoutput messages, keepalives and delivery reports, through the decoder and the
//! relay's core, with an outlet that accepts nearly everything.
//!
//! The messages need not be consistent, but the confirmed position must be. A naive model runs next
//! to the core and checks it after each step.

use bytes::Bytes;
use walpost::Lsn;
use walpost::ledger::Seq;
use walpost::outbox::{ColumnNames, Outbox, OutboxConfig, TableName};
use walpost::outlet::{Ground, Outlet, ProduceError, RECORD_OVERHEAD_BYTES, Refusal};
use walpost::pgoutput::{Message, decode};
use walpost::position::EventPosition;
use walpost::record::{Record, RecordConfig, Router, check_topic};
use walpost_core::relay::{Core, Taken};

use super::input::{Rng, parts};

/// A few records' worth.
const BUDGET_BYTES: u64 = 4 * RECORD_OVERHEAD_BYTES;

/// Each part is a message of the plugin, or by a small letter something else
/// that happens to a relay.
pub fn stream(input: &[u8]) {
    let mut world = World::new();
    for part in parts(input) {
        let Some((&first, rest)) = part.split_first() else { continue };
        let mut rng = Rng(rest);
        match first {
            b'k' => world.keepalive(Lsn::new(rng.number())),
            b'd' => world.report(&mut rng, Report::Delivered),
            b'l' => world.report(&mut rng, Report::Lost),
            b'r' => world.report(&mut rng, Report::Refused),
            b's' => world.new_session(Lsn::new(rng.number())),
            b'p' => {
                world.core.request_producer_replacement("it broke");
                world.settle();
            }
            b'f' => world.outlet.next = Some(ProduceError::Full),
            b'n' => world.outlet.next = Some(ProduceError::Refused(too_large())),
            b'b' => world.outlet.next = Some(ProduceError::Broken("gone".to_owned())),
            b'e' => world.core.drain(),
            _ => world.message(part),
        }
        world.judge();
    }
}

#[derive(Clone, Copy)]
enum Report {
    Delivered,
    Lost,
    Refused,
}

/// A record that was produced by the producer that there is now.
struct Produced {
    seq: Seq,
    commit_lsn: Lsn,
    bytes: u64,
    in_flight: bool,
    durable: bool,
}

/// Takes every record, but for the next one if it is told to.
#[derive(Default)]
struct AllTaking {
    next: Option<ProduceError>,
    taken: Option<(Seq, u64)>,
}

impl Outlet for AllTaking {
    fn produce(
        &mut self,
        seq: Seq,
        _: EventPosition,
        record: &Record<'_>,
    ) -> Result<(), ProduceError> {
        if let Some(error) = self.next.take() {
            return Err(error);
        }
        assert_eq!(check_topic(record.topic), Ok(()));
        assert!(record.headers.iter().all(|header| !header.name.contains('\0')));
        self.taken = Some((seq, record.bytes() as u64 + RECORD_OVERHEAD_BYTES));
        Ok(())
    }
}

struct World {
    core: Core,
    outlet: AllTaking,
    produced: Vec<Produced>,
    /// The transaction whose messages come.
    open: Option<Lsn>,
    flush_lsn: Lsn,
    /// What the flush LSN may not pass: the start, the ends of transactions, and keepalives
    /// that came outside of one.
    said: Lsn,
    /// Bytes of the largest record.
    largest: u64,
}

fn too_large() -> Refusal {
    Refusal { ground: Ground::Size, may_pass: false, reason: "too large".to_owned() }
}

/// An outbox and a router that take what stands in the recorded messages.
pub fn of_the_recording() -> (Outbox, Router) {
    let table = |name: &str| TableName { schema: "public".to_owned(), name: name.to_owned() };
    let outbox = Outbox::new(OutboxConfig {
        tables: vec![table("outbox"), table("outbox_bytes")],
        columns: ColumnNames::default(),
        message_prefix: Some("outbox".to_owned()),
        plain_message_prefix: Some("outbox".to_owned()),
        ..OutboxConfig::default()
    });
    let router = Router::new(RecordConfig::to("t.{aggregate_type}".parse().expect("a template")));
    (outbox, router)
}

impl World {
    fn new() -> Self {
        let (outbox, router) = of_the_recording();
        Self {
            core: Core::new(outbox, router, BUDGET_BYTES),
            outlet: AllTaking::default(),
            produced: Vec::new(),
            open: None,
            flush_lsn: Lsn::ZERO,
            said: Lsn::ZERO,
            largest: 0,
        }
    }

    fn message(&mut self, bytes: &[u8]) {
        let Ok(message) = decode(&Bytes::copy_from_slice(bytes)) else { return };
        loop {
            self.make_room();
            match self.core.receive(&message, &mut self.outlet) {
                Ok(Taken::NotYet) => {}
                Ok(Taken::Yes) => break,
                Err(_) => {
                    assert!(self.outlet.taken.is_none(), "a record that no account knows");
                    return self.new_session(Lsn::ZERO);
                }
            }
        }
        match &message {
            Message::Begin(begin) => self.open = Some(begin.commit_lsn),
            Message::Commit(commit) => {
                self.said = self.said.max(commit.end_lsn);
                self.open = None;
            }
            _ => {}
        }
        if let Some((seq, bytes)) = self.outlet.taken.take() {
            let commit_lsn = self.open.expect("a record belongs to a transaction");
            self.largest = self.largest.max(bytes);
            self.produced.push(Produced {
                seq,
                commit_lsn,
                bytes,
                in_flight: true,
                durable: false,
            });
        }
        self.settle();
    }

    fn keepalive(&mut self, wal_end: Lsn) {
        self.make_room();
        self.core.keepalive(wal_end);
        if self.open.is_none() {
            self.said = self.said.max(wal_end);
        }
    }

    /// Reports until the core reads on; it must come to that.
    fn make_room(&mut self) {
        while !self.core.wants_input() {
            if self.core.is_drained() {
                *self = Self::new();
            } else if self.produced.iter().any(|record| record.in_flight) {
                self.report(&mut Rng(&[]), Report::Delivered);
            } else {
                assert!(
                    self.core.wants_replay().is_some(),
                    "it waits for nothing: {:?}",
                    self.core
                );
                self.settle();
            }
        }
    }

    /// What became of one of the records in flight.
    fn report(&mut self, rng: &mut Rng<'_>, report: Report) {
        let mut in_flight: Vec<_> =
            self.produced.iter_mut().filter(|record| record.in_flight).collect();
        let pick = usize::from(rng.byte()) % in_flight.len().max(1);
        let Some(record) = in_flight.get_mut(pick) else { return };
        record.in_flight = false;
        match report {
            Report::Delivered => {
                record.durable = true;
                self.core.delivered(record.seq);
            }
            Report::Lost => self.core.lost(record.seq, "a timeout"),
            Report::Refused => self.core.refused(record.seq, &too_large()),
        }
        // A report that comes twice says nothing.
        let seq = record.seq;
        self.core.delivered(seq);
        self.settle();
    }

    /// Gives the core a new producer and a new session where it asks for one.
    fn settle(&mut self) {
        if self.core.wants_replay().is_some() {
            self.replace_producer();
            self.new_session(Lsn::ZERO);
        }
    }

    fn replace_producer(&mut self) {
        for record in self.produced.drain(..).filter(|record| record.in_flight) {
            self.core.purged(record.seq);
        }
        self.core.producer_replaced();
        self.open = None;
        self.said = self.core.flush_lsn();
    }

    fn new_session(&mut self, start: Lsn) {
        self.core.session_lost();
        if let Some(open) = self.open.take() {
            // They come again: these count no more, but stay in flight.
            self.produced
                .iter_mut()
                .filter(|record| record.commit_lsn == open)
                .for_each(|record| record.durable = true);
        }
        if start > self.core.flush_lsn() {
            // Another relay has come that far.
            self.replace_producer();
            self.said = start;
        }
        self.core.connected(start, &[]);
    }

    fn judge(&mut self) {
        let flush_lsn = self.core.flush_lsn();
        assert!(flush_lsn >= self.flush_lsn, "the flush LSN fell to {flush_lsn}");
        assert!(flush_lsn <= self.said, "nobody said {flush_lsn}");
        for record in self.produced.iter().filter(|record| !record.durable) {
            assert!(record.commit_lsn >= flush_lsn, "{flush_lsn} passes a record");
        }
        let in_flight = || self.produced.iter().filter(|record| record.in_flight);
        let bytes = in_flight().map(|record| record.bytes).sum();
        assert_eq!(self.core.in_flight(), (in_flight().count(), bytes));
        assert!(bytes <= BUDGET_BYTES + self.largest, "{bytes} bytes are in flight");
        self.flush_lsn = flush_lsn;
        self.produced.retain(|record| record.in_flight || !record.durable);
    }
}
