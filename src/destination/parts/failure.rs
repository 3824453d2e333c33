//! Why a destination cannot be used: one list for all, by what can be done about it.

use crate::ledger::Seq;
use crate::outlet::{Ground, Refusal};
use crate::sink::{Condition, Fault, Outcome, Report};
use crate::state::StateFailure;

/// The code of the publish-error metric for records that are refused.
pub(super) const REFUSED: &str = "refused";

/// Why a destination cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// The destination does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The destination rejects the login.
    #[error("{0}")]
    Unauthenticated(String),
    /// The user lacks a right.
    #[error("{0}")]
    Unauthorized(String),
    /// The user may not publish to this topic, which rows may name: its records are suspects.
    #[error("walpost's user may not publish to `{0}`")]
    Denied(String),
    /// What all records go to, or the place that has it, does not exist: waited for.
    #[error("{0}")]
    Missing(String),
    /// The destination answers, and takes no events now.
    #[error("{0}")]
    Unusable(String),
    /// The destination cannot be used with walpost as it is configured.
    #[error("{0}")]
    Unsupported(String),
    /// The destination does not take values of more bytes than `max`.
    #[error("{reason}")]
    TooLarge { max: u64, reason: String },
    /// The destination does not take this record: because of the record, or for an unknown reason.
    #[error("{reason}")]
    Record {
        /// The record's number in its batch.
        number: usize,
        /// The production, once that is known.
        seq: Option<Seq>,
        /// Whether it is known to be because of the record.
        is_known: bool,
        reason: String,
    },
    /// An event before this one was not stored. Reading what is there tells why.
    #[error("an event before this one was not stored: {0}")]
    Gap(String),
    /// This process has opened the state key again since.
    #[error("this walpost has opened the state key again")]
    Superseded,
    /// Another walpost holds the slot, or the state key is gone.
    #[error("another walpost has taken over the stream, or its state key was deleted or set back")]
    Fenced,
    /// The stream has other contents than walpost's events: an operator must decide.
    #[error("{0}")]
    Stream(String),
}

impl Failure {
    /// The condition to report while connecting is tried again; `None`: it is not, since only a new session
    /// finds out what is to be done.
    pub(crate) fn condition(&self) -> Option<Condition> {
        let reason = self.to_string();
        match self {
            Self::Unreachable(_) => Some(Condition::Unreachable(reason)),
            Self::Unauthenticated(_) => Some(Condition::Unauthenticated(reason)),
            Self::Superseded | Self::Fenced | Self::Stream(_) => None,
            _ => Some(Condition::Stalled { reason, fault: Fault::OutOfReach }),
        }
    }

    /// The label of the publish-error metric.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Unauthenticated(_) => "unauthenticated",
            Self::Unauthorized(_) => "unauthorized",
            Self::Denied(_) => "denied",
            Self::Missing(_) => "missing",
            Self::Unusable(_) => "unusable",
            Self::Unsupported(_) => "unsupported",
            Self::TooLarge { .. } => "too_large",
            Self::Record { .. } => "record",
            Self::Gap(_) => "gap",
            Self::Superseded => "superseded",
            Self::Fenced => "fenced",
            Self::Stream(_) => "stream",
        }
    }

    /// What becomes of the record that it is about.
    pub(crate) fn report(&self) -> Option<Report> {
        let Self::Record { seq: Some(seq), is_known, reason, .. } = self else { return None };
        let refusal = |ground| Refusal { ground, may_pass: false, reason: reason.clone() };
        let outcome = if *is_known {
            Outcome::Refused(refusal(Ground::Size))
        } else {
            Outcome::Suspect(refusal(Ground::Other))
        };
        Some(Report::new(*seq, outcome))
    }
}

impl From<Failure> for StateFailure {
    fn from(failure: Failure) -> Self {
        let reason = failure.to_string();
        match failure {
            Failure::Unauthenticated(_) => Self::Unauthenticated(reason),
            Failure::Unauthorized(_) | Failure::Denied(_) => Self::Unauthorized(reason),
            Failure::Unsupported(_) => Self::Unreadable(reason),
            Failure::Stream(_) => Self::Diverged(reason),
            Failure::Fenced => Self::Fenced,
            _ => Self::Unavailable(reason),
        }
    }
}
