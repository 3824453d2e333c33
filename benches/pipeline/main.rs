//! The whole pipeline, from commit to readable record, beside `pg_recvlogical`
//! on the same server in the same run: `make bench`.
//!
//! It starts its own PostgreSQL and Kafka. On a shared machine only ratios mean
//! anything, so runs are interleaved and the ratio is taken round by round.
//!
//! ```text
//! cargo bench --bench pipeline -- [drain-rows|drain-one|latency|memory] [--rows N] [--rounds N]
//!                                 [--rate N] [--seconds N]
//! ```

mod backlog;
mod drain;
mod latency;
mod memory;
mod stage;

use std::process::ExitCode;

/// What to run, and how much of it.
#[derive(Debug, Clone)]
struct Plan {
    parts: Vec<String>,
    rows: u64,
    rounds: u32,
    rate: u32,
    seconds: u32,
}

const PARTS: [&str; 4] = ["drain-rows", "drain-one", "latency", "memory"];

impl Plan {
    fn of_arguments() -> Result<Self, String> {
        let mut plan =
            Self { parts: Vec::new(), rows: 1_000_000, rounds: 3, rate: 1000, seconds: 20 };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || {
                let value = arguments.next().unwrap_or_default();
                value
                    .parse::<u32>()
                    .map_err(|_| format!("{argument} takes a number, not {value:?}"))
            };
            match argument.as_str() {
                // Given by `cargo bench` itself.
                "--bench" => {}
                "--rows" => plan.rows = u64::from(number()?),
                "--rounds" => plan.rounds = number()?,
                "--rate" => plan.rate = number()?,
                "--seconds" => plan.seconds = number()?,
                part if PARTS.contains(&part) => plan.parts.push(part.to_owned()),
                unknown => return Err(format!("{unknown:?} is none of {PARTS:?} and no option")),
            }
        }
        if plan.parts.is_empty() {
            plan.parts = PARTS.map(String::from).to_vec();
        }
        Ok(plan)
    }
}

fn main() -> ExitCode {
    let plan = match Plan::of_arguments() {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("pipeline: {error}");
            return ExitCode::from(2);
        }
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        stage::tell_of_the_machine();
        for part in &plan.parts {
            match part.as_str() {
                "drain-rows" => drain::bench(&plan, backlog::Shape::OneRowTransactions).await,
                "drain-one" => drain::bench(&plan, backlog::Shape::OneTransaction).await,
                "latency" => latency::bench(&plan).await,
                _ => memory::bench(&plan).await,
            }
        }
    });
    ExitCode::SUCCESS
}
