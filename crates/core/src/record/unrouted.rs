//! Why there is no record of an event.

use crate::outbox::Event;

use super::poison::Poison;
use super::schema::{SchemaRef, Unencoded};

/// Why there is no record of an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unrouted {
    /// It is poison.
    #[error(transparent)]
    Poison(#[from] Poison),
    /// What the registry has of a schema has to be learned first: see [`Router::learn`](super::Router::learn).
    #[error("{0} is not known yet")]
    NeedsSchema(SchemaRef),
}

impl Unrouted {
    /// The poison, if it is that.
    pub fn poison(self) -> Option<Poison> {
        match self {
            Self::Poison(poison) => Some(poison),
            Self::NeedsSchema(_) => None,
        }
    }

    pub(super) fn of(unencoded: Unencoded, event: &Event<'_>) -> Self {
        match unencoded {
            Unencoded::Undeliverable(cause) => Self::Poison(Poison::new(cause, event)),
            Unencoded::Needs(schema) => Self::NeedsSchema(schema),
        }
    }
}
