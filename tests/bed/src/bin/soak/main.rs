//! The program behind `make soak`: a writer, PostgreSQL, walpost and its destination, of which one is
//! killed or frozen at random, again and again.
//!
//! `soak KILLS [SEED]`, with `WALPOST_SOAK_SINK=redis`, `nats`, `rabbitmq`, `http` or `sqs` for another
//! destination than Kafka; with Kafka, `WALPOST_SOAK_DELIVERY=exactly-once` for that mode, or
//! `WALPOST_SOAK_PRODUCERS=3` for so many producers in the other. After each kill delivery must
//! resume, nothing may be confirmed without having been published, and the oracle checks the
//! published records. In exactly-once mode none may be a repeat, nor in the streams of Redis and
//! NATS, which sync each write. Those, and the requests that the HTTP receiver has accepted, are
//! read once more from the beginning at the end; what was read of RabbitMQ's queues is counted again.
//! It prints a table then, and exits with 1 on any violation. The same seed chooses the same kills,
//! though not at exactly the same moments.

mod fault;
mod report;
mod rng;
mod rounds;
mod services;
mod target;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use report::Report;
use target::Wanted;
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
    let variable = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let wanted = Wanted::parse(
        &variable("WALPOST_SOAK_SINK", "kafka"),
        &variable("WALPOST_SOAK_DELIVERY", Delivery::AtLeastOnce.name()),
        // As many as walpost chooses.
        &variable("WALPOST_SOAK_PRODUCERS", ""),
    );
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(reason) => {
            eprintln!("soak: {reason}");
            return ExitCode::from(2);
        }
    };
    println!("{kills} kills, {}; SEED={seed} chooses the same ones again", wanted.name());
    let report = Arc::new(Mutex::new(Report::default()));
    // On a task of its own: a panic of the bed's is a failure as any other.
    let soaking = rounds::soak(kills, seed, wanted, Arc::clone(&report));
    let here = LocalSet::new();
    let ended = here.run_until(async {
        tokio::select! {
            ended = spawn_local(soaking) => ended.unwrap_or_else(|panic| Err(panic.to_string())),
            _ = tokio::signal::ctrl_c() => Err("interrupted".to_owned()),
        }
    });
    let ended = Box::pin(ended).await;
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
