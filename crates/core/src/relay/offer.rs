//! Offering a record to the outlet.

use super::{Outlet, ProduceError, RECORD_OVERHEAD_BYTES, Refusal};
use crate::ledger::Seq;
use crate::outbox::Event;
use crate::record::{Poison, Record};

/// Where the outlet sends a record.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) topic: String,
    /// See [`Outlet::lane`].
    pub(super) lane: Option<u64>,
    /// See [`Outlet::has_place_for_each_topic`].
    pub(super) is_of_topic: bool,
    /// See [`Outlet::outlives_refusals`].
    pub(super) outlives_refusals: bool,
    /// See [`Outlet::asks`].
    pub(super) asks: bool,
}

impl Place {
    fn of(record: &Record<'_>, outlet: &(impl Outlet + ?Sized)) -> Self {
        let (topic, lane) = (record.topic.to_owned(), outlet.lane(record));
        let is_of_topic = outlet.has_place_for_each_topic();
        let (outlives_refusals, asks) = (outlet.outlives_refusals(), outlet.asks());
        Self { topic, lane, is_of_topic, outlives_refusals, asks }
    }
}

/// What a record is offered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Delivery,
    /// To see whether it is refused alone.
    Isolation,
    /// To see whether another is accepted while the suspect is not.
    Probe,
}

/// The outlet's response to a record.
pub(super) enum Offered {
    /// Taken, with the record's weight, and its place if it is isolated.
    Taken {
        weight: u64,
        isolated: Option<Place>,
    },
    /// The outlet is full for now.
    Full,
    Refused(Poison),
    Suspect {
        refusal: Refusal,
        isolated: Option<Place>,
    },
    Broken(String),
}

pub(super) fn offer(
    record: &Record<'_>,
    seq: Seq,
    event: &Event<'_>,
    purpose: Purpose,
    outlet: &mut (impl Outlet + ?Sized),
) -> Offered {
    let isolated = purpose == Purpose::Isolation;
    let produced = match purpose {
        Purpose::Probe => outlet.probe(seq, event.position, record),
        Purpose::Delivery | Purpose::Isolation => outlet.produce(seq, event.position, record),
    };
    match produced {
        Ok(()) => Offered::Taken {
            weight: record.bytes() as u64 + RECORD_OVERHEAD_BYTES,
            isolated: isolated.then(|| Place::of(record, outlet)),
        },
        Err(ProduceError::Suspect(refusal)) => {
            Offered::Suspect { refusal, isolated: isolated.then(|| Place::of(record, outlet)) }
        }
        Err(ProduceError::Full) => Offered::Full,
        Err(ProduceError::Refused(refusal)) => {
            Offered::Refused(Poison::new(refusal.cause(record.topic), event))
        }
        Err(ProduceError::Broken(reason)) => Offered::Broken(reason),
    }
}
