//! From relation and tuple, or from a logical message, to an outbox event.

mod event;

pub use event::{Event, Field, Position};
