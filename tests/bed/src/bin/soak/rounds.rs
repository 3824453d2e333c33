//! The rounds: one kill each, and the oracle after each.
//!
//! Rows belong to epochs of several rounds, each with its own topic, so that the checked data stays
//! small however long the soak runs. An epoch is checked when it ends, and again when the next one
//! ends, so that late duplicates count too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use walpost_bed::fixture::LONG_TIMEOUT;
use walpost_bed::oracle::{Row, Verdict, judge};
use walpost_bed::writer::{Writer, lsn};
use walpost_bed::{Consumed, within};

use crate::Broken;
use crate::fault::Fault;
use crate::report::Report;
use crate::rng::Rng;
use crate::services::Services;
use crate::target::{Epoch, Wanted};

/// Rounds in an epoch.
const EPOCH: u64 = 25;

/// At least so often it says how far it has come.
const PROGRESS: Duration = Duration::from_secs(15);

/// What was written in an epoch that has ended.
struct Past {
    epoch: Epoch,
    rows: Vec<Row>,
    rolled_back: Vec<String>,
}

pub(crate) async fn soak(
    kills: u64,
    seed: u64,
    wanted: Wanted,
    report: Arc<Mutex<Report>>,
) -> Result<(), Broken> {
    let mut rng = Rng::new(seed);
    let mut services = Services::set(wanted).await;
    let mut deck = Vec::new();
    let mut past = None;
    let began = Instant::now();
    let mut reported = began;
    for number in 0..kills.div_ceil(EPOCH) {
        let epoch = services.target.begin(format!("epoch-{number}")).await;
        let writer =
            Writer::start_with(&services.fixture().postgres, &epoch.name, services.target.load());
        for round in number * EPOCH..kills.min((number + 1) * EPOCH) {
            writer.commits(rng.of(1..60)).await;
            if deck.is_empty() {
                deck = Fault::deck(&mut rng);
            }
            let fault = deck.pop().expect("a deck has cards");
            let in_fault = |why: Broken| format!("kill {}, {}: {why}", round + 1, fault.name());
            if fault.comes_while_idle() {
                writer.pause();
                idle(&mut services, &mut rng).await.map_err(in_fault)?;
            }
            fault.inject(&mut services, &mut rng).await.map_err(in_fault)?;
            writer.resume();
            if fault.ends_walpost() {
                // What is confirmed now has to be there by itself.
                look(&services, &report, &epoch, &writer).await.map_err(in_fault)?;
                services.start_walpost(None);
            }
            let pause = delivery_resumes(&services).await.map_err(in_fault)?;
            locked(&report).add_fault(fault, pause, &services);
            look(&services, &report, &epoch, &writer).await.map_err(in_fault)?;
            if reported.elapsed() >= PROGRESS {
                reported = Instant::now();
                let seconds = began.elapsed().as_secs();
                println!(
                    "{} of {kills} kills, {seconds} s; {}",
                    round + 1,
                    locked(&report).judged()
                );
            }
        }
        let now = close(&services, epoch, writer).await?;
        check_verdict(&services, &report, &verdict(&services, &now).await)?;
        if let Some(before) = past.replace(now) {
            finish(&services, &report, &before).await?;
        }
    }
    if let Some(last) = past {
        finish(&services, &report, &last).await?;
    }
    let rows = locked(&report).rows();
    services.target.check_whole(rows).await.map_err(|why| services.said(&why))?;
    println!("{kills} kills in {} s", began.elapsed().as_secs());
    Ok(())
}

/// Restarts walpost without events to receive, and awaits that WAL without events is confirmed. After a
/// restart, PostgreSQL sends what was published before that, or has a position in such WAL.
async fn idle(services: &mut Services, rng: &mut Rng) -> Result<(), Broken> {
    Fault::WalpostTerminated.inject(services, rng).await?;
    services.start_walpost(None);
    delivery_resumes(services).await?;
    for _ in 0..rng.of(0..3) {
        services.ask("CREATE TABLE idle AS SELECT; DROP TABLE idle").await?;
        delivery_resumes(services).await?;
    }
    Ok(())
}

/// Awaits that what is committed now is confirmed; how long that took.
async fn delivery_resumes(services: &Services) -> Result<Duration, Broken> {
    let healed = Instant::now();
    let now = lsn(&services.ask("SELECT pg_current_wal_insert_lsn()").await?);
    let reached = within(LONG_TIMEOUT, async || {
        if services.walpost.pid().is_none() {
            return Ok(Err("walpost ended by itself"));
        }
        match confirmed(services).await {
            Ok(confirmed) if confirmed >= now => Ok(Ok(())),
            Ok(confirmed) => Err(format!("{confirmed:X} of {now:X}")),
            Err(broken) => Err(broken),
        }
    });
    match reached.await {
        Ok(Ok(())) => Ok(healed.elapsed()),
        Ok(Err(why)) => Err(services.said(why)),
        Err(seen) => Err(services.said(&format!("not confirmed within {LONG_TIMEOUT:?}: {seen}"))),
    }
}

async fn confirmed(services: &Services) -> Result<u64, Broken> {
    let query = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'walpost'";
    let confirmed = services.ask(query).await?;
    if confirmed.is_empty() { Err("the slot is gone".to_owned()) } else { Ok(lsn(&confirmed)) }
}

/// Judges what was published so far, where rows may still be under way, and
/// whether the slot covers one that was not published.
async fn look(
    services: &Services,
    report: &Mutex<Report>,
    epoch: &Epoch,
    writer: &Writer,
) -> Result<(), Broken> {
    // In this order: what is confirmed is published already, and what is
    // published was committed already.
    let confirmed = confirmed(services).await?;
    let records = services.target.records(epoch).await;
    let visible = services.fixture().postgres.older_transactions_end(LONG_TIMEOUT).await;
    visible.map_err(|seen| services.said(&seen))?;
    let committed = services.fixture().committed().await;
    let mut verdict = judge_all(&committed, &writer.rolled_back(), &records);
    verdict.missing.clear();
    check_verdict(services, report, &verdict)?;
    let unpublished = writer.unpublished(confirmed, &records);
    let Some(first) = unpublished.first() else {
        return Ok(());
    };
    let count = unpublished.len();
    locked(report).unpublished += count;
    Err(services.said(&format!("{count} rows confirmed, not published: {first}")))
}

/// Ends an epoch once all of it is confirmed, and makes room.
async fn close(services: &Services, epoch: Epoch, writer: Writer) -> Result<Past, Broken> {
    let rolled_back = writer.stop().await;
    delivery_resumes(services).await?;
    let rows = services.fixture().committed().await;
    services.fixture().postgres.execute("TRUNCATE public.outbox").await;
    Ok(Past { epoch, rows, rolled_back })
}

/// The last word on an epoch that has ended.
async fn finish(services: &Services, report: &Mutex<Report>, past: &Past) -> Result<(), Broken> {
    let verdict = verdict(services, past).await;
    check_verdict(services, report, &verdict)?;
    locked(report).add_verdict(&verdict);
    Ok(())
}

async fn verdict(services: &Services, past: &Past) -> Verdict {
    judge_all(&past.rows, &past.rolled_back, &services.target.records(&past.epoch).await)
}

/// What breaks a promise is counted and ends it all.
fn check_verdict(
    services: &Services,
    report: &Mutex<Report>,
    verdict: &Verdict,
) -> Result<(), Broken> {
    if verdict.is_exact() || (verdict.is_ok() && !services.target.is_exact()) {
        return Ok(());
    }
    locked(report).add_verdict(verdict);
    Err(services.said(&verdict.to_string()))
}

fn locked(report: &Mutex<Report>) -> MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

fn judge_all(committed: &[Row], rolled_back: &[String], records: &[Consumed]) -> Verdict {
    judge(committed, rolled_back.iter().map(String::as_str), records)
}
