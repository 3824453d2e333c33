//! The relay: the loop that executes the decisions of the core, and what it stands on.

mod backoff;
mod batching_pause;
mod delivery_log;
mod driver;
mod run_result;
mod schemas;
mod stalled_producer;
mod standby;
mod stats;
mod stop;
mod stuck_stream;
mod trail;

pub use driver::{CommitLimits, Relay, StateSettings};
pub use run_result::{RelayError, RelaySettings, Summary, Until};
pub use schemas::{Asking, Learned, Schemas};
pub use stop::{StopHandle, stop_channel};
#[doc(inline)]
pub use walpost_core::relay::{Core, Counters, Halt};
