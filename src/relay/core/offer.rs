//! Offering a record to the outlet.

use super::{Outlet, ProduceError, RECORD_OVERHEAD_BYTES, Refusal};
use crate::ledger::Seq;
use crate::outbox::Event;
use crate::record::{Poison, Record};

/// The outlet's response to a record.
pub(super) enum Offered {
    /// Taken, with the record's weight, and its topic and lane if it is isolated.
    Taken {
        weight: u64,
        isolated: Option<(String, Option<u64>)>,
    },
    /// The outlet is full for now.
    Full,
    Refused(Poison),
    Suspect {
        refusal: Refusal,
        isolated: Option<(String, Option<u64>)>,
    },
    Broken(String),
}

pub(super) fn offer(
    record: &Record<'_>,
    seq: Seq,
    event: &Event<'_>,
    isolated: bool,
    outlet: &mut impl Outlet,
) -> Offered {
    let produced = outlet.produce(seq, event.position, record);
    match produced {
        Ok(()) => Offered::Taken {
            weight: record.bytes() as u64 + RECORD_OVERHEAD_BYTES,
            isolated: isolated.then(|| (record.topic.to_owned(), outlet.lane(record))),
        },
        Err(ProduceError::Suspect(refusal)) => Offered::Suspect {
            refusal,
            isolated: isolated.then(|| (record.topic.to_owned(), outlet.lane(record))),
        },
        Err(ProduceError::Full) => Offered::Full,
        Err(ProduceError::Refused(refusal)) => {
            Offered::Refused(Poison::new(refusal.cause(record.topic), event))
        }
        Err(ProduceError::Broken(reason)) => Offered::Broken(reason),
    }
}
