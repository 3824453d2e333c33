//! The conditions under which backlogs and latency are measured, and the cells of the matrix.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

/// How the WAL of other tables is mixed with that of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OtherWrites {
    /// Small transactions between those of the outbox
    Interleaved,
    /// Transactions of 250 MB, with an equal share of the events after each
    Lumps,
    /// Transactions of 250 MB, and all events after them
    LumpsFirst,
}

/// The conditions of one cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Conditions {
    /// Between what is measured and the brokers.
    pub(crate) round_trip: Duration,
    /// Of each topic.
    pub(crate) partitions: u16,
    pub(crate) topics: u16,
    pub(crate) payload_bytes: u32,
    /// Per cent of the WAL.
    pub(crate) outbox_share: u8,
    /// Applies where the outbox is not all of the WAL.
    pub(crate) other_writes: OtherWrites,
    pub(crate) open_transaction: bool,
    pub(crate) brokers: u8,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            round_trip: Duration::ZERO,
            partitions: 3,
            topics: 1,
            payload_bytes: 200,
            outbox_share: 100,
            other_writes: OtherWrites::Interleaved,
            open_transaction: false,
            brokers: 1,
        }
    }
}

impl Conditions {
    /// The conditions of the backlog, on a broker as it is by default: what `pg_recvlogical` has.
    pub(crate) fn of_backlog(self) -> Self {
        let Self { round_trip, partitions, brokers, .. } = Self::default();
        Self { round_trip, partitions, brokers, ..self }
    }

    /// Names what differs from the default, after the name of the part.
    pub(crate) fn label(&self, part: &str) -> String {
        let default = Self::default();
        let mut words = vec![part.to_owned()];
        if self.round_trip != default.round_trip {
            words.push(format!("round trip {} ms", self.round_trip_ms()));
        }
        if self.topics != default.topics {
            words.push(format!("{} topics × {} partitions", self.topics, self.partitions));
        } else if self.partitions != default.partitions {
            words.push(format!("{} partitions", self.partitions));
        }
        if self.payload_bytes != default.payload_bytes {
            words.push(format!("payload {} B", self.payload_bytes));
        }
        if let Some(other) = self.other_writes() {
            words.push(format!("outbox {} % of WAL, {}", self.outbox_share, other.words()));
        }
        if self.open_transaction {
            words.push("open transaction".to_owned());
        }
        if self.brokers != default.brokers {
            words.push(format!("{} brokers", self.brokers));
        }
        words.join(", ")
    }

    /// All of them.
    pub(crate) fn json(&self) -> Value {
        json!({
            "round_trip_ms": self.round_trip_ms(),
            "partitions": self.partitions,
            "topics": self.topics,
            "payload_bytes": self.payload_bytes,
            "outbox_share_percent": self.outbox_share,
            "other_writes": self.other_writes().map(OtherWrites::words),
            "open_transaction": self.open_transaction,
            "brokers": self.brokers,
            "replicas": self.brokers,
        })
    }

    /// How other tables are written, if they are.
    pub(crate) fn other_writes(&self) -> Option<OtherWrites> {
        (self.outbox_share < 100).then_some(self.other_writes)
    }

    fn round_trip_ms(&self) -> f64 {
        self.round_trip.as_secs_f64() * 1000.0
    }
}

impl OtherWrites {
    fn words(self) -> &'static str {
        match self {
            Self::Interleaved => "interleaved",
            Self::Lumps => "lumps",
            Self::LumpsFirst => "lumps first",
        }
    }
}

/// Conditions as they are asked for. Every combination of the values is measured.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Conditions of drain-rows, drain-one and latency")]
pub(crate) struct ConditionArgs {
    /// Milliseconds of a round trip between what is measured and the brokers, through a delay
    /// proxy; 0: no proxy. Consumer and writers connect directly
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "MS",
        value_parser = milliseconds)]
    round_trip: Vec<Duration>,
    /// Partitions of each topic
    #[arg(long, value_delimiter = ',', default_value = "3", value_name = "COUNT",
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    partitions: Vec<u16>,
    /// Topics, one for each aggregate type; keys are spread over all of them
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "COUNT",
        value_parser = clap::value_parser!(u16).range(1..=100))]
    topics: Vec<u16>,
    /// Bytes of an event's payload. Above 1,000 it is random text, since PostgreSQL would compress
    /// anything else
    #[arg(long, value_delimiter = ',', default_value = "200", value_name = "BYTES",
        value_parser = clap::value_parser!(u32).range(100..=100_000))]
    payload: Vec<u32>,
    /// Percentage of the WAL that the outbox writes; the rest is that of another table
    #[arg(long, value_delimiter = ',', default_value = "100", value_name = "PERCENT",
        value_parser = clap::value_parser!(u8).range(1..=100))]
    outbox_share: Vec<u8>,
    /// How the other table is written, where the share is less than 100
    #[arg(long, value_delimiter = ',', default_value = "interleaved", value_name = "HOW")]
    other_writes: Vec<OtherWrites>,
    /// Keep a transaction open that has written a row, from before the first event to the end
    #[arg(long)]
    open_transaction: bool,
    /// Brokers: 1, or 3 with three replicas of each partition and min.insync.replicas = 2
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "COUNT",
        value_parser = brokers)]
    brokers: Vec<u8>,
    /// Measure the cells of the matrix instead: those that decide on a change of a default
    #[arg(long, conflicts_with_all = ["round_trip", "partitions", "topics", "payload",
        "outbox_share", "other_writes", "open_transaction", "brokers"])]
    pub(crate) matrix: bool,
}

impl ConditionArgs {
    /// The cells of a backlog.
    pub(crate) fn of_backlogs(&self) -> Vec<Conditions> {
        if self.matrix { matrix_of_backlogs() } else { self.combinations() }
    }

    /// The cells of latency, each with its rate: one of these, or the matrix's.
    pub(crate) fn of_latency(&self, rates: &[u32]) -> Vec<(u32, Conditions)> {
        if self.matrix {
            return matrix_of_latency();
        }
        let cells = self.combinations();
        rates.iter().flat_map(|rate| cells.iter().map(|cell| (*rate, *cell))).collect()
    }

    /// Whether anything but the default is asked for.
    pub(crate) fn are_given(&self) -> bool {
        self.matrix || self.combinations() != [Conditions::default()]
    }

    /// Whether this needs servers that the bench has started itself.
    pub(crate) fn need_own_servers(&self) -> bool {
        let default = Conditions::default();
        self.matrix
            || self.round_trip.iter().any(|one| *one != default.round_trip)
            || self.brokers.iter().any(|one| *one != default.brokers)
    }

    fn combinations(&self) -> Vec<Conditions> {
        let mut cells =
            vec![Conditions { open_transaction: self.open_transaction, ..Conditions::default() }];
        // The last is varied first: cells with the same servers and the same backlog are adjacent.
        vary(&mut cells, &self.brokers, |cell, brokers| cell.brokers = brokers);
        vary(&mut cells, &self.topics, |cell, topics| cell.topics = topics);
        vary(&mut cells, &self.payload, |cell, payload| cell.payload_bytes = payload);
        vary(&mut cells, &self.outbox_share, |cell, share| cell.outbox_share = share);
        vary(&mut cells, &self.other_writes, |cell, how| cell.other_writes = how);
        vary(&mut cells, &self.round_trip, |cell, round_trip| cell.round_trip = round_trip);
        vary(&mut cells, &self.partitions, |cell, partitions| cell.partitions = partitions);
        let mut distinct: Vec<Conditions> = Vec::new();
        for mut cell in cells {
            if cell.other_writes().is_none() {
                cell.other_writes = Conditions::default().other_writes;
            }
            if !distinct.contains(&cell) {
                distinct.push(cell);
            }
        }
        distinct
    }
}

/// Each cell once for each of the values.
fn vary<T: Copy>(cells: &mut Vec<Conditions>, values: &[T], set: impl Fn(&mut Conditions, T)) {
    let varied = cells.iter().flat_map(|cell| {
        values.iter().map(|value| {
            let mut cell = *cell;
            set(&mut cell, *value);
            cell
        })
    });
    *cells = varied.collect();
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let millis: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1000.0).contains(&millis) {
        Ok(Duration::from_secs_f64(millis / 1000.0))
    } else {
        Err("not between 0 and 1000".to_owned())
    }
}

fn brokers(text: &str) -> Result<u8, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("neither 1 nor 3".to_owned()),
    }
}

/// One topic of so many partitions, so many milliseconds away.
fn remote(round_trip: u64, partitions: u16) -> Conditions {
    let round_trip = Duration::from_millis(round_trip);
    Conditions { round_trip, partitions, ..Conditions::default() }
}

/// The same with twenty topics.
fn topics(round_trip: u64) -> Conditions {
    Conditions { topics: 20, ..remote(round_trip, 12) }
}

fn matrix_of_backlogs() -> Vec<Conditions> {
    let mut cells = vec![remote(0, 12), remote(1, 12), remote(5, 12), remote(0, 50), remote(5, 50)];
    cells.extend([topics(0), topics(5)]);
    cells.push(Conditions { payload_bytes: 2000, ..remote(5, 12) });
    cells.push(Conditions { open_transaction: true, ..remote(0, 12) });
    for other_writes in [OtherWrites::Interleaved, OtherWrites::Lumps, OtherWrites::LumpsFirst] {
        for open_transaction in [false, true] {
            let near = remote(0, 12);
            cells.push(Conditions { outbox_share: 7, other_writes, open_transaction, ..near });
        }
    }
    cells.extend([0, 5].map(|round_trip| Conditions { brokers: 3, ..remote(round_trip, 12) }));
    cells
}

fn matrix_of_latency() -> Vec<(u32, Conditions)> {
    let mut cells = vec![(1000, Conditions::default())];
    for round_trip in [0, 1, 5] {
        let remotes = [remote(round_trip, 12), remote(round_trip, 50), topics(round_trip)];
        cells.extend(remotes.map(|cell| (1000, cell)));
    }
    cells.push((1000, Conditions { payload_bytes: 2000, ..remote(5, 12) }));
    for other_writes in [OtherWrites::Interleaved, OtherWrites::Lumps] {
        cells.push((1000, Conditions { outbox_share: 7, other_writes, ..remote(1, 12) }));
    }
    cells.push((5000, Conditions::default()));
    let fast = [remote(0, 12), remote(0, 50), remote(5, 12), remote(5, 50)];
    cells.extend(fast.map(|cell| (5000, cell)));
    // Two cores run all three brokers: a lower rate.
    cells.extend([1, 5].map(|trip| (500, Conditions { brokers: 3, ..remote(trip, 12) })));
    cells
}
