//! Beside Debezium: its records made by walpost, its connectors' configurations read, and
//! a real one relieved.

mod connectors;
mod profiles;
mod slot_handover;
