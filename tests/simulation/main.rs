//! Runs the whole relay against a simulated PostgreSQL and a simulated Kafka, in virtual time, all
//! from one seed.
//!
//! `WALPOST_SCHEDULES=100000` runs that many schedules, `WALPOST_SEED=…` repeats one of them, and
//! `WALPOST_TRACE=1` prints its trace.

mod batches;
mod broker;
mod checker;
mod fault_injection;
mod feed;
mod process;
mod schedule;
mod server;
mod state_topic;
mod trace;
mod wal;
mod world;

use std::collections::BTreeMap;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use walpost::Lsn;
use walpost::source::{SlotError, SourceError};

use crate::trace::{Exit, Left, TraceEvent};
use crate::wal::Poison;
use crate::world::Shared;

/// The default number of schedules.
const SCHEDULES: u64 = 4000;

/// How many schedules may be needed for each switch of the feed: the rarest are in one of some thousand.
const SCHEDULES_MAX: u64 = 20_000;

/// How long delivery may take once all faults are over. In exactly-once mode nothing is committed
/// while a rejected record is searched for, which takes some sessions for each.
const ARRIVAL_MS: u64 = 300_000;
const ARRIVAL_WITH_REJECTED_MS: u64 = 1_200_000;

/// How long an operator waits before an event is allowed of which walpost cannot find out whether it is
/// at fault.
const UNDECIDED_MS: u64 = 60_000;

#[test]
fn guarantees_hold_under_random_faults() {
    if let Some(seed) = number("WALPOST_SEED") {
        let failed = judge(seed, env::var_os("WALPOST_TRACE").is_some());
        return assert_eq!(failed, None, "schedule {seed}");
    }
    let schedules = number("WALPOST_SCHEDULES").unwrap_or(SCHEDULES);
    // Different seeds in each run, so that coverage grows.
    let first = fastrand::u64(..) >> 16;
    let next = AtomicU64::new(0);
    let violations: Vec<String> = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let work = || {
            let mut violations = Vec::new();
            while violations.is_empty() {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= schedules {
                    break;
                }
                let seed = first + number;
                if let Some(violation) = judge(seed, false) {
                    violations.push(format!(
                        "{violation}\n  WALPOST_TRACE=1 WALPOST_SEED={seed} cargo test --test simulation"
                    ));
                    // The others end too: a run of hours may be cut off before it prints this.
                    next.store(schedules, Ordering::Relaxed);
                }
            }
            violations
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it catches panics")).collect()
    });
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

#[test]
fn schedules_are_deterministic_per_seed() {
    for seed in 0..20 {
        let traces = [(); 2].map(|()| {
            let world = simulate(seed);
            let world = world.lock();
            format!("{:?}", world.trace)
        });
        assert!(traces[0] == traces[1], "schedule {seed}");
    }
}

#[test]
fn schedules_cover_every_feed_switch() {
    let all = [
        "batches",
        "a stream that keeps the ledger",
        "Behind",
        "Over",
        "StreamCostsLess",
        "Refused",
        "Refused within a transaction",
        "Idle within a transaction",
        "a move",
        "a foreign client's move",
        "a restored server",
        "another history",
    ];
    let mut seen = BTreeMap::<String, usize>::new();
    for seed in 0..SCHEDULES_MAX {
        if all.iter().all(|what| seen.contains_key(*what)) {
            return;
        }
        let world = simulate(seed);
        let world = world.lock();
        let mut see = |what: String| *seen.entry(what).or_default() += 1;
        for (_, event) in &world.trace {
            match event {
                TraceEvent::Opened { start, from, in_batches: true, .. } if start == from => {
                    see("batches".into());
                }
                TraceEvent::Opened { start, from, in_batches: false, .. } if start < from => {
                    see("a stream that keeps the ledger".into());
                }
                TraceEvent::Released { left: Left::Turned { why, within }, .. } => {
                    see(format!("{why:?}"));
                    if *within {
                        see(format!("{why:?} within a transaction"));
                    }
                }
                TraceEvent::Advanced { .. } => see("a move".into()),
                TraceEvent::Moved { .. } => see("a foreign client's move".into()),
                TraceEvent::Restored { .. } => see("a restored server".into()),
                TraceEvent::Exited {
                    exit: Exit::Source(SourceError::Slot(SlotError::OtherHistory { .. })),
                    ..
                } => see("another history".into()),
                _ => {}
            }
        }
    }
    panic!("not all of {all:?}: {seen:?}");
}

/// The violation in that schedule, if any.
fn judge(seed: u64, verbose: bool) -> Option<String> {
    let judged = catch_unwind(AssertUnwindSafe(|| {
        let world = simulate(seed);
        let world = world.lock();
        if verbose {
            println!("{:#?}", world.schedule);
            for (at, (now_ms, event)) in world.trace.iter().enumerate() {
                println!("{at:>5} {now_ms:>6} ms  {event:?}");
            }
        }
        checker::judge(&world.logs(), &world.schedule, &world.trace).err()
    }));
    judged.unwrap_or_else(|_| Some("it panicked, see above".to_owned()))
}

/// Runs the schedule of `seed` to its end.
fn simulate(seed: u64) -> Shared {
    // The source of backon's jitter.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without drivers");
    runtime.block_on(async {
        let world = Shared::new(seed);
        tokio::spawn(server::serve(world.clone()));
        tokio::spawn(broker::serve(world.clone()));
        tokio::spawn(fault_injection::inject(world.clone()));
        let writer = tokio::spawn(fault_injection::write(world.clone()));
        let walposts = world.lock().schedule.walposts;
        // One channel each: the wake-up order of a shared one is not deterministic.
        let walposts: Vec<_> = (0..walposts)
            .map(|_| {
                let (over, is_over) = watch::channel(false);
                (over, tokio::spawn(process::keep_running(world.clone(), is_over)))
            })
            .collect();
        writer.await.expect("it writes to the end");
        arrive(&world).await;
        for (over, _) in &walposts {
            over.send_replace(true);
        }
        for (_, walpost) in walposts {
            if let Err(error) = walpost.await {
                world.lock().note(TraceEvent::Strange(format!("a panic: {error}")));
            }
        }
        world
    })
}

/// Waits until the slot has reached the end of WAL.
async fn arrive(world: &Shared) {
    while !world.lock().calm {
        sleep(Duration::from_millis(100)).await;
    }
    let limit = {
        let world = world.lock();
        let poison = world.schedule.poison.map(|(poison, _)| poison);
        let is_searched_for =
            world.schedule.exactly_once && poison.is_some() || poison == Some(Poison::Forbidden);
        world.now_ms() + if is_searched_for { ARRIVAL_WITH_REJECTED_MS } else { ARRIVAL_MS }
    };
    let mut last = (Lsn::ZERO, 0);
    loop {
        {
            let mut world = world.lock();
            let (confirmed, now) = (world.server.confirmed, world.now_ms());
            if last.0 != confirmed || !world.is_undecidable() {
                last = (confirmed, now);
            } else if now - last.1 > UNDECIDED_MS {
                last.1 = now;
                world.allow_the_first();
            }
            if world.server.confirmed >= world.log.end && !world.is_restored {
                return world.note(TraceEvent::Arrived);
            }
            if world.now_ms() > limit {
                return;
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}
