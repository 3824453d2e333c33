//! The relay: the pure state machine, and the loop that performs what it decides.

pub mod core;
mod driver;
mod ends;
mod halt;
mod meter;
mod news;
pub mod outlet;
mod pace;
pub mod poison;
mod stall;
mod standby;
mod stop;
mod stuck;
mod suspect;
mod waits;

pub use driver::Relay;
pub use ends::{RelayError, RelaySettings, Summary, Until};
pub use stop::{StopHandle, stop_channel};
