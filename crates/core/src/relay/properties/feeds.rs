//! What the two feeds send for a history, and switches between them.

use std::collections::VecDeque;

use super::super::*;
use super::outside::{FOREIGN, logical, noise, relations};
use super::{Past, World, relation_of};
use crate::pgoutput::Commit;

#[derive(Debug, Clone)]
pub(super) enum Input {
    Message(Message),
    Keepalive(Lsn),
}

impl World {
    /// What the next session will send. Catch-up batches start only at the flush LSN: records in
    /// flight beyond it would be sent again.
    pub(super) fn feed(&self) -> VecDeque<Input> {
        let start = self.core.resume_at().max(self.slot);
        match self.batches {
            Some(messages) if start == self.core.flush_lsn() => self.batches(start, messages),
            _ => self.stream(start),
        }
    }

    /// What a stream from `start` sends, in order: by PostgreSQL's rule, with the highest `wal_end`
    /// allowed in each keepalive.
    fn stream(&self, start: Lsn) -> VecDeque<Input> {
        let mut sent = relations_again();
        for past in self.history.iter().filter(|past| Lsn::new(past.commit) >= start) {
            let (commit_lsn, end_lsn) = (Lsn::new(past.commit), Lsn::new(past.end));
            if past.loose {
                sent.push_back(Input::Message(logical(false, "outbox", "{}".into())));
            }
            sent.push_back(Input::Keepalive(commit_lsn));
            for (at, message) in self.transaction(past).into_iter().enumerate() {
                if at % 5 == 2 {
                    sent.push_back(Input::Keepalive(Lsn::new(past.end + 1000)));
                }
                sent.push_back(Input::Message(message));
            }
            if past.commit % 2 == 0 {
                sent.push_back(Input::Keepalive(end_lsn));
            }
        }
        sent.push_back(Input::Keepalive(self.end()));
        sent
    }

    /// What a catch-up from `start` sends. A batch ends after the transaction with which it reaches
    /// this many messages, starts with the relations, and is followed by a keepalive at the end of
    /// what was read; in an empty batch that is the end of its range.
    fn batches(&self, start: Lsn, messages: usize) -> VecDeque<Input> {
        let mut sent = VecDeque::new();
        let mut batch = relations_again();
        for past in self.history.iter().filter(|past| Lsn::new(past.commit) >= start) {
            if past.commit % 3 == 0 && batch.len() == relations_again().len() {
                sent.push_back(Input::Keepalive(Lsn::new(past.commit)));
            }
            if past.loose {
                batch.push_back(Input::Message(logical(false, "outbox", "{}".into())));
            }
            batch.extend(self.transaction(past).into_iter().map(Input::Message));
            if batch.len() >= messages {
                sent.append(&mut batch);
                sent.push_back(Input::Keepalive(Lsn::new(past.end)));
                batch = relations_again();
            }
        }
        sent.append(&mut batch);
        sent.push_back(Input::Keepalive(self.end()));
        sent
    }

    fn transaction(&self, past: &Past) -> Vec<Message> {
        let (commit_lsn, end_lsn) = (Lsn::new(past.commit), Lsn::new(past.end));
        let commit_time = PgTimestamp::default();
        let mut messages = vec![Message::Begin(Begin { commit_lsn, commit_time, xid: 1 })];
        for event in past.events.clone() {
            messages.extend(noise(event));
            messages.push(self.message(event));
        }
        messages.push(Message::Commit(Commit { commit_lsn, end_lsn, commit_time }));
        messages
    }

    /// Switches to batches of this many messages or to a stream, under the driver's conditions:
    /// between transactions, and to a catch-up only with nothing in flight; a stream may also
    /// replace a feed within a transaction if nothing was taken for long.
    pub(super) fn switch_feed(&mut self, batches: Option<usize>) {
        let is_within = self.core.ledger.is_open();
        let is_free = self.core.in_flight().0 == 0 && !is_within;
        let stays = self.core.wants_replay().is_some() || self.draining;
        if self.coming.is_none() || stays || batches.is_some() && !is_free {
            return;
        }
        self.troubled |= is_within;
        self.coming = None;
        self.core.session_lost();
        self.batches = batches;
        self.connect();
        let Some(furthest) = self.broker.furthest.filter(|_| !self.troubled) else { return };
        let again = |input: &Input| match input {
            Input::Message(message) => {
                (0..=furthest).rev().take(3).any(|event| *message == self.message(event))
            }
            Input::Keepalive(_) => false,
        };
        let repeated = self.coming.iter().flatten().take(100).find(|input| again(input));
        assert!(repeated.is_none(), "I5: a feed switch repeats {repeated:?}");
    }
}

fn relations_again() -> VecDeque<Input> {
    let all = relations().into_iter().chain([relation_of(FOREIGN, "accounts")]);
    all.map(|relation| Input::Message(Message::Relation(relation))).collect()
}
