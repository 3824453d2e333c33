//! The list of metrics: each one's name, kind, labels and what it tells. The one
//! place where these names stand; the reference page is made from it.
//!
//! Names follow Prometheus's practice (prometheus.io/docs/practices/naming): base
//! units, `_total` for what only rises, `_timestamp_seconds` for times.

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only rises, from 0 at the start of the process.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts of durations, in seconds, by how long they were.
    Histogram,
}

impl Kind {
    /// Its word in the exposition format.
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
    /// Its name as it is scraped.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels beside `slot`.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`")]
            pub const $constant: Metric =
                Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };
        )*

        /// Every metric of walpost's own, in the order of the reference.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    BUILD_INFO = Gauge "walpost_build_info" ["version", "librdkafka"]
        "Always 1: which walpost this is, and which librdkafka is in it.";
    SOURCE_CONNECTED = Gauge "walpost_source_connected" []
        "Whether walpost has the slot, by a stream or for a backlog in batches: 1, else 0. A warm standby that waits for the slot has 0.";
    SINK_CONNECTED = Gauge "walpost_sink_connected" []
        "Whether a Kafka broker is connected: 1, else 0. 0 also where that is not known yet. Looked at each 5 s, and at each failure and delivery.";
    SLOT_LAG_BYTES = Gauge "walpost_slot_lag_bytes" []
        "Log that is not confirmed: current WAL position minus confirmed_flush_lsn, as read from PostgreSQL each 5 s. It counts the log of other tables too, so on a busy server it is seldom 0.";
    SLOT_RETAINED_WAL_BYTES = Gauge "walpost_slot_retained_wal_bytes" []
        "Log that PostgreSQL keeps on disk for the slot: current WAL position minus restart_lsn.";
    SLOT_SAFE_WAL_BYTES = Gauge "walpost_slot_safe_wal_bytes" []
        "Log that can be written until the slot may be lost (safe_wal_size). Absent where max_slot_wal_keep_size sets no limit.";
    SLOT_WAL_LIMIT_BYTES = Gauge "walpost_slot_wal_limit_bytes" []
        "max_slot_wal_keep_size. Absent where it sets no limit.";
    SLOT_WAL_STATUS = Gauge "walpost_slot_wal_status" ["status"]
        "1 for the slot's wal_status (reserved, extended, unreserved, lost), 0 for the others.";
    SLOT_SPILLED_BYTES = Counter "walpost_slot_spilled_bytes_total" []
        "Bytes of large transactions that PostgreSQL wrote to disk while it decoded them for the slot, by pg_stat_replication_slots: counted by the server, and not from walpost's start.";
    SLOT_OBSERVED_TIMESTAMP = Gauge "walpost_slot_observed_timestamp_seconds" []
        "When the figures of the slot were read last; 0 before the first time. While PostgreSQL is away they stay what they were.";
    RECEIVED_LSN = Gauge "walpost_received_lsn" []
        "Up to where the log was received, as a number of bytes.";
    CONFIRMED_LSN = Gauge "walpost_confirmed_lsn" []
        "Up to where everything is delivered and may be confirmed, as a number of bytes.";
    TRANSACTIONS = Counter "walpost_transactions_total" []
        "Transactions received whole, those without an event too.";
    EVENTS_RECEIVED = Counter "walpost_events_received_total" []
        "Outbox events received; those that come again after a lost producer count again.";
    RECEIVED_BYTES = Counter "walpost_received_bytes_total" []
        "Bytes of pgoutput's messages received.";
    EVENTS_PUBLISHED = Counter "walpost_events_published_total" ["topic"]
        "Records that the brokers acknowledged. Topics beyond the first 1000 count as (others).";
    PUBLISHED_BYTES = Counter "walpost_published_bytes_total" ["topic"]
        "Bytes of their keys and values.";
    PUBLISH_ERRORS = Counter "walpost_publish_errors_total" ["topic", "code"]
        "Records that were not delivered, by librdkafka's error code. Each is tried again, or is poison; what librdkafka tries again by itself is not counted.";
    POISON_EVENTS = Counter "walpost_poison_events_total" ["cause", "action"]
        "Events that cannot be delivered, by cause (as in the poison settings) and what was done: dead_letter, skip, halt.";
    DROPPED_HEADERS = Counter "walpost_dropped_headers_total" []
        "Members of rows' headers that were not sent because their names are reserved for walpost; those of events that come again count again.";
    COMMIT_TO_ACK = Histogram "walpost_commit_to_ack_seconds" []
        "From an event's commit in PostgreSQL to the brokers' acknowledgement. By two machines' clocks.";
    BROKER_ACK = Histogram "walpost_broker_ack_seconds" []
        "From handing a record to the Kafka client to the brokers' acknowledgement.";
    OLDEST_UNCONFIRMED = Gauge "walpost_oldest_unconfirmed_commit_timestamp_seconds" []
        "When the oldest transaction that was received and is not wholly delivered was committed; 0 where there is none, so that an idle walpost is never late. What has not been received yet is not known here: the slot's lag tells of it.";
    LAST_RECEIVED_TIMESTAMP = Gauge "walpost_last_received_timestamp_seconds" []
        "When anything last came from PostgreSQL, a keepalive too; 0 before the first time.";
    LAST_CONFIRMED_TIMESTAMP = Gauge "walpost_last_confirmed_timestamp_seconds" []
        "When walpost_confirmed_lsn last rose; 0 before the first time.";
    IN_FLIGHT_EVENTS = Gauge "walpost_in_flight_events" []
        "Records handed to the Kafka client and not acknowledged.";
    IN_FLIGHT_BYTES = Gauge "walpost_in_flight_bytes" []
        "Bytes of them, as counted against the budget.";
    IN_FLIGHT_LIMIT_BYTES = Gauge "walpost_in_flight_limit_bytes" []
        "The budget: delivery.in_flight_bytes.";
    BACKPRESSURE_SECONDS = Counter "walpost_backpressure_seconds_total" []
        "For how long reading from PostgreSQL was held back, since the budget was spent or Kafka took nothing.";
    RECONNECTS = Counter "walpost_reconnects_total" ["peer", "reason"]
        "Sessions with PostgreSQL that were lost, and Kafka producers that were replaced, by what for.";
}

/// What the metrics of the process are called, as every Prometheus client calls them.
pub mod process {
    use super::{Kind, Metric};

    metrics! {
        CPU_SECONDS = Counter "process_cpu_seconds_total" []
            "Processor time used, in user and system mode.";
        RESIDENT_MEMORY = Gauge "process_resident_memory_bytes" []
            "Resident memory.";
        VIRTUAL_MEMORY = Gauge "process_virtual_memory_bytes" []
            "Virtual memory.";
        OPEN_FDS = Gauge "process_open_fds" []
            "Open file descriptors.";
        MAX_FDS = Gauge "process_max_fds" []
            "Most file descriptors that may be open.";
        THREADS = Gauge "process_threads" []
            "Threads.";
        START_TIME = Gauge "process_start_time_seconds" []
            "When the process began, since 1970.";
    }
}

/// The reference of all metrics, as a page of Markdown.
pub fn reference() -> String {
    use std::fmt::Write as _;
    let mut page = "# Metrics\n\n\
        What `/metrics` gives, on the address of `admin.listen`. Each has the label `slot`, the slot's name, \
        but for those of the process. This page is made from the program.\n\n\
        | metric | kind | labels | what it tells |\n|---|---|---|---|\n"
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
    fn names_are_told_apart_and_follow_the_practice() {
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
    fn the_page_of_metrics_is_what_the_code_makes() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
        if std::env::var_os("WALPOST_DOCS").is_some_and(|value| value == "write") {
            std::fs::write(page, reference()).expect("it can be written");
        }
        let written = std::fs::read_to_string(page).expect("the page is there");
        assert!(written == reference(), "{page}: run this test with WALPOST_DOCS=write");
    }
}
