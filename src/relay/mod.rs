//! The relay: the pure state machine, and the loop that performs what it decides.

pub mod core;
mod driver;
mod pace;
mod stop;

pub use driver::{Relay, RelayError, RelaySettings, Summary, Until};
pub use stop::{StopHandle, stop_channel};
