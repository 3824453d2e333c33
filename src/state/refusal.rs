//! The errors of positions from which delivery does not continue.

use super::agreement::{Facts, Refusal};
use super::record::State;
use crate::source::SlotError;

impl Refusal {
    /// The error for an operator. `place` is what the state is called, `lossy_store` the name
    /// of one that may lose writes.
    pub fn into_error(
        self,
        (place, lossy_store): (String, Option<&'static str>),
        slot: String,
        state: &State,
        facts: &Facts<'_>,
    ) -> SlotError {
        let acked = state.acked_upto;
        match self {
            Self::UnfinishedRows => SlotError::UnfinishedRows { slot, place },
            Self::TakenOver => SlotError::TakenOver { place },
            Self::LostInFailover { fork, published } => SlotError::LostInFailover {
                found: facts.timeline,
                known: state.timeline,
                fork,
                published,
            },
            Self::OtherTimeline => SlotError::OtherState {
                place,
                known: format!("timeline {} of the server", state.timeline),
                found: format!("timeline {}", facts.timeline),
            },
            Self::OtherCluster { known, found } => {
                SlotError::OtherState { place, known: format!("Kafka cluster {known}"), found }
            }
            Self::SlotAhead => {
                SlotError::AheadOfState { slot, found: facts.slot, acked, place, lossy_store }
            }
            Self::SlotMadeAgain => SlotError::MadeAgain { slot, found: facts.slot, acked, place },
            Self::Behind { published: acked } => {
                SlotError::BehindState { flushed: facts.flushed, acked, place }
            }
            Self::SkipOutdated(position) => SlotError::SkipOutdated { place, position },
            Self::PartlyPublished(next) => SlotError::PartlyPublished {
                place,
                commit_lsn: next.commit_lsn,
                events: next.ordinal,
            },
            Self::OtherPublication => SlotError::OtherPublication { place, found: facts.slot },
            Self::Unidentified(commit_lsn) => SlotError::Unidentified { place, commit_lsn },
        }
    }
}
