//! The decision and the comparison over random histories, with a destination that remembers what it
//! got.
//!
//! A server has transactions, a slot, a timeline and a publication, and all of that is restored with it.
//! walpost runs with changing configurations, and is killed anywhere. It must not go on if an event of
//! the server would count as delivered that is not, or if an event is published that the server has
//! lost. What an operator has accepted is neither. Two cases are left out: a copy of the server from
//! before an operator accepted another history, whose slot confirms what that history had; and a slot
//! that is made again on a restored server which is then promoted before walpost runs: tools that keep
//! slots on standbys leave them at positions that walpost has not confirmed either.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::outbox::TableName;
use crate::pgoutput::encode::texts;
use crate::pgoutput::{Begin, Commit, Insert, LogicalMessage, Message, PgTimestamp};
use crate::property;
use crate::source::{HistoryCheck, LastTransaction, MessageAction, PublicationFingerprint};
use crate::state::{ConfiguredLayout, Ending, Partial};

#[derive(Debug, Clone)]
enum Step {
    /// Commits a transaction.
    Write {
        table: u8,
        rows: u32,
        gap: u64,
    },
    /// Other traffic: it uses WAL and transaction ids.
    Burn {
        ids: u32,
        wal: u64,
    },
    /// Publishes other tables from now on.
    Alter {
        tables: u8,
    },
    Run {
        layout: u8,
        until: Until,
        is_own_digest: bool,
    },
    /// The server is started again; it may have forgotten the slot's last positions.
    Restart {
        forgets: bool,
    },
    Snapshot,
    Restore,
    /// The slot is dropped, and created again.
    MakeSlot,
    /// A standby that lacks this much WAL becomes the primary.
    Promote {
        lacks: u64,
    },
}

/// How a run ends.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent choices")]
struct Until {
    /// The number of events after which walpost is killed.
    events: u32,
    /// Whether the position is written inside of transactions too.
    splits: bool,
    /// Whether the last position is written, and confirmed to the slot.
    is_written: bool,
    is_confirmed: bool,
    /// Whether what is written lacks what earlier versions did not write.
    is_former: bool,
    /// Whether an operator accepts the slot's position if it is refused.
    adopts: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let until = (0..9_u32, any::<[bool; 5]>()).prop_map(|(events, flags)| {
        let [splits, is_written, is_confirmed, is_former, adopts] = flags;
        Until { events, splits, is_written, is_confirmed, is_former, adopts }
    });
    let step = prop_oneof![
        8 => (0..3_u8, 0..4_u32, 1..3_u64)
            .prop_map(|(table, rows, gap)| Step::Write { table, rows, gap }),
        2 => (0..3_u32, 1..30_u64).prop_map(|(ids, wal)| Step::Burn { ids, wal }),
        1 => (0..4_u8).prop_map(|tables| Step::Alter { tables }),
        8 => (0..10_u8, until, any::<bool>()).prop_map(|(layout, until, is_own_digest)| {
            Step::Run { layout, until, is_own_digest }
        }),
        2 => any::<bool>().prop_map(|forgets| Step::Restart { forgets }),
        2 => Just(Step::Snapshot),
        2 => Just(Step::Restore),
        1 => Just(Step::MakeSlot),
        1 => (0..20_u64).prop_map(|lacks| Step::Promote { lacks }),
    ];
    prop::collection::vec(step, 1..40)
}

#[derive(Debug, Clone)]
struct Transaction {
    /// Unique over all histories.
    uid: u64,
    commit: u64,
    end: u64,
    xid: u32,
    /// [`MESSAGES`]: it has logical messages.
    table: u8,
    rows: u32,
    /// Whether the publication had its table.
    is_published: bool,
}

const MESSAGES: u8 = 2;

/// A server, and everything that is restored with it.
#[derive(Debug, Clone)]
struct Server {
    transactions: Vec<Transaction>,
    end: u64,
    xid: u32,
    timeline: u32,
    /// Former timelines, and where they end.
    forks: Vec<(u32, u64)>,
    started: i64,
    confirmed: u64,
    saved: u64,
    /// Whether the slot was made again since walpost has run.
    is_slot_new: bool,
    /// The tables in the publication, and how often that was altered.
    tables: u8,
    altered: u32,
}

impl Server {
    /// The messages of a session.
    fn stream(&self, layout: &ConfiguredLayout) -> Vec<(Transaction, Vec<Message>)> {
        let is_sent = |one: &&Transaction| {
            let is_visible = match one.table {
                MESSAGES => layout.message_prefix.is_some(),
                _ => one.is_published,
            };
            is_visible && one.rows > 0 && one.commit >= self.confirmed
        };
        self.transactions.iter().filter(is_sent).map(|one| (one.clone(), messages(one))).collect()
    }
}

fn messages(one: &Transaction) -> Vec<Message> {
    let commit_lsn = Lsn::new(one.commit);
    let (commit_time, row) = (time(one), Insert { relation: 7, tuple: texts(&[Some("1")]) });
    let mut all = vec![Message::Begin(Begin { commit_lsn, commit_time, xid: one.xid })];
    for _ in 0..one.rows {
        all.push(match one.table {
            MESSAGES => Message::Logical(LogicalMessage {
                transactional: true,
                lsn: commit_lsn,
                prefix: "p".into(),
                content: "".into(),
            }),
            _ => Message::Insert(row.clone()),
        });
    }
    all.push(Message::Commit(Commit { commit_lsn, end_lsn: Lsn::new(one.end), commit_time }));
    all
}

fn time(one: &Transaction) -> PgTimestamp {
    PgTimestamp::from_micros(one.uid.try_into().expect("few"))
}

/// A configuration: which of the two tables, and whether messages are read.
fn configured(layout: u8) -> ConfiguredLayout {
    // Most runs have the same one.
    let layout = if layout < 5 { 7 } else { layout - 4 };
    let tables = (0..2).filter(|table| layout & (1 << table) != 0);
    ConfiguredLayout {
        tables: tables
            .map(|table| TableName { schema: "public".to_owned(), name: table.to_string() })
            .collect(),
        message_prefix: (layout & 4 != 0).then(|| "p".to_owned()),
        plain_message_prefix: None,
        publication: "walpost".to_owned(),
    }
}

fn is_event(one: &Transaction, layout: &ConfiguredLayout) -> bool {
    match one.table {
        MESSAGES => layout.message_prefix.is_some(),
        table => layout.tables.iter().any(|known| known.name == table.to_string()),
    }
}

/// An event: a transaction, and the ordinal.
type Event = (u64, u32);

struct World {
    server: Server,
    snapshot: Option<Server>,
    /// Unique numbers of transactions, and start times.
    next: u64,
    state: State,
    /// Whether the destination takes no event twice, and tells the last one; otherwise it is committed
    /// with the state.
    is_store: bool,
    published: Option<EventPosition>,
    events: BTreeSet<Event>,
    /// Transactions that were passed, or given up by an operator.
    passed: BTreeSet<u64>,
    /// Whether no server was restored, and nothing reconfigured, since a position was accepted.
    is_plain: bool,
    /// The configuration of the last run that was not refused.
    layout: Option<u8>,
}

impl World {
    fn new(is_store: bool) -> Self {
        let server = Server {
            transactions: Vec::new(),
            end: 100,
            xid: 5,
            timeline: 1,
            forks: Vec::new(),
            started: 1,
            confirmed: 100,
            saved: 100,
            is_slot_new: false,
            tables: 3,
            altered: 0,
        };
        Self {
            state: State::accepted(server.timeline, Lsn::new(server.confirmed)),
            server,
            snapshot: None,
            next: 2,
            is_store,
            published: None,
            events: BTreeSet::new(),
            passed: BTreeSet::new(),
            is_plain: true,
            layout: None,
        }
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Write { table, rows, gap } => {
                let uid = self.next();
                let server = &mut self.server;
                // A position of a destination alone does not tell transactions apart that commit at the
                // same LSN of different histories.
                let commit = if self.is_store {
                    (server.end + gap) / 4096 * 4096 + 4096 + uid
                } else {
                    server.end + gap
                };
                server.xid += 1;
                server.end = commit + 2;
                server.transactions.push(Transaction {
                    uid,
                    commit,
                    end: server.end,
                    xid: server.xid,
                    table,
                    rows,
                    is_published: server.tables & (1 << table) != 0,
                });
            }
            Step::Burn { ids, wal } => {
                self.server.xid += ids;
                self.server.end += if self.is_store { wal * 4096 } else { wal };
            }
            Step::Alter { tables } => {
                (self.server.tables, self.server.altered) = (tables, self.server.altered + 1);
                self.is_plain = false;
            }
            Step::Run { layout, until, is_own_digest } => self.run(layout, until, is_own_digest),
            Step::Restart { forgets } => {
                self.server.started = self.next().try_into().expect("few");
                if forgets {
                    self.server.confirmed = self.server.saved;
                }
                self.server.saved = self.server.confirmed;
            }
            Step::Snapshot => {
                self.snapshot =
                    Some(Server { confirmed: self.server.saved, ..self.server.clone() });
            }
            Step::Restore => {
                if let Some(saved) = self.snapshot.clone() {
                    self.server = saved;
                    self.server.started = self.next().try_into().expect("few");
                    self.is_plain = false;
                }
            }
            // The record of an earlier version does not have the confirmed positions.
            Step::MakeSlot if self.state.known_from.is_none() => {}
            Step::MakeSlot => {
                let server = &mut self.server;
                // A position by chance that was confirmed is left out.
                let is_known = |end: u64| !self.state.is_unknown(Lsn::new(end));
                while server.end <= self.state.acked_upto.as_u64() && is_known(server.end) {
                    server.end += 1;
                }
                (server.confirmed, server.saved) = (server.end, server.end);
                server.is_slot_new = true;
                self.is_plain = false;
            }
            Step::Promote { .. } if self.server.is_slot_new => {}
            Step::Promote { lacks } => {
                let end =
                    self.server.end.saturating_sub(lacks * if self.is_store { 4096 } else { 1 });
                self.server.started = self.next().try_into().expect("few");
                let server = &mut self.server;
                let end = end.max(server.saved);
                self.is_plain &= end == server.end;
                server.transactions.retain(|one| one.end <= end);
                server.forks.iter_mut().for_each(|(_, fork)| *fork = end.min(*fork));
                server.forks.push((server.timeline, end));
                (server.timeline, server.end) = (server.timeline + 1, end);
                server.confirmed = server.saved;
            }
        }
    }

    fn run(&mut self, number: u8, until: Until, is_own_digest: bool) {
        let layout = configured(number);
        self.is_plain &= self.layout.is_none_or(|last| configured(last) == layout);
        let fingerprint = PublicationFingerprint::of(&self.server.altered.to_string());
        let mut found = layout.with(&fingerprint);
        if is_own_digest {
            found.digest.push_str(", worded otherwise");
        }
        self.is_plain &= !until.is_former;
        let Ok(checked) = self.opened(&found) else {
            let accepted = with_publication(&self.state, &self.facts(&found));
            return match accepted.filter(|_| until.adopts) {
                Some(accepted) => self.state = accepted,
                None => self.refused(until),
            };
        };
        (self.state.begun, self.state.ending) = (Some(found.clone()), None);
        self.layout = Some(number);
        self.server.is_slot_new = false;
        let server = self.server.clone();
        let mut check =
            checked.map(|history| HistoryCheck::with_state(Lsn::new(server.confirmed), history));
        let mut run =
            Running { until, left: until.events, layout: layout.clone(), found, dropped: None };
        if self.is_store {
            // It may know of events before the position advances.
            self.state.layout = Some(run.written());
            if check.is_none() {
                self.state.timeline = server.timeline;
            }
            // Otherwise what is published first may look like events of the former timeline.
            self.is_plain &= self.state.timeline == server.timeline;
        }
        for (one, messages) in server.stream(&layout) {
            for message in &messages {
                match check.as_mut().map(|check| check.message(message)) {
                    None | Some(Ok(MessageAction::Pass)) => {}
                    Some(Ok(MessageAction::Same)) => {
                        check = None;
                        assert_eq!(run.dropped, None, "it counts as delivered");
                        self.assert_no_event_is_lost_by_the_server();
                    }
                    Some(Ok(MessageAction::Skip)) => panic!("with a state everything is passed on"),
                    Some(Err(_)) => return self.refused(until),
                }
            }
            if !self.deliver(&one, &mut run, check.is_none()) {
                return self.end(until);
            }
        }
        match check.as_mut().map(|check| check.keepalive(Lsn::new(server.end))) {
            None => {}
            Some(Ok(MessageAction::Same)) => {
                assert_eq!(run.dropped, None, "it counts as delivered");
                self.assert_no_event_is_lost_by_the_server();
            }
            Some(Err(_)) => return self.refused(until),
            Some(Ok(other)) => panic!("the whole history was read: {other:?}"),
        }
        if until.is_written {
            let last = self.state.last;
            self.write(server.end, None, last, &run);
            self.state.ending = until.is_confirmed.then_some(Ending::Stopped);
        }
        self.end(until);
    }

    fn facts<'a>(&self, layout: &'a Layout) -> Facts<'a> {
        let fork = self.server.forks.iter().find(|(of, _)| *of == self.state.timeline);
        Facts {
            server_started: self.server.started,
            timeline: self.server.timeline,
            fork: fork.map(|(_, end)| Lsn::new(*end)),
            flushed: Lsn::new(self.server.end),
            is_standby: false,
            slot: Lsn::new(self.server.confirmed),
            cluster: None,
            layout,
            published: self.published,
            rows: None,
            is_own: false,
            awaited: None,
        }
    }

    /// What has to be compared, if anything.
    fn opened(&mut self, layout: &Layout) -> Result<Option<PublishedHistory>, Refusal> {
        let mut facts = self.facts(layout);
        let mut decision = decide(&self.state, &facts);
        if let Decision::Wait(position) = decision {
            facts.awaited = Some(position);
            decision = decide(&self.state, &facts);
        }
        match decision {
            Decision::Continue(_) => {
                self.assert_no_event_is_lost_by_the_server();
                Ok(None)
            }
            Decision::Compare(history) => Ok(Some(history)),
            Decision::Refuse(refusal) => Err(refusal),
            Decision::Wait(_) => panic!("it would wait for ever"),
        }
    }

    /// Passes a transaction on; false if walpost is killed.
    fn deliver(&mut self, one: &Transaction, run: &mut Running, is_compared: bool) -> bool {
        let events = if is_event(one, &run.layout) { one.rows } else { 0 };
        let commit_lsn = Lsn::new(one.commit);
        for ordinal in 0..events {
            let event = (one.uid, ordinal);
            let position = EventPosition { commit_lsn, ordinal };
            let partial = self.state.partial.map(|partial| partial.next);
            let is_delivered = if self.is_store {
                self.published.is_some_and(|last| position <= last)
            } else {
                commit_lsn < self.state.acked_upto
                    || partial.is_some_and(|next| next.commit_lsn == commit_lsn && position < next)
            };
            if is_delivered {
                let is_known = self.events.contains(&event) || self.passed.contains(&one.uid);
                run.dropped = run.dropped.or(Some(event).filter(|_| !is_known));
                // Before that nothing is confirmed.
                assert!(!is_compared || is_known, "event {event:?} counts as delivered");
                continue;
            }
            if run.left == 0 {
                return false;
            }
            run.left -= 1;
            assert!(is_compared || commit_lsn < self.state.acked_upto, "{event:?} is published");
            if self.is_store {
                self.events.insert(event);
                self.published = Some(position);
            } else if run.until.splits {
                assert!(self.events.insert(event), "{event:?} is published twice");
                let (acked, last) = (self.state.acked_upto.as_u64(), self.state.last);
                let next = EventPosition { ordinal: ordinal + 1, ..position };
                let identity = (!run.until.is_former).then_some((one.xid, time(one)));
                self.write(acked, Some(Partial { next, identity }), last, run);
            }
        }
        if self.state.acked_upto > commit_lsn || !is_compared {
            return true;
        }
        if self.is_store && !run.until.splits {
            // The position is written later, or not at all.
            return true;
        }
        if !self.is_store {
            self.events.extend((0..events).map(|ordinal| (one.uid, ordinal)));
        }
        let (end_lsn, commit_time) = (Lsn::new(one.end), time(one));
        let last = LastTransaction { commit_lsn, end_lsn, xid: one.xid, commit_time };
        self.write(one.end, None, Some(last), run);
        true
    }

    fn write(
        &mut self,
        acked_upto: u64,
        partial: Option<Partial>,
        last: Option<LastTransaction>,
        run: &Running,
    ) {
        let transactions = self.server.transactions.iter();
        let received = transactions
            .filter(|one| one.rows > 0 && one.commit < acked_upto)
            .rfind(|one| match one.table {
                MESSAGES => run.layout.message_prefix.is_some(),
                _ => one.is_published,
            })
            .filter(|one| one.commit >= self.server.confirmed)
            .map(|one| LastTransaction {
                commit_lsn: Lsn::new(one.commit),
                end_lsn: Lsn::new(one.end),
                xid: one.xid,
                commit_time: time(one),
            });
        let last = received.into_iter().chain(last).max_by_key(|one| one.commit_lsn);
        self.state = State {
            partial,
            layout: Some(run.written()),
            timeline: self.server.timeline,
            server_started: self.server.started,
            ..self.state.moved(Lsn::new(acked_upto), last)
        };
        if run.until.is_former {
            (self.state.known_from, self.state.earlier) = (None, Vec::new());
        }
        let passed = self.server.transactions.iter().filter(|one| one.commit < acked_upto);
        self.passed.extend(passed.map(|one| one.uid));
    }

    fn end(&mut self, until: Until) {
        if until.is_confirmed {
            self.server.confirmed = self.server.confirmed.max(self.state.acked_upto.as_u64());
        }
    }

    fn refused(&mut self, until: Until) {
        assert!(!self.is_plain, "it is refused without a reason");
        if !until.adopts {
            return;
        }
        self.state = State::accepted(self.server.timeline, Lsn::new(self.server.confirmed));
        self.published = None;
        self.events.clear();
        let given_up = self.server.transactions.iter();
        let given_up = given_up.filter(|one| one.commit < self.server.confirmed);
        self.passed = given_up.map(|one| one.uid).collect();
        let uids = |server: &Server| -> Vec<u64> {
            server.transactions.iter().map(|one| one.uid).collect()
        };
        let own = uids(&self.server);
        let is_later =
            |saved: &Server| own.starts_with(&uids(saved)) && saved.end >= self.server.confirmed;
        self.snapshot = self.snapshot.take().filter(is_later);
    }

    fn assert_no_event_is_lost_by_the_server(&self) {
        let is_there = |uid: u64| self.server.transactions.iter().any(|one| one.uid == uid);
        let lost = self.events.iter().find(|(uid, _)| !is_there(*uid));
        assert_eq!(lost, None, "it is published, and the server has lost it");
    }
}

/// A run that is under way.
struct Running {
    until: Until,
    left: u32,
    layout: ConfiguredLayout,
    found: Layout,
    /// An event that counted as delivered, and is not.
    dropped: Option<Event>,
}

impl Running {
    /// The layout in the state.
    fn written(&self) -> Layout {
        let known = self.found.known.clone().filter(|_| !self.until.is_former);
        Layout { known, ..self.found.clone() }
    }
}

#[test]
fn delivery_never_continues_where_an_event_or_a_row_could_be_lost() {
    for is_store in [false, true] {
        let name = "delivery_never_continues_where_an_event_or_a_row_could_be_lost";
        property::holds(name, 20_000, &steps(), |steps| {
            let mut world = World::new(is_store);
            for step in &steps {
                world.take(step);
            }
        });
    }
}
