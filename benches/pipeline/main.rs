//! Benchmarks the whole pipeline, from commit to readable record, against `pg_recvlogical` and
//! optionally Debezium on the same servers in the same run: `make bench`, `make bench-peers`.
//!
//! It starts its own PostgreSQL and Kafka, or uses existing ones. On a shared machine only ratios
//! are meaningful, so runs are interleaved and ratios are computed round by round. Prints a table,
//! and writes JSON on request.

mod backlog;
mod conditions;
mod contender;
mod databases;
mod drain;
mod fixture;
mod latency;
mod memory;
mod other_writes;
mod publishing;
mod reference_client;
mod report;
mod rows;
mod scale;
mod servers;
mod start;
mod topics;
mod trial;
mod writers;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use walpost_bed::Major;

use crate::backlog::Shape;
use crate::conditions::{ConditionArgs, Conditions, OtherWrites};
use crate::contender::Contender;
use crate::fixture::Fixture;
use crate::report::Report;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A backlog of one-row transactions, until every record is readable.
    DrainRows,
    /// A backlog that is one transaction.
    DrainOne,
    /// From a commit to the readable record, at a steady rate, open loop.
    Latency,
    /// From the start to the first record, and from the last record to the confirmed slot.
    Start,
    /// Resident memory and processor while nothing happens, and inside one large transaction.
    Memory,
    /// Rows that no slot sends: published by init, and compared with Kafka by recover.
    Rows,
    /// What an event costs in small and in large backlogs.
    Size,
    /// What an outbox costs who writes it.
    Writers,
    /// What the ways to write an event add to a transaction's latency, over a network.
    Publishing,
    /// A backlog shared among several slots by row filters, against one slot.
    Scale,
    /// Many databases of one server with a walpost for each, idle and at 10 rows a second each.
    Databases,
}

impl Part {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether it can be measured under conditions other than the default.
    fn has_conditions(self) -> bool {
        matches!(self, Self::DrainRows | Self::DrainOne | Self::Latency)
    }
}

/// The whole pipeline, measured.
#[derive(Debug, Clone, Parser)]
#[command(name = "pipeline")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
struct Plan {
    /// What to measure. Without a name: all of it; with conditions drain-rows, drain-one and latency;
    /// with --matrix drain-rows and latency
    parts: Vec<Part>,
    /// Rows of a backlog
    #[arg(long, default_value_t = 500_000)]
    rows: u64,
    /// Rounds of each comparison
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Rows a second, where latency is measured; several are measured one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 5000], conflicts_with = "matrix")]
    rates: Vec<u32>,
    /// Rows of the backlogs whose cost an event is compared
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 100_000, 1_000_000])]
    sizes: Vec<u64>,
    /// Seconds of each run at a steady rate
    #[arg(long, default_value_t = 15)]
    seconds: u32,
    /// Seconds before that which are not counted: connections and the producer's first records in
    /// each partition are made then
    #[arg(long, default_value_t = 20)]
    warm_up: u32,
    /// Leave out the bare producer that latency is compared with
    #[arg(long)]
    no_producer: bool,
    /// Slots that share a backlog, where that is measured; several are measured one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4])]
    slots: Vec<u32>,
    /// Databases of one server with a walpost each; several numbers are measured one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100])]
    databases: Vec<u32>,
    /// Measure Debezium on Kafka Connect too
    #[arg(long)]
    peers: bool,
    /// Measure walpost with a state topic and in exactly-once mode too
    #[arg(long)]
    modes: bool,
    /// Measure walpost that waits until other sessions see a transaction too
    #[arg(long)]
    visible: bool,
    /// A PostgreSQL of yours: a superuser's URL without TLS, which the process list shows. The
    /// database `walpost_bench` is dropped there and recreated, a role walpost is made, and
    /// slots of the bench keep log while it runs
    #[arg(long, requires = "bootstrap_servers", value_name = "URL")]
    source: Option<String>,
    /// Major version of its own PostgreSQL. Default: the newest one that the system has installed, or 15
    #[arg(long, value_parser = major, conflicts_with = "source", value_name = "MAJOR")]
    postgres: Option<Major>,
    /// A Kafka of yours; topics that begin with walpost-bench- are made on it
    #[arg(long, requires = "source", value_name = "LIST")]
    bootstrap_servers: Option<String>,
    /// Write the figures there, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// An argument for walpost itself, such as -X=compression.type=lz4
    #[arg(long = "walpost", value_name = "ARGUMENT", allow_hyphen_values = true)]
    walpost: Vec<String>,
    #[command(flatten)]
    conditions: ConditionArgs,
    /// Given by `cargo bench` itself
    #[arg(long, hide = true)]
    bench: bool,
}

/// A version that the test bed can install.
fn major(text: &str) -> Result<Major, String> {
    let found = Major::ALL.into_iter().find(|major| major.number().to_string() == text);
    found.ok_or_else(|| "it is from 14 to 18".to_owned())
}

impl Plan {
    fn major(&self) -> Major {
        self.postgres.or_else(Major::of_the_system).unwrap_or(Major::V15)
    }

    fn has(&self, part: Part) -> bool {
        if !self.parts.is_empty() {
            self.parts.contains(&part)
        } else if self.conditions.matrix {
            matches!(part, Part::DrainRows | Part::Latency)
        } else {
            part.has_conditions() || !self.conditions.are_given()
        }
    }

    /// What does not go together.
    fn check(&self) -> Result<(), String> {
        if self.source.is_some() && self.peers {
            return Err(
                "--peers are measured on servers of the bench's own: leave --source out".into()
            );
        }
        if self.source.is_some() && self.conditions.need_own_servers() {
            return Err("--round-trip, --brokers and --matrix need servers of the bench's own: leave --source out".into());
        }
        for part in [Part::Databases, Part::Rows, Part::Publishing] {
            if self.source.is_some() && self.parts.contains(&part) {
                return Err(format!(
                    "{} is measured on servers of the bench's own: leave --source out",
                    part.name()
                ));
            }
        }
        let without = self.parts.iter().find(|part| !part.has_conditions());
        if let (Some(part), true) = (without, self.conditions.are_given()) {
            let name = part.name();
            return Err(format!(
                "{name} is measured under the default conditions: name other parts, or leave the conditions out"
            ));
        }
        let first =
            |(_, cell): &(u32, Conditions)| cell.other_writes() == Some(OtherWrites::LumpsFirst);
        if self.has(Part::Latency) && self.latency_cells().iter().any(first) {
            return Err(
                "--other-writes lumps-first is for backlogs: name drain-rows or drain-one".into()
            );
        }
        Ok(())
    }

    fn latency_cells(&self) -> Vec<latency::Cell> {
        self.conditions.of_latency(&self.rates)
    }

    /// Who is measured where there is one walpost.
    fn contenders(&self) -> Vec<Contender> {
        let debezium = self.peers.then_some(Contender::Debezium);
        let modes = [Contender::WalpostWithState, Contender::WalpostExactlyOnce];
        let modes = modes.into_iter().filter(|_| self.modes);
        let visible = self.visible.then_some(Contender::WalpostVisible);
        std::iter::once(Contender::Walpost).chain(modes).chain(visible).chain(debezium).collect()
    }
}

fn main() -> ExitCode {
    let plan = Plan::parse();
    if let Err(error) = plan.check() {
        eprintln!("pipeline: {error}");
        return ExitCode::from(2);
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let given = match servers::given_version(&plan).await {
            Ok(given) => given,
            Err(error) => {
                eprintln!("pipeline: --source: {error}");
                return ExitCode::from(2);
            }
        };
        let mut report = Report::new(&plan, given.as_deref());
        measure(&plan, &mut report).await;
        report.print();
        let mut code = ExitCode::SUCCESS;
        if let Some(Err(error)) = plan.json.as_deref().map(|path| report.write(path)) {
            eprintln!("pipeline: the figures cannot be written: {error}");
            code = ExitCode::FAILURE;
        }
        if let Some(source) = &plan.source {
            servers::clear(source).await;
        }
        code
    })
}

async fn measure(plan: &Plan, report: &mut Report) {
    for (part, shape) in
        [(Part::DrainRows, Shape::OneRowTransactions), (Part::DrainOne, Shape::OneTransaction)]
    {
        if plan.has(part) {
            let cells = plan.conditions.of_backlogs();
            for cells in cells.chunk_by(|one, next| one.brokers == next.brokers) {
                let fixture = Fixture::under(plan, cells).await;
                drain::bench(&fixture, plan, shape, cells, report).await;
            }
        }
    }
    if plan.has(Part::Latency) {
        let mut cells = plan.latency_cells();
        // The order of the rates is kept.
        cells.sort_by_key(|(_, cell)| cell.brokers);
        for cells in cells.chunk_by(|(_, one), (_, next)| one.brokers == next.brokers) {
            let conditions: Vec<_> = cells.iter().map(|(_, cell)| *cell).collect();
            let fixture = Fixture::under(plan, &conditions).await;
            for cells in cells.chunk_by(|(one, _), (next, _)| one == next) {
                latency::bench(&fixture, plan, cells, report).await;
            }
        }
    }
    if plan.has(Part::Start) {
        start::bench(&Fixture::new(plan).await, plan, report).await;
    }
    if plan.has(Part::Memory) {
        memory::bench(plan, report).await;
    }
    if plan.has(Part::Rows) && plan.source.is_none() {
        rows::bench(plan, report).await;
    }
    if plan.has(Part::Size) {
        drain::sizes(plan, report).await;
    }
    if plan.has(Part::Writers) {
        writers::bench(&Fixture::new(plan).await, plan, report).await;
    }
    if plan.has(Part::Publishing) && plan.source.is_none() {
        publishing::bench(plan, report).await;
    }
    // It makes databases: on a server of its own alone.
    if plan.has(Part::Databases) && plan.source.is_none() {
        databases::bench(plan, report).await;
    }
    if plan.has(Part::Scale) {
        scale::bench(&Fixture::new(plan).await, plan, report).await;
    }
}
