//! Debezium compatibility: the same records, its connector configurations imported, and its slot
//! taken over from a real Debezium.

mod connectors;
mod profiles;
mod slot_handover;
