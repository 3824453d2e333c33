//! The program behind `make soak`: a writer, PostgreSQL, walpost and Kafka, of which one is killed
//! at random, again and again.
//!
//! `soak KILLS [SEED]`, with `WALPOST_SOAK_DELIVERY=exactly-once` for that mode, or
//! `WALPOST_SOAK_PRODUCERS=3` for so many producers in the other. After each kill
//! delivery must resume, nothing may be confirmed without having been published, and the oracle
//! checks the published records, of which none may be a repeat in exactly-once mode. At the end it
//! prints a table, and exits with 1 on any violation. The same seed chooses the same kills, though
//! not at exactly the same moments.

mod fault;
mod report;
mod rng;
mod rounds;
mod services;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use report::Report;
use tokio::task::{LocalSet, spawn_local};

/// Why it is over before its end: a promise that was not kept.
type Broken = String;

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|one| one.parse::<u64>());
    let (kills, seed) = match (arguments.next(), arguments.next(), arguments.next()) {
        (Some(Ok(kills)), None, None) if kills > 0 => (kills, now()),
        (Some(Ok(kills)), Some(Ok(seed)), None) if kills > 0 => (kills, seed),
        _ => {
            eprintln!("usage: soak KILLS [SEED]");
            return ExitCode::from(2);
        }
    };
    let mode = std::env::var("WALPOST_SOAK_DELIVERY");
    let mode = mode.as_deref().unwrap_or(Delivery::AtLeastOnce.name());
    let Some(delivery) = Delivery::from_name(mode) else {
        eprintln!("soak: WALPOST_SOAK_DELIVERY is neither at-least-once nor exactly-once");
        return ExitCode::from(2);
    };
    let producers = std::env::var("WALPOST_SOAK_PRODUCERS");
    // As many as walpost chooses.
    let producers = producers.unwrap_or_default();
    println!("{kills} kills, {}; SEED={seed} chooses the same ones again", delivery.name());
    let report = Arc::new(Mutex::new(Report::default()));
    // On a task of its own: a panic of the bed's is a failure as any other.
    let soaking = rounds::soak(kills, seed, (delivery, producers), Arc::clone(&report));
    let here = LocalSet::new();
    let ended = here.run_until(async {
        tokio::select! {
            ended = spawn_local(soaking) => ended.unwrap_or_else(|panic| Err(panic.to_string())),
            _ = tokio::signal::ctrl_c() => Err("interrupted".to_owned()),
        }
    });
    let ended = ended.await;
    let report = report.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{report}");
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(broken) => {
            eprintln!("soak: SEED={seed}: {broken}");
            ExitCode::FAILURE
        }
    }
}

/// The delivery mode of walpost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    AtLeastOnce,
    ExactlyOnce,
}

impl Delivery {
    fn name(self) -> &'static str {
        match self {
            Self::AtLeastOnce => "at-least-once",
            Self::ExactlyOnce => "exactly-once",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::AtLeastOnce, Self::ExactlyOnce].into_iter().find(|one| one.name() == name)
    }
}

/// A seed that is another each time.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::from(now.subsec_nanos()))
}
