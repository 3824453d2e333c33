//! The program behind `make soak`: a writer, PostgreSQL, walpost and Kafka, of which one is killed
//! at random, again and again.
//!
//! `soak KILLS [SEED]`. After each kill delivery must resume, nothing may be confirmed without
//! having been published, and the oracle checks the published records. At the end it prints a
//! table, and exits with 1 on any violation. The same seed chooses the same kills, though not at
//! exactly the same moments.

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
    println!("{kills} kills; SEED={seed} chooses the same ones again");
    let report = Arc::new(Mutex::new(Report::default()));
    // On a task of its own: a panic of the bed's is a failure as any other.
    let soaking = rounds::soak(kills, seed, Arc::clone(&report));
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

/// A seed that is another each time.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::from(now.subsec_nanos()))
}
