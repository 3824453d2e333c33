//! Compares what a stream and a catch-up cost the server, and sizes the batches.
//!
//! A stream makes one system call per message; these are most of its cost if most of the WAL belongs
//! to the outbox. A batch sends messages at a fraction of that. But for each batch the server
//! decodes the WAL between the `restart_lsn` of the slot's copy and the start of the batch again,
//! and it does so once more when a stream takes over. The `restart_lsn` does not advance while an
//! old transaction is open, and not before the server writes its next `XLOG_RUNNING_XACTS` record.
//! So batches cost less if the WAL has many messages and the server decodes little WAL again.
//!
//! Pure. The unit of cost is the time to decode one byte of WAL, since all costs grow alike on a
//! slower or busier server.

use crate::lsn::Lsn;

/// What a message costs more in a stream than in a batch.
const STREAM_SURCHARGE: u64 = 3072;

/// What decoding a message costs, in addition to the bytes of its WAL.
const DECODING: u64 = 384;

/// A batch is made larger until decoding WAL again costs less than this part of what the batch saves.
const REDECODING_SHARE: u64 = 4;

/// The part of the backlog that the first batch may decode again while the number of messages in
/// the backlog is unknown.
const TRIAL_SHARE: u64 = 8;

/// Bytes of WAL that the first batch may decode again in any case: some hundredths of a second.
const MIN_TRIAL: u64 = 16 << 20;

/// Target size of a batch in bytes of rows: as much as the relay publishes while the server decodes
/// the next batch.
const BATCH_BYTES: u64 = 64 << 20;

/// Maximum size if decoding WAL again costs much: the size of the server's temporary file.
const LARGE_BATCH_BYTES: u64 = 256 << 20;

/// Messages of a batch: while their size is unknown, and the bounds.
const FIRST_MESSAGES: u64 = 50_000;
const MAX_MESSAGES: u64 = 4_000_000;
const MIN_MESSAGES: u64 = 100;

/// Bytes of WAL of a batch: the minimum, and while the number of messages in the WAL is unknown.
const MIN_RANGE: u64 = 16 << 20;
const FIRST_RANGE: u64 = 256 << 20;

/// WAL that writes a table and its indexes, as a multiple of their size: 1.7 with rows of 100 bytes.
const WAL_PER_SIZE: u64 = 2;

/// Maximum bytes of WAL of a batch: seconds of decoding.
const LARGE_RANGE: u64 = 4 << 30;

/// Bytes of WAL after which the traffic in it is representative.
const SAMPLE: u64 = 16 << 20;

/// The messages that the server decoded from a range of WAL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of WAL, including that of other tables.
    pub wal: u64,
    /// Messages of the output plugin.
    pub messages: u64,
    /// The messages' bytes.
    pub bytes: u64,
}

impl Traffic {
    /// The weighted sum with the traffic of the WAL that follows: newer traffic has more weight.
    #[must_use]
    pub fn followed_by(self, next: Self) -> Self {
        let weighted = |before: u64, next: u64| (before / 2).saturating_add(next);
        Self {
            wal: weighted(self.wal, next.wal),
            messages: weighted(self.messages, next.messages),
            bytes: weighted(self.bytes, next.bytes),
        }
    }

    /// Whether it is large enough to predict the traffic that follows.
    pub fn is_sample(&self) -> bool {
        self.wal >= SAMPLE
    }

    /// The number of messages in `wal` bytes of WAL with the same traffic.
    fn messages_in(&self, wal: u64) -> u64 {
        share(wal, self.messages, self.wal)
    }

    /// The cost of decoding `wal` bytes of WAL.
    fn decoding(&self, wal: u64) -> u64 {
        wal.saturating_add(self.messages_in(wal).saturating_mul(DECODING))
    }

    /// The bytes of WAL with `messages` messages.
    fn wal_of(&self, messages: u64) -> u64 {
        share(messages, self.wal, self.messages)
    }

    /// The number of messages in `bytes` bytes of messages.
    fn messages_of(&self, bytes: u64) -> u64 {
        share(bytes, self.messages, self.bytes)
    }
}

/// `whole` · `part` ÷ `of`; the maximum if `of` is 0.
fn share(whole: u64, part: u64, of: u64) -> u64 {
    let product = u128::from(whole) * u128::from(part);
    product
        .checked_div(u128::from(of))
        .and_then(|share| u64::try_from(share).ok())
        .unwrap_or(u64::MAX)
}

/// The WAL that a feed has not read, and the WAL that the server decodes again before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes of WAL between the slot's `restart_lsn` and the feed's start.
    pub decoded_again: u64,
    /// Bytes of WAL that the feed has not read.
    pub unread: u64,
    /// Whether an open transaction keeps the `restart_lsn` from advancing: the next batch, or the
    /// stream that follows, decodes the WAL of this batch again too.
    pub is_held: bool,
}

impl Backlog {
    /// The backlog between `start` and `end`, with the slot's `restart_lsn`.
    pub fn between(restart: Lsn, start: Lsn, end: Lsn, is_held: bool) -> Self {
        let (decoded_again, unread) = (start.bytes_since(restart), end.bytes_since(start));
        Self { decoded_again, unread, is_held }
    }

    /// Whether batches cost the server less than a stream, given the recent `traffic`. The stream
    /// that follows the batches decodes WAL again once more.
    pub fn costs_less_in_batches(self, traffic: Traffic) -> bool {
        let messages = traffic.messages_in(self.unread);
        let batches =
            messages / traffic.messages_of(LARGE_BATCH_BYTES).clamp(MIN_MESSAGES, MAX_MESSAGES) + 1;
        let again = traffic.decoding(self.decoded_again).saturating_mul(batches + 1);
        let later = if self.is_held { traffic.decoding(self.unread) } else { 0 };
        messages.saturating_mul(STREAM_SURCHARGE) > again.saturating_add(later)
    }

    /// Whether a first batch costs little even if the backlog has few messages.
    pub fn is_cheap_to_try(self) -> bool {
        self.decoded_again <= MIN_TRIAL.max(self.unread / TRIAL_SHARE)
    }

    /// The end of the first batch, while the traffic is unknown: after as much WAL as one transaction
    /// on the outbox can have written, judged by the size of its tables. The server sends a
    /// transaction at its commit only. If a range of this size has no messages, its WAL belongs to
    /// other tables.
    pub fn first_batch(self, start: Lsn, table_bytes: u64) -> BatchEnd {
        let one_transaction = table_bytes.saturating_mul(WAL_PER_SIZE);
        let max = FIRST_RANGE.max(self.unread / TRIAL_SHARE).min(LARGE_RANGE);
        self.end(start, FIRST_MESSAGES, one_transaction.clamp(MIN_RANGE, max))
    }

    /// The end of the next batch, which starts at `start`.
    pub fn next_batch(self, start: Lsn, traffic: Option<Traffic>) -> BatchEnd {
        let (messages, range) = self.batch_size(traffic);
        self.end(start, messages, range)
    }

    fn end(self, start: Lsn, messages: u64, range: u64) -> BatchEnd {
        let upto = start.as_u64().saturating_add(range.min(self.unread));
        BatchEnd { messages, upto: Lsn::new(upto) }
    }

    /// Whether decoding WAL again for the next batch costs more than the batch saves. A stream then
    /// reads the rest of the backlog at a lower cost.
    pub fn costs_less_as_stream(self, traffic: Option<Traffic>) -> bool {
        let Some(known) = traffic else { return false };
        let (messages, range) = self.batch_size(traffic);
        let range = range.min(self.unread);
        let messages = messages.min(known.messages_in(range));
        let later =
            if self.is_held { known.decoding(known.wal_of(messages).min(range)) } else { 0 };
        let again = known.decoding(self.decoded_again).saturating_add(later);
        messages.saturating_mul(STREAM_SURCHARGE) <= again
    }

    /// The number of messages and the bytes of WAL of the next batch.
    fn batch_size(self, traffic: Option<Traffic>) -> (u64, u64) {
        let known = traffic.filter(|traffic| traffic.messages > 0 && traffic.bytes > 0);
        let Some(traffic) = known else { return (FIRST_MESSAGES, FIRST_RANGE) };
        let of = |bytes| traffic.messages_of(bytes).clamp(MIN_MESSAGES, MAX_MESSAGES);
        let worth_it = traffic.decoding(self.decoded_again) / (STREAM_SURCHARGE / REDECODING_SHARE);
        let messages = worth_it.clamp(of(BATCH_BYTES), of(LARGE_BATCH_BYTES));
        // The limit of WAL ends the batch if the WAL has fewer messages than before.
        let range = traffic.wal_of(messages).saturating_mul(2).clamp(FIRST_RANGE, LARGE_RANGE);
        (messages, range)
    }
}

/// The end of a batch: the first commit after either limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchEnd {
    /// The number of messages.
    pub messages: u64,
    /// The position in the WAL.
    pub upto: Lsn,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::property;

    const MIB: u64 = 1 << 20;

    /// One-row transactions on the outbox, of 415 bytes of WAL and three messages each.
    const OUTBOX: Traffic = Traffic { wal: 415_000, messages: 3000, bytes: 310_000 };

    /// The same, as 7 % of the WAL.
    const INTERLEAVED: Traffic = Traffic { wal: 5_900_000, ..OUTBOX };

    fn backlog(decoded_again: u64, unread: u64) -> Backlog {
        let (decoded_again, unread) = (decoded_again * MIB, unread * MIB);
        Backlog { decoded_again, unread, is_held: false }
    }

    #[test]
    fn batches_cost_less_with_many_messages_or_little_wal_decoded_again() {
        for (traffic, decoded_again, unread, expected) in [
            (OUTBOX, 0, 64, true),
            (OUTBOX, 64, 64, true),
            (OUTBOX, 1000, 64, false),
            (OUTBOX, 1000, 10_000, true),
            (INTERLEAVED, 1, 64, true),
            (INTERLEAVED, 100, 64, false),
            (INTERLEAVED, 100, 1000, true),
            (INTERLEAVED, 2000, 1000, false),
            (Traffic { messages: 0, ..OUTBOX }, 1, 10_000, false),
        ] {
            let backlog = backlog(decoded_again, unread);
            assert_eq!(backlog.costs_less_in_batches(traffic), expected, "{traffic:?} {backlog:?}");
        }
    }

    #[test]
    fn unknown_traffic_is_tried_if_a_first_batch_is_cheap() {
        assert!(backlog(16, 0).is_cheap_to_try() && !backlog(17, 64).is_cheap_to_try());
        assert!(backlog(100, 800).is_cheap_to_try() && !backlog(101, 800).is_cheap_to_try());
        let end = backlog(8, 1000).next_batch(Lsn::new(5), None);
        assert_eq!(end, BatchEnd { messages: FIRST_MESSAGES, upto: Lsn::new(5 + FIRST_RANGE) });
        let range = |table, unread| {
            backlog(0, unread).first_batch(Lsn::new(0), table * MIB).upto.as_u64() / MIB
        };
        assert_eq!([range(0, 1000), range(100, 1000), range(500, 1000)], [16, 200, 256]);
        assert_eq!([range(100, 64), range(500, 4000), range(1 << 20, 1 << 20)], [64, 500, 4096]);
        assert_eq!(backlog(8, 64).next_batch(Lsn::new(5), None).upto, Lsn::new(5 + 64 * MIB));
        assert!(!backlog(8, 1000).costs_less_as_stream(None));
        let other_tables = Traffic { wal: FIRST_RANGE, messages: 0, bytes: 0 };
        assert!(backlog(256, 1000).costs_less_as_stream(Some(other_tables)));
    }

    #[test]
    fn batches_grow_with_the_wal_decoded_again_until_a_stream_costs_less() {
        let bytes = |decoded_again| {
            let backlog = backlog(decoded_again, 1 << 20);
            backlog.batch_size(Some(OUTBOX)).0 * OUTBOX.bytes / OUTBOX.messages / MIB
        };
        assert_eq!([0, 64, 10_000].map(bytes), [63, 63, 255]);
        assert!(bytes(200) > 100 && bytes(200) < 200, "{}", bytes(200));
        let costs_less_as_stream =
            |decoded_again| backlog(decoded_again, 1 << 20).costs_less_as_stream(Some(OUTBOX));
        assert_eq!([0, 1000, 1500, 3000].map(costs_less_as_stream), [false, false, false, true]);
    }

    #[test]
    fn wal_limit_ends_a_batch_with_fewer_messages_than_expected() {
        let end = backlog(0, 1 << 20).next_batch(Lsn::new(0), Some(INTERLEAVED));
        let expected = INTERLEAVED.wal_of(end.messages);
        assert_eq!(end.upto.as_u64(), 2 * expected);
        let few = Traffic { wal: 1 << 40, ..OUTBOX };
        let end = backlog(0, 1 << 20).next_batch(Lsn::new(0), Some(few));
        assert_eq!(end.upto, Lsn::new(LARGE_RANGE));
    }

    #[test]
    fn wal_decoded_again_later_due_to_an_open_transaction_counts_too() {
        let held = Backlog { is_held: true, ..backlog(10, 1000) };
        let sparse = Traffic { wal: 4 * INTERLEAVED.wal, ..INTERLEAVED };
        for (traffic, expected) in [(OUTBOX, true), (INTERLEAVED, true), (sparse, false)] {
            assert!(backlog(10, 1000).costs_less_in_batches(traffic), "{traffic:?}");
            assert!(!backlog(10, 1000).costs_less_as_stream(Some(traffic)), "{traffic:?}");
            assert_eq!(held.costs_less_in_batches(traffic), expected, "{traffic:?}");
            assert_eq!(held.costs_less_as_stream(Some(traffic)), !expected, "{traffic:?}");
        }
    }

    /// A server with WAL of other tables, followed by even traffic. An open transaction holds its
    /// `restart_lsn`, or the `restart_lsn` follows one batch behind.
    #[derive(Debug, Clone, Copy)]
    struct Server {
        other_tables: u64,
        traffic: Traffic,
        end: u64,
        table: u64,
        is_held: bool,
    }

    impl Server {
        fn messages(self, from: u64, to: u64) -> u64 {
            self.traffic.messages_in(to.saturating_sub(from.max(self.other_tables)))
        }

        fn decoding(self, from: u64, to: u64) -> u64 {
            to.saturating_sub(from) + self.messages(from, to) * DECODING
        }

        /// The end of a batch from `start`.
        fn read(self, start: u64, end: BatchEnd) -> u64 {
            let from = start.max(self.other_tables);
            end.upto.as_u64().min(from.saturating_add(self.traffic.wal_of(end.messages))).max(start)
        }

        /// The cost of reading everything: batches as long as they are chosen, and a stream.
        fn cost(self, streams_only: bool) -> u64 {
            let (mut at, mut restart, mut cost, mut recent) = (0, 0, 0, None);
            loop {
                let backlog = Backlog::between(
                    Lsn::new(restart),
                    Lsn::new(at),
                    Lsn::new(self.end),
                    self.is_held,
                );
                let is_over = backlog.unread == 0 || backlog.costs_less_as_stream(recent);
                if streams_only || is_over {
                    break;
                }
                let end = match recent {
                    None => backlog.first_batch(Lsn::new(at), self.table),
                    known => backlog.next_batch(Lsn::new(at), known),
                };
                let to = self.read(at, end);
                cost += self.decoding(restart, to);
                let messages = self.messages(at, to);
                let bytes = messages * self.traffic.bytes / self.traffic.messages.max(1);
                let batch = Traffic { wal: to - at, messages, bytes };
                recent = Some(recent.map_or(batch, |before: Traffic| before.followed_by(batch)));
                restart = if self.is_held { 0 } else { at };
                at = to;
            }
            // The slot itself is advanced to the end of the last batch.
            let restart = if self.is_held || streams_only { 0 } else { at };
            cost + self.decoding(restart, self.end) + self.messages(at, self.end) * STREAM_SURCHARGE
        }
    }

    #[test]
    fn catch_up_costs_little_more_than_a_stream_at_worst() {
        let cases =
            (0..4000_u64, 1..200_u64, 1..2000_u64, 16..20_000_u64, 0..500_u64, any::<bool>());
        let name = "catch_up_costs_little_more_than_a_stream_at_worst";
        property::holds(name, 2000, &cases, |(other_tables, share, size, more, table, is_held)| {
            let traffic = Traffic { wal: 140 * share, messages: 1, bytes: size };
            let (end, table) = ((other_tables + more) * MIB, table * MIB);
            let other_tables = other_tables * MIB;
            let server = Server { other_tables, traffic, end, table, is_held };
            let (chosen, streamed) = (server.cost(false), server.cost(true));
            let trial = FIRST_RANGE.max(end / TRIAL_SHARE);
            let max = streamed + streamed / 10 + trial;
            assert!(chosen <= max, "{} instead of {} MiB", chosen / MIB, streamed / MIB);
        });
    }
}
