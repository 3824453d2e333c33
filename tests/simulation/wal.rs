//! The simulated WAL: what was committed, and the pgoutput messages for it.

use bytes::{BufMut as _, Bytes, BytesMut};
use fastrand::Rng;
use walpost::Lsn;
use walpost::outlet::{Ground, Refusal};
use walpost::pgoutput::{
    self, Begin, Column, Commit, LogicalMessage, Message, Oid, PgTimestamp, Relation, TypeName,
};
use walpost::source::Received;

/// The number of outbox tables; the relations after them are other tables.
pub(crate) const OUTBOXES: usize = 2;

/// Relations of the publication, by name; ids are these plus [`FIRST_OID`].
const RELATIONS: [&str; OUTBOXES + 1] = ["outbox", "orders_outbox", "accounts"];

const FIRST_OID: Oid = 16_384;

/// Topics, and keys in each; two keys share a partition.
const TOPICS: usize = 2;
const KEYS: usize = 4;

/// The number of partitions of all topics.
pub(crate) const PARTITIONS: usize = TOPICS * KEYS / 2;

/// The start of the ids of rows that must never be published.
pub(crate) const NEVER: usize = 1_000_000_000;

/// The committed transactions, in order.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    pub(crate) items: Vec<Item>,
    pub(crate) events: Vec<Event>,
    pub(crate) end: Lsn,
    /// The time of the last commit. A restored server has the ids of its transactions once more, and no
    /// time.
    time: i64,
    /// The size of all records, as a multiple of the smallest.
    scale: u64,
}

/// A part of the WAL.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    /// A committed transaction.
    Transaction { commit: Lsn, end: Lsn, id: TransactionId, changes: Vec<Change> },
    /// A message with our prefix outside of a transaction: never an event.
    Loose { lsn: Lsn, end: Lsn },
    /// WAL that the slot does not decode: other databases, aborted transactions.
    Other { end: Lsn },
}

/// Its id, and the time of its commit.
pub(crate) type TransactionId = (u32, PgTimestamp);

/// A change inside a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// A row of an outbox table.
    Row {
        table: usize,
        event: usize,
    },
    /// A logical message with our prefix.
    Message {
        event: usize,
    },
    /// A row of another table.
    Foreign,
    /// A logical message of another application.
    Theirs,
    Update(usize),
    Delete(usize),
    Truncate,
    Type,
    Origin,
}

/// An event of an outbox.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// Index of its transaction in the WAL.
    pub(crate) item: usize,
    pub(crate) commit: Lsn,
    pub(crate) ordinal: u32,
    pub(crate) topic: usize,
    pub(crate) key: usize,
    pub(crate) bytes: usize,
    pub(crate) poison: Poison,
    /// Whether an operator has raised the limit that rejected it.
    pub(crate) forgiven: bool,
}

/// Why an event cannot be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Poison {
    None,
    /// It has no key.
    Keyless,
    /// The broker rejects it until an operator raises a limit.
    TooLarge,
    /// The producer rejects it until an operator raises a limit.
    TooLargeHere,
    /// The broker refuses it as it refuses everything during an outage, until an operator allows it.
    Forbidden,
}

/// A record that is too large, or forbidden, as everything is during an outage.
pub(crate) fn refusal(ground: Ground) -> Refusal {
    Refusal { ground, may_pass: false, reason: "refused".to_owned() }
}

/// How far a session has sent the WAL.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    item: usize,
    step: usize,
    known: [bool; RELATIONS.len()],
}

impl Log {
    pub(crate) fn new(scale: u64) -> Self {
        Self { items: Vec::new(), events: Vec::new(), end: Lsn::new(1000), time: 0, scale }
    }

    /// Commits a transaction with about that many events.
    pub(crate) fn commit(&mut self, rng: &mut Rng, size: usize, poison: Poison) {
        let commit = self.forward(rng.u64(0..20));
        let guilty = if poison == Poison::None { usize::MAX } else { rng.usize(0..size.max(1)) };
        let mut changes = Vec::new();
        for ordinal in 0..size {
            noise(rng, &mut changes);
            let poison = if ordinal == guilty { poison } else { Poison::None };
            let event = self.events.len();
            self.events.push(Event {
                item: self.items.len(),
                commit,
                ordinal: u32::try_from(ordinal).expect("few"),
                topic: rng.usize(0..TOPICS),
                key: rng.usize(0..KEYS),
                bytes: rng.usize(0..120),
                poison,
                forgiven: false,
            });
            changes.push(match rng.u8(0..8) {
                0 => Change::Message { event },
                kind => Change::Row { table: usize::from(kind % 2), event },
            });
        }
        noise(rng, &mut changes);
        let end = self.forward(rng.u64(1..20));
        self.time += 1;
        let xid = u32::try_from(self.items.len()).expect("few") + 1;
        let id = (xid, PgTimestamp::from_micros(self.time));
        self.items.push(Item::Transaction { commit, end, id, changes });
    }

    /// Only the first items are there, and the WAL ends there.
    pub(crate) fn restore(&mut self, items: usize, end: Lsn) {
        self.items.truncate(items);
        self.events.retain(|event| event.item < items);
        self.end = end;
    }

    pub(crate) fn nontransactional_message(&mut self, rng: &mut Rng) {
        let lsn = self.forward(rng.u64(0..20));
        let end = self.forward(rng.u64(1..20));
        self.items.push(Item::Loose { lsn, end });
    }

    pub(crate) fn other(&mut self, rng: &mut Rng) {
        let end = self.forward(rng.u64(1..60));
        self.items.push(Item::Other { end });
    }

    fn forward(&mut self, by: u64) -> Lsn {
        self.end = Lsn::new(self.end.as_u64() + by * self.scale);
        self.end
    }

    /// What a session that starts at `from` sends next; PostgreSQL's rule is
    /// that a transaction is sent exactly when its commit LSN is at or after it.
    pub(crate) fn send(&self, cursor: &mut Cursor, from: Lsn) -> Option<Received> {
        loop {
            match self.items.get(cursor.item)? {
                Item::Transaction { commit, end, id, changes } if *commit >= from => {
                    let message = self.step(cursor, (*commit, *end), *id, changes);
                    return Some(Received::Message(message));
                }
                Item::Loose { lsn, .. } if *lsn >= from => {
                    cursor.item += 1;
                    return Some(Received::Message(loose(*lsn)));
                }
                _ => cursor.item += 1,
            }
        }
    }

    /// What an SQL call from `from` returns, and its end position: `upto`, or the end of the record
    /// that reaches it, or the end of the transaction with which it has `most` messages or more.
    /// Each call repeats the relation messages.
    pub(crate) fn batch(
        &self,
        rng: &mut Rng,
        from: Lsn,
        upto: Lsn,
        most: usize,
    ) -> (Vec<Message>, Lsn) {
        let (mut messages, mut read) = (Vec::new(), from);
        let first = self.items.partition_point(|item| item.end() <= from);
        let mut cursor = Cursor { item: first, ..Cursor::default() };
        while read < upto
            && messages.len() < most
            && let Some(item) = self.items.get(cursor.item)
        {
            let begins = item.begins();
            if begins >= upto {
                read = Lsn::new(rng.u64(upto.as_u64()..=begins.as_u64()));
                break;
            }
            match item {
                Item::Transaction { commit, end, id, changes } if *commit >= from => {
                    let this = cursor.item;
                    while cursor.item == this {
                        messages.push(self.step(&mut cursor, (*commit, *end), *id, changes));
                    }
                }
                Item::Loose { lsn, .. } if *lsn >= from => {
                    messages.push(loose(*lsn));
                    cursor.item += 1;
                }
                _ => cursor.item += 1,
            }
            read = item.end();
        }
        (messages, read)
    }

    /// The position up to which everything that committed was sent.
    pub(crate) fn sent(&self, cursor: &Cursor) -> Lsn {
        let items = &self.items[..cursor.item.min(self.items.len())];
        items.last().map_or(Lsn::new(1000), Item::end)
    }

    fn step(
        &self,
        cursor: &mut Cursor,
        (commit, end): (Lsn, Lsn),
        (xid, commit_time): TransactionId,
        changes: &[Change],
    ) -> Message {
        if cursor.step == 0 {
            cursor.step = 1;
            return Message::Begin(Begin { commit_lsn: commit, commit_time, xid });
        }
        let Some(change) = changes.get(cursor.step - 1) else {
            cursor.item += 1;
            cursor.step = 0;
            return Message::Commit(Commit { commit_lsn: commit, end_lsn: end, commit_time });
        };
        if let Some(at) = change.relation()
            && !cursor.known[at]
        {
            cursor.known[at] = true;
            return Message::Relation(relation(at));
        }
        cursor.step += 1;
        self.message(change, commit)
    }

    fn message(&self, change: &Change, commit: Lsn) -> Message {
        match *change {
            Change::Row { table, event } => insert(table, event, Some(&self.events[event])),
            Change::Foreign => insert(OUTBOXES, 0, None),
            Change::Message { event } => {
                let Event { topic, key, bytes, poison, .. } = &self.events[event];
                let key = if *poison == Poison::Keyless { String::new() } else { key.to_string() };
                let payload = "x".repeat(*bytes);
                let content = format!(
                    r#"{{"id":{event},"aggregate_type":"t{topic}","aggregate_id":"{key}","payload":"{payload}"}}"#
                );
                logical(true, commit, "outbox", content)
            }
            Change::Theirs => logical(true, commit, "theirs", "{}".to_owned()),
            Change::Update(table) => Message::Update(oid(table)),
            Change::Delete(table) => Message::Delete(oid(table)),
            Change::Truncate => Message::Truncate(vec![oid(0), oid(OUTBOXES)]),
            Change::Type => Message::Type(TypeName {
                oid: 16_384,
                base_schema: "public".into(),
                base_name: "mood".into(),
            }),
            Change::Origin => Message::Origin,
        }
    }
}

impl Item {
    pub(crate) fn end(&self) -> Lsn {
        match self {
            Self::Transaction { end, .. } | Self::Loose { end, .. } | Self::Other { end } => *end,
        }
    }

    /// The start of the record with which it is sent; any position for parts that are not sent.
    fn begins(&self) -> Lsn {
        match self {
            Self::Transaction { commit, .. } => *commit,
            Self::Loose { lsn, .. } => *lsn,
            Self::Other { end } => *end,
        }
    }

    pub(crate) fn commit(&self) -> Option<Lsn> {
        match self {
            Self::Transaction { commit, .. } => Some(*commit),
            Self::Loose { .. } | Self::Other { .. } => None,
        }
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = usize> {
        let changes = match self {
            Self::Transaction { changes, .. } => changes.as_slice(),
            Self::Loose { .. } | Self::Other { .. } => &[],
        };
        changes.iter().filter_map(|change| match change {
            Change::Row { event, .. } | Change::Message { event } => Some(*event),
            _ => None,
        })
    }
}

impl Change {
    fn relation(self) -> Option<usize> {
        match self {
            Self::Row { table, .. } | Self::Update(table) | Self::Delete(table) => Some(table),
            Self::Foreign => Some(OUTBOXES),
            _ => None,
        }
    }
}

impl Event {
    /// Whether it currently cannot be delivered for that reason.
    pub(crate) fn is(&self, poison: Poison) -> bool {
        self.poison == poison && !self.forgiven
    }

    pub(crate) fn partition(&self) -> usize {
        self.topic * KEYS / 2 + self.key / 2
    }
}

/// A change that is not an event.
fn noise(rng: &mut Rng, changes: &mut Vec<Change>) {
    while rng.u8(0..6) == 0 {
        changes.push(match rng.u8(0..8) {
            0 => Change::Update(rng.usize(0..=OUTBOXES)),
            1 => Change::Delete(rng.usize(0..=OUTBOXES)),
            2 => Change::Truncate,
            3 => Change::Type,
            4 => Change::Origin,
            5 => Change::Theirs,
            _ => Change::Foreign,
        });
    }
}

pub(crate) fn relation(at: usize) -> Relation {
    let column = |name: &str| Column { name: name.into(), type_oid: 25, type_modifier: -1 };
    let names = ["id", "aggregate_type", "aggregate_id", "event_type", "payload"];
    Relation {
        oid: oid(at),
        schema: "public".into(),
        name: RELATIONS[at].into(),
        columns: names.into_iter().map(column).collect(),
    }
}

fn oid(at: usize) -> Oid {
    FIRST_OID + Oid::try_from(at).expect("few")
}

/// A message with our prefix outside of a transaction.
fn loose(lsn: Lsn) -> Message {
    logical(false, lsn, "outbox", format!(r#"{{"id": {NEVER}, "aggregate_type": "t0"}}"#))
}

fn logical(transactional: bool, lsn: Lsn, prefix: &str, content: String) -> Message {
    let content = Bytes::from(content);
    Message::Logical(LogicalMessage { transactional, lsn, prefix: prefix.into(), content })
}

/// An Insert, decoded from the bytes that PostgreSQL would send.
fn insert(at: usize, number: usize, event: Option<&Event>) -> Message {
    let keyless = event.is_some_and(|event| event.poison == Poison::Keyless);
    let topic = event.map_or(0, |event| event.topic);
    let key = event.map_or(0, |event| event.key);
    let values = [
        Some(number.to_string()),
        Some(format!("t{topic}")),
        (!keyless).then(|| key.to_string()),
        Some("made".to_owned()),
        Some("x".repeat(event.map_or(0, |event| event.bytes))),
    ];
    let mut out = BytesMut::new();
    out.put_u8(b'I');
    out.put_u32(oid(at));
    out.put_u8(b'N');
    out.put_u16(5);
    for value in values {
        let Some(text) = value else {
            out.put_u8(b'n');
            continue;
        };
        out.put_u8(b't');
        out.put_u32(u32::try_from(text.len()).expect("short"));
        out.put_slice(text.as_bytes());
    }
    pgoutput::decode(&out.freeze()).expect("as PostgreSQL writes it")
}
