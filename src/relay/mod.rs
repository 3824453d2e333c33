//! The relay: the pure state machine, and the loop that performs what it decides.

pub mod core;
