//! What the two feeds cost the server, in bytes of WAL that it could decode instead; and how much
//! the next batch reads.
//!
//! A stream sends each message with a system call of its own: most of what it costs where the
//! outbox is most of the WAL. A batch sends messages for a fraction of that, but the server
//! decodes again for each batch what lies between the `restart_lsn` of the slot's copy and the
//! batch, and once more when a stream takes over. The `restart_lsn` stays back while an old
//! transaction is open, and until the server writes its next record of running transactions.
//! So batches pay where many messages come out of the WAL and little is decoded again.
//!
//! Pure. Costs are compared in bytes since both grow alike on a slower or busier server.

use crate::lsn::Lsn;

/// What a stream spends on a message more than a batch does.
const SENDING: u64 = 3072;

/// What decoding a message costs, beside the bytes of its WAL.
const DECODING: u64 = 384;

/// The part of what a batch saves that decoding again may cost before the batch is made larger.
const AGAIN_SHARE: u64 = 4;

/// Part of the backlog that decoding again may cost where it is not known yet how many messages
/// come out of it.
const TRIAL_SHARE: u64 = 8;

/// What decoding again may cost in any case: some hundredths of a second.
const TRIAL_LEAST: u64 = 16 << 20;

/// Target size of a batch in bytes of rows: what comes while the last batch is handed on is no
/// more than that.
const BATCH_BYTES: u64 = 64 << 20;

/// Where decoding again costs much, batches grow up to this: the size of a temporary file.
const LARGE_BATCH_BYTES: u64 = 256 << 20;

/// Messages of a batch while their size is unknown, and the bounds for each.
const FIRST: u64 = 50_000;
const MOST: u64 = 4_000_000;
const LEAST: u64 = 100;

/// WAL of a batch while it is unknown how many messages come out of it, and its bounds.
const LEAST_RANGE: u64 = 16 << 20;
const FIRST_RANGE: u64 = 256 << 20;

/// WAL that writes a table and its indexes, as a multiple of their size: 1.7 with rows of 100 bytes.
const WAL_PER_SIZE: u64 = 2;

/// Most WAL of a batch: seconds of decoding.
const LARGE_RANGE: u64 = 4 << 30;

/// WAL after which what came out of it says something.
const SAMPLE: u64 = 16 << 20;

/// The messages that came out of some WAL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of WAL, with that of other tables.
    pub wal: u64,
    /// Messages of the plugin that came out of it.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Traffic {
    /// With what came next, which counts more than what was before.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        let both = |before: u64, next: u64| (before / 2).saturating_add(next);
        Self {
            wal: both(self.wal, next.wal),
            messages: both(self.messages, next.messages),
            bytes: both(self.bytes, next.bytes),
        }
    }

    /// Whether it is enough to tell what will come.
    pub fn is_sample(&self) -> bool {
        self.wal >= SAMPLE
    }

    /// How many messages come out of so much WAL, if it goes on like this.
    fn messages_in(&self, wal: u64) -> u64 {
        share(wal, self.messages, self.wal)
    }

    /// What it costs to decode so much WAL.
    fn decoding(&self, wal: u64) -> u64 {
        wal.saturating_add(self.messages_in(wal).saturating_mul(DECODING))
    }

    /// How much WAL has so many messages.
    fn wal_of(&self, messages: u64) -> u64 {
        share(messages, self.wal, self.messages)
    }

    /// How many messages are so many bytes.
    fn messages_of(&self, bytes: u64) -> u64 {
        share(bytes, self.messages, self.bytes)
    }
}

/// `whole` · `part` ÷ `of`; as much as there is where `of` is nothing.
fn share(whole: u64, part: u64, of: u64) -> u64 {
    let product = u128::from(whole) * u128::from(part);
    product
        .checked_div(u128::from(of))
        .and_then(|share| u64::try_from(share).ok())
        .unwrap_or(u64::MAX)
}

/// What lies before a feed, and what the server decodes again to get there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes of WAL between the slot's `restart_lsn` and where the feed starts.
    pub decoded_again: u64,
    /// Bytes of WAL that are to be read.
    pub unread: u64,
    /// An open transaction keeps the `restart_lsn` where it is: what is read now is decoded again
    /// too, by the next batch or by the stream that follows.
    pub is_held: bool,
}

impl Backlog {
    /// Between these positions.
    pub fn between(restart: Lsn, start: Lsn, end: Lsn, is_held: bool) -> Self {
        let (decoded_again, unread) = (start.bytes_since(restart), end.bytes_since(start));
        Self { decoded_again, unread, is_held }
    }

    /// Whether batches cost the server less than a stream; `traffic` is what has come lately. The
    /// stream that follows them decodes again once more.
    pub fn pays(self, traffic: Traffic) -> bool {
        let messages = traffic.messages_in(self.unread);
        let batches = messages / traffic.messages_of(LARGE_BATCH_BYTES).clamp(LEAST, MOST) + 1;
        let again = traffic.decoding(self.decoded_again).saturating_mul(batches + 1);
        let later = if self.is_held { traffic.decoding(self.unread) } else { 0 };
        messages.saturating_mul(SENDING) > again.saturating_add(later)
    }

    /// Whether little is lost if too few messages come.
    pub fn is_worth_a_trial(self) -> bool {
        self.decoded_again <= TRIAL_LEAST.max(self.unread / TRIAL_SHARE)
    }

    /// Where a first batch ends, while it is not known what comes: behind as much WAL as one
    /// transaction of the outbox can have written, by the size of its tables. Nothing shows of a
    /// transaction before its end; where nothing comes of so much WAL, it is that of other tables.
    pub fn trial(self, start: Lsn, table_bytes: u64) -> BatchEnd {
        let one_transaction = table_bytes.saturating_mul(WAL_PER_SIZE);
        let most = FIRST_RANGE.max(self.unread / TRIAL_SHARE).min(LARGE_RANGE);
        self.end(start, FIRST, one_transaction.clamp(LEAST_RANGE, most))
    }

    /// Where the next batch ends, which starts at `start`.
    pub fn batch(self, start: Lsn, traffic: Option<Traffic>) -> BatchEnd {
        let (messages, range) = self.batch_size(traffic);
        self.end(start, messages, range)
    }

    fn end(self, start: Lsn, messages: u64, range: u64) -> BatchEnd {
        let upto = start.as_u64().saturating_add(range.min(self.unread));
        BatchEnd { messages, upto: Lsn::new(upto) }
    }

    /// Whether the next batch saves less than decoding again costs: then a stream reads the rest for
    /// less.
    pub fn is_dear_in_batches(self, traffic: Option<Traffic>) -> bool {
        let Some(known) = traffic else { return false };
        let (messages, range) = self.batch_size(traffic);
        let range = range.min(self.unread);
        let messages = messages.min(known.messages_in(range));
        let later =
            if self.is_held { known.decoding(known.wal_of(messages).min(range)) } else { 0 };
        let again = known.decoding(self.decoded_again).saturating_add(later);
        messages.saturating_mul(SENDING) <= again
    }

    /// Messages and WAL of the next batch.
    fn batch_size(self, traffic: Option<Traffic>) -> (u64, u64) {
        let known = traffic.filter(|traffic| traffic.messages > 0 && traffic.bytes > 0);
        let Some(traffic) = known else { return (FIRST, FIRST_RANGE) };
        let of = |bytes| traffic.messages_of(bytes).clamp(LEAST, MOST);
        let worth_it = traffic.decoding(self.decoded_again) / (SENDING / AGAIN_SHARE);
        let messages = worth_it.clamp(of(BATCH_BYTES), of(LARGE_BATCH_BYTES));
        // Where fewer messages come than did lately, that is to be noticed.
        let range = traffic.wal_of(messages).saturating_mul(2).clamp(FIRST_RANGE, LARGE_RANGE);
        (messages, range)
    }
}

/// Where a batch ends: at the first commit behind one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchEnd {
    /// Messages of the plugin.
    pub messages: u64,
    /// A position in the WAL.
    pub upto: Lsn,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::property;

    const MIB: u64 = 1 << 20;

    /// One-row transactions of the outbox, 415 bytes of WAL and three messages each.
    const OUTBOX: Traffic = Traffic { wal: 415_000, messages: 3000, bytes: 310_000 };

    /// The same as 7 % of the WAL.
    const INTERLEAVED: Traffic = Traffic { wal: 5_900_000, ..OUTBOX };

    fn backlog(decoded_again: u64, unread: u64) -> Backlog {
        let (decoded_again, unread) = (decoded_again * MIB, unread * MIB);
        Backlog { decoded_again, unread, is_held: false }
    }

    #[test]
    fn batches_pay_where_the_messages_are_many_or_little_is_decoded_again() {
        for (traffic, decoded_again, unread, pays) in [
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
            assert_eq!(backlog.pays(traffic), pays, "{traffic:?} {backlog:?}");
        }
    }

    #[test]
    fn what_is_unknown_is_tried_where_little_is_lost() {
        assert!(backlog(16, 0).is_worth_a_trial() && !backlog(17, 64).is_worth_a_trial());
        assert!(backlog(100, 800).is_worth_a_trial() && !backlog(101, 800).is_worth_a_trial());
        let end = backlog(8, 1000).batch(Lsn::new(5), None);
        assert_eq!(end, BatchEnd { messages: FIRST, upto: Lsn::new(5 + FIRST_RANGE) });
        let range =
            |table, unread| backlog(0, unread).trial(Lsn::new(0), table * MIB).upto.as_u64() / MIB;
        assert_eq!([range(0, 1000), range(100, 1000), range(500, 1000)], [16, 200, 256]);
        assert_eq!([range(100, 64), range(500, 4000), range(1 << 20, 1 << 20)], [64, 500, 4096]);
        assert_eq!(backlog(8, 64).batch(Lsn::new(5), None).upto, Lsn::new(5 + 64 * MIB));
        assert!(!backlog(8, 1000).is_dear_in_batches(None));
        let lump = Traffic { wal: FIRST_RANGE, messages: 0, bytes: 0 };
        assert!(backlog(256, 1000).is_dear_in_batches(Some(lump)));
    }

    #[test]
    fn batches_grow_where_much_is_decoded_again_until_a_stream_costs_less() {
        let bytes = |decoded_again| {
            let backlog = backlog(decoded_again, 1 << 20);
            backlog.batch_size(Some(OUTBOX)).0 * OUTBOX.bytes / OUTBOX.messages / MIB
        };
        assert_eq!([0, 64, 10_000].map(bytes), [63, 63, 255]);
        assert!(bytes(200) > 100 && bytes(200) < 200, "{}", bytes(200));
        let is_dear =
            |decoded_again| backlog(decoded_again, 1 << 20).is_dear_in_batches(Some(OUTBOX));
        assert_eq!([0, 1000, 1500, 3000].map(is_dear), [false, false, false, true]);
    }

    #[test]
    fn a_batch_notices_that_fewer_messages_come() {
        let end = backlog(0, 1 << 20).batch(Lsn::new(0), Some(INTERLEAVED));
        let expected = INTERLEAVED.wal_of(end.messages);
        assert_eq!(end.upto.as_u64(), 2 * expected);
        let few = Traffic { wal: 1 << 40, ..OUTBOX };
        assert_eq!(backlog(0, 1 << 20).batch(Lsn::new(0), Some(few)).upto, Lsn::new(LARGE_RANGE));
    }

    #[test]
    fn what_an_open_transaction_makes_the_server_decode_again_later_counts_too() {
        let held = Backlog { is_held: true, ..backlog(10, 1000) };
        let sparse = Traffic { wal: 4 * INTERLEAVED.wal, ..INTERLEAVED };
        for (traffic, pays) in [(OUTBOX, true), (INTERLEAVED, true), (sparse, false)] {
            assert!(backlog(10, 1000).pays(traffic), "{traffic:?}");
            assert!(!backlog(10, 1000).is_dear_in_batches(Some(traffic)), "{traffic:?}");
            assert_eq!(held.pays(traffic), pays, "{traffic:?}");
            assert_eq!(held.is_dear_in_batches(Some(traffic)), !pays, "{traffic:?}");
        }
    }

    /// WAL of even traffic after a lump of another table, of a server whose `restart_lsn` is held, or
    /// follows one batch behind.
    #[derive(Debug, Clone, Copy)]
    struct Server {
        lump: u64,
        traffic: Traffic,
        end: u64,
        table: u64,
        is_held: bool,
    }

    impl Server {
        fn messages(self, from: u64, to: u64) -> u64 {
            self.traffic.messages_in(to.saturating_sub(from.max(self.lump)))
        }

        fn decoding(self, from: u64, to: u64) -> u64 {
            to.saturating_sub(from) + self.messages(from, to) * DECODING
        }

        /// Where a batch from `start` ends.
        fn read(self, start: u64, end: BatchEnd) -> u64 {
            let from = start.max(self.lump);
            end.upto.as_u64().min(from.saturating_add(self.traffic.wal_of(end.messages))).max(start)
        }

        /// What it costs to read all, a stream at the end included; by batches first if they are
        /// chosen.
        fn cost(self, streams_only: bool) -> u64 {
            let (mut at, mut restart, mut cost, mut lately) = (0, 0, 0, None);
            loop {
                let backlog = Backlog::between(
                    Lsn::new(restart),
                    Lsn::new(at),
                    Lsn::new(self.end),
                    self.is_held,
                );
                let is_over = backlog.unread == 0 || backlog.is_dear_in_batches(lately);
                if streams_only || is_over {
                    break;
                }
                let end = match lately {
                    None => backlog.trial(Lsn::new(at), self.table),
                    known => backlog.batch(Lsn::new(at), known),
                };
                let to = self.read(at, end);
                cost += self.decoding(restart, to);
                let messages = self.messages(at, to);
                let bytes = messages * self.traffic.bytes / self.traffic.messages.max(1);
                let batch = Traffic { wal: to - at, messages, bytes };
                lately = Some(lately.map_or(batch, |before: Traffic| before.then(batch)));
                restart = if self.is_held { 0 } else { at };
                at = to;
            }
            // The slot itself is advanced to there.
            let restart = if self.is_held || streams_only { 0 } else { at };
            cost + self.decoding(restart, self.end) + self.messages(at, self.end) * SENDING
        }
    }

    #[test]
    fn a_backlog_costs_no_more_than_streamed_beside_the_trial() {
        let cases =
            (0..4000_u64, 1..200_u64, 1..2000_u64, 16..20_000_u64, 0..500_u64, any::<bool>());
        let name = "a_backlog_costs_no_more_than_streamed_beside_the_trial";
        property::holds(name, 2000, &cases, |(lump, share, size, more, table, is_held)| {
            let traffic = Traffic { wal: 140 * share, messages: 1, bytes: size };
            let (end, table, lump) = ((lump + more) * MIB, table * MIB, lump * MIB);
            let server = Server { lump, traffic, end, table, is_held };
            let (chosen, streamed) = (server.cost(false), server.cost(true));
            let trial = FIRST_RANGE.max(end / TRIAL_SHARE);
            let most = streamed + streamed / 10 + trial;
            assert!(chosen <= most, "{} instead of {} MiB", chosen / MIB, streamed / MIB);
        });
    }
}
