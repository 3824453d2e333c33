//! An hour of a partitioned outbox under load, with periods of a second instead of a minute.

use std::time::{Duration, Instant};

use walpost_bed::fixture::{LONG_TIMEOUT, stop};
use walpost_bed::oracle;
use walpost_bed::writer::Writer;

use super::{Parts, Prober, insert_of};

/// 64 periods, where an hour has 60 minutes.
const CYCLES: u32 = 4;

/// What prune may make writers wait at once.
const LOCK_TIMEOUT: &str = "200ms";

/// That, and what two busy cores take for an insert.
const SLOWEST: Duration = Duration::from_secs(1);

/// Transactions that take some time, as an application's do.
async fn slow_transactions(parts: &Parts) -> tokio::task::JoinHandle<()> {
    let client = parts.postgres().client().await;
    tokio::spawn(async move {
        loop {
            let write = format!("BEGIN; {}", insert_of("slow").repeat(3));
            client.batch_execute(&write).await.expect("no writer fails");
            tokio::time::sleep(Duration::from_millis(120)).await;
            client.batch_execute("COMMIT").await.expect("no writer fails");
            tokio::time::sleep(Duration::from_millis(120)).await;
        }
    })
}

/// What is done to walpost, and when in each cycle.
#[derive(Clone, Copy)]
enum Act {
    Freeze,
    Resume,
    Kill,
    Start,
}

const CYCLE: Duration = Duration::from_secs(16);
const ACTS: [(u64, Act); 4] =
    [(4, Act::Freeze), (9, Act::Resume), (12, Act::Kill), (15, Act::Start)];

async fn an_hour_under_load(delivery: &'static str) {
    let parts = Parts::with_periods(1, 30, delivery).await;
    let mut walpost = parts.kept.run().await;
    let writer = Writer::start(parts.postgres(), 100);
    let prober = Prober::start(parts.postgres()).await;
    let slow = slow_transactions(&parts).await;
    parts.kept.delivered().await;
    let began = Instant::now();
    let cycles = (0_u32..).flat_map(|cycle| ACTS.map(|(at, act)| (CYCLE * cycle, at, act)));
    let mut acts = cycles.map(|(cycle, at, act)| (cycle + Duration::from_secs(at), act)).peekable();
    let (mut made, mut dropped, mut kept, mut gave_up, mut runs) = (0, 0, 0, 0, 0);
    // Ends with a walpost that runs.
    while acts.peek().is_some_and(|(at, _)| *at < CYCLE * CYCLES) {
        if let Some((_, act)) = acts.next_if(|(at, _)| *at <= began.elapsed()) {
            match act {
                Act::Freeze => walpost.pause(),
                Act::Resume => walpost.resume(),
                Act::Kill => walpost.kill9().await,
                Act::Start => walpost = parts.kept.run().await,
            }
            parts.kept.deleted_ones_are_published().await;
        }
        let arguments = ["--older-than", "2s", "--partitions-ahead", "20s"];
        let limit = ["--lock-timeout", LOCK_TIMEOUT, "--sleep", "1ms"];
        let (code, said) = parts.kept.prune(&[&arguments[..], &limit].concat()).await;
        let was_locked = said.contains("partition left: other sessions");
        assert!(code == Some(0) || code == Some(1) && was_locked, "{code:?} {said}");
        made += said.matches("partition made").count();
        dropped += said.matches(" dropped").count();
        kept += said.matches("are not proved to be delivered").count();
        gave_up += usize::from(was_locked);
        writer.commits(1).await;
        runs += 1;
    }
    slow.abort();
    let (slowest, inserts) = prober.stop().await;
    let rolled_back = writer.stop().await;
    parts.kept.fixture.confirmed(LONG_TIMEOUT).await;
    let deleted = parts.kept.deleted_ones_are_published().await;
    println!(
        "{delivery}: {runs} runs in {:?}: {made} partitions made, {dropped} dropped, {kept} times one \
         was kept since rows were not delivered, {gave_up} runs left one since others had locks; \
         {deleted} rows deleted; the slowest of {inserts} inserts took {slowest:?}",
        began.elapsed()
    );
    assert!(made >= 40 && dropped >= 30 && kept >= 5, "{made} {dropped} {kept}");
    assert!(slowest < SLOWEST, "{slowest:?} of {inserts} inserts");
    stop(walpost).await;
    let records = parts.kept.fixture.records().await;
    let rolled_back = rolled_back.iter().map(String::as_str);
    let verdict = oracle::judge(&parts.kept.all().await, rolled_back, &records);
    if delivery == "exactly-once" { verdict.assert_exact() } else { verdict.assert_ok() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn an_hour_under_load_drops_nothing_undelivered_at_least_once() {
    an_hour_under_load("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn an_hour_under_load_drops_nothing_undelivered_exactly_once() {
    an_hour_under_load("exactly-once").await;
}
