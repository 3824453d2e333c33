//! Debezium compatibility: the same records, and its connectors' configurations imported.

mod connectors;
mod profiles;
