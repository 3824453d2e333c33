//! The relay: the pure state machine, and the loop that executes its decisions.

mod backoff;
mod batching_pause;
pub mod core;
mod driver;
mod event_log;
mod run_result;
mod stalled_producer;
mod standby;
mod stats;
mod stop;
mod stuck_stream;

pub use driver::{CommitLimits, Relay, StateSettings};
pub use run_result::{RelayError, RelaySettings, Summary, Until};
pub use stop::{StopHandle, stop_channel};
