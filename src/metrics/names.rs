//! The metrics: name, type, labels and help of each. The reference page is generated from here.
//!
//! Names follow Prometheus's conventions (prometheus.io/docs/practices/naming): base units,
//! `_total` for counters, `_timestamp_seconds` for times.

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only increases, from 0 at the start of the process.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Counts durations in seconds, by bucket.
    Histogram,
}

impl Kind {
    /// The type's name in the exposition format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// The metric's name in the exposition.
    pub name: &'static str,
    /// The metric's type.
    pub kind: Kind,
    /// The metric's labels in addition to `database` and `slot`.
    pub labels: &'static [&'static str],
    /// The metric's help text.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`")]
            pub const $constant: Metric =
                Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )*

        /// All of walpost's own metrics, in the order of the reference page.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    BUILD_INFO = Gauge "walpost_build_info" ["version", "librdkafka"]
        "Always 1. The labels give the versions of walpost and of its librdkafka.";
    SOURCE_CONNECTED = Gauge "walpost_source_connected" []
        "1 if walpost holds the slot (streaming or catching up), else 0. A standby instance has 0.";
    SINK_CONNECTED = Gauge "walpost_sink_connected" []
        "1 if the destination is connected (of Kafka, a broker), else 0 (also if not known yet). Updated every 5 s, and at each failure and delivery.";
    SINK_PRODUCERS = Gauge "walpost_sink_producers" []
        "Producers that send at the same time. walpost adds some while the brokers are far away and the rate is high (kafka.max_producers).";
    SLOT_LAG_BYTES = Gauge "walpost_slot_lag_bytes" []
        "Unconfirmed WAL: current WAL position minus confirmed_flush_lsn, read from PostgreSQL every 5 s. It includes WAL of other tables, so on a busy server it is seldom 0.";
    SLOT_RETAINED_WAL_BYTES = Gauge "walpost_slot_retained_wal_bytes" []
        "WAL that PostgreSQL retains on disk for the slot: current WAL position minus restart_lsn.";
    SLOT_SAFE_WAL_BYTES = Gauge "walpost_slot_safe_wal_bytes" []
        "WAL that can be written before the slot is in danger of being lost (safe_wal_size). Absent if max_slot_wal_keep_size sets no limit.";
    SLOT_WAL_LIMIT_BYTES = Gauge "walpost_slot_wal_limit_bytes" []
        "max_slot_wal_keep_size. Absent if it sets no limit.";
    SLOT_WAL_STATUS = Gauge "walpost_slot_wal_status" ["status"]
        "1 for the slot's wal_status (reserved, extended, unreserved, lost), 0 for the others.";
    SLOT_SPILLED_BYTES = Counter "walpost_slot_spilled_bytes_total" []
        "Bytes of large transactions that PostgreSQL spilled to disk while it decoded them for the slot (pg_stat_replication_slots). Counted by the server, not from walpost's start.";
    SLOT_OBSERVED_TIMESTAMP = Gauge "walpost_slot_observed_timestamp_seconds" []
        "When the slot metrics were last read; 0 before the first read. They keep their last values while PostgreSQL is unreachable.";
    OUTBOX_SIZE_BYTES = Gauge "walpost_outbox_size_bytes" ["table"]
        "Size of an outbox table on disk, with its partitions, indexes and TOAST, read from PostgreSQL once a minute. It keeps its last value while the table is locked exclusively. Deleted rows count until vacuum has freed their pages.";
    STANDBY_INSTANCES = Gauge "walpost_standby_instances" []
        "Instances that stand by to continue in the place of this one, read from PostgreSQL once a minute; absent while another instance is active.";
    RECEIVED_LSN = Gauge "walpost_received_lsn" []
        "Position up to which WAL was received, as a number of bytes.";
    CONFIRMED_LSN = Gauge "walpost_confirmed_lsn" []
        "Position up to which everything is delivered and may be confirmed (flush LSN), as a number of bytes.";
    TRANSACTIONS = Counter "walpost_transactions_total" []
        "Transactions received completely, including those without an event.";
    EVENTS_RECEIVED = Counter "walpost_events_received_total" []
        "Outbox events received. Events that are replayed count again.";
    NEW_EVENTS = Counter "walpost_new_events_total" []
        "Outbox events received for the first time since walpost's start, however they end: delivered, dead-lettered or skipped.";
    RECEIVED_BYTES = Counter "walpost_received_bytes_total" []
        "Bytes of pgoutput messages received.";
    EVENTS_PUBLISHED = Counter "walpost_events_published_total" ["topic"]
        "Records that the destination acknowledged. Topics beyond the first 1000 are counted as (others).";
    PUBLISHED_BYTES = Counter "walpost_published_bytes_total" ["topic"]
        "Bytes of the keys and values of those records.";
    PUBLISH_ERRORS = Counter "walpost_publish_errors_total" ["topic", "code"]
        "Failed deliveries, by code: with Kafka librdkafka's error code. Each is retried or handled as undeliverable. Retries inside librdkafka are not counted.";
    POISON_EVENTS = Counter "walpost_poison_events_total" ["cause", "action"]
        "Undeliverable events, by cause (as in the poison settings) and by action: dead_letter, skip, halt.";
    REGISTRY_REQUESTS = Counter "walpost_registry_requests_total" ["result"]
        "Questions to the schema registry, by result: ok, missing, denied, failed.";
    REGISTRY_SCHEMAS = Gauge "walpost_registry_schemas" []
        "Schemas that walpost knows, also that the registry does not have them.";
    REGISTRY_WAIT_SECONDS = Counter "walpost_registry_wait_seconds_total" []
        "Time for which an event, and what follows it, waited for its schema.";
    DROPPED_HEADERS = Counter "walpost_dropped_headers_total" []
        "Headers of rows that were dropped because their names are reserved or there already, or because the destination cannot have them. Replayed events count again.";
    COMMIT_TO_ACK = Histogram "walpost_commit_to_ack_seconds" []
        "Time from an event's commit in PostgreSQL to the destination's acknowledgement. Compares the clocks of two machines. Kafka's client is asked for acknowledgements every 4 ms at most, so the consumer has the event that much earlier.";
    BROKER_ACK = Histogram "walpost_broker_ack_seconds" []
        "Time from handing a record to the destination's client to the acknowledgement, with the same delay.";
    OLDEST_UNCONFIRMED = Gauge "walpost_oldest_unconfirmed_commit_timestamp_seconds" []
        "Commit time of the oldest transaction that was received and is not fully delivered; 0 if there is none. Transactions that were not received yet are not included: see walpost_slot_lag_bytes.";
    LAST_RECEIVED_TIMESTAMP = Gauge "walpost_last_received_timestamp_seconds" []
        "When the last message (or keepalive) came from PostgreSQL; 0 before the first.";
    LAST_CONFIRMED_TIMESTAMP = Gauge "walpost_last_confirmed_timestamp_seconds" []
        "When walpost_confirmed_lsn last advanced; 0 before the first time.";
    IN_FLIGHT_EVENTS = Gauge "walpost_in_flight_events" []
        "Records handed to the destination's client, or waiting for it to take them, and not yet acknowledged.";
    IN_FLIGHT_BYTES = Gauge "walpost_in_flight_bytes" []
        "Bytes of those records, as counted against the in-flight limit.";
    IN_FLIGHT_LIMIT_BYTES = Gauge "walpost_in_flight_limit_bytes" []
        "The in-flight limit: delivery.in_flight_bytes.";
    STATE_LSN = Gauge "walpost_state_lsn" []
        "The position in the state topic, as bytes of WAL; 0 without the state topic, or before it was read.";
    STATE_WRITTEN_TIMESTAMP = Gauge "walpost_state_written_timestamp_seconds" []
        "When the position was last written to the state topic, or read from it at the start; 0 before. It is written when the position advances.";
    STATE_FAILURES = Counter "walpost_state_failures_total" []
        "Failed attempts to open or write the state topic. Until one succeeds, nothing is confirmed to PostgreSQL.";
    SPLIT_TRANSACTIONS = Counter "walpost_split_transactions_total" []
        "PostgreSQL transactions of which a part was committed to Kafka before the rest: they exceed delivery.transaction_bytes. Only with exactly-once delivery.";
    BACKPRESSURE_SECONDS = Counter "walpost_backpressure_seconds_total" []
        "Time during which reading from PostgreSQL was paused because the in-flight limit was reached or the destination accepted no records.";
    VISIBILITY_WAIT_SECONDS = Counter "walpost_visibility_wait_seconds_total" []
        "Time during which a transaction was held back because other sessions did not see it yet (delivery.wait_until_visible).";
    RECONNECTS = Counter "walpost_reconnects_total" ["peer", "reason"]
        "Lost PostgreSQL sessions and replaced producers or connections of the destination, by reason.";
}

/// The metrics of the process, with the names that all Prometheus clients use.
pub mod process {
    use super::{Kind, Metric};

    metrics! {
        CPU_SECONDS = Counter "process_cpu_seconds_total" []
            "CPU time used, user and system.";
        RESIDENT_MEMORY = Gauge "process_resident_memory_bytes" []
            "Resident memory size.";
        VIRTUAL_MEMORY = Gauge "process_virtual_memory_bytes" []
            "Virtual memory size.";
        OPEN_FDS = Gauge "process_open_fds" []
            "Open file descriptors.";
        MAX_FDS = Gauge "process_max_fds" []
            "Limit of open file descriptors.";
        THREADS = Gauge "process_threads" []
            "Number of threads.";
        START_TIME = Gauge "process_start_time_seconds" []
            "Start time of the process since the Unix epoch.";
    }
}

/// The reference page of all metrics, in Markdown.
pub fn reference() -> String {
    use std::fmt::Write as _;
    let mut page = "# Metrics\n\n\
        The metrics that `/metrics` returns on the address of `admin.listen`. All of them have the labels \
        `database` and `slot` (their names), except those of the process. This page is generated from the program.\n\n\
        | metric | type | labels | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for metric in ALL.iter().chain(process::ALL) {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, labels) = (metric.name, metric.kind.name(), labels.join(", "));
        let _ = writeln!(page, "| `{name}` | {kind} | {labels} | {} |", metric.help);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_follow_the_conventions() {
        let mut names: Vec<_> = ALL.iter().chain(process::ALL).map(|metric| metric.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for metric in ALL.iter().chain(process::ALL) {
            let counts = metric.kind == Kind::Counter;
            assert_eq!(metric.name.ends_with("_total"), counts, "{}", metric.name);
            assert!(metric.help.ends_with('.') && !metric.help.contains(['"', '\\', '\n']));
        }
    }

    #[test]
    fn the_metrics_page_is_up_to_date() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
        if std::env::var_os("WALPOST_DOCS").is_some_and(|value| value == "write") {
            std::fs::write(page, reference()).expect("it can be written");
        }
        let written = std::fs::read_to_string(page).expect("the page is there");
        assert!(written == reference(), "{page}: run this test with WALPOST_DOCS=write");
    }
}
