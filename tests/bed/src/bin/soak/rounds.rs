//! The rounds: a kill each, and the oracle after each.
//!
//! Rows belong to epochs of some rounds, each with a topic of its own, so that
//! what is judged stays small however long it soaks. An epoch is judged when it
//! ends, and once more when the next one does: late repeats count too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use walpost_bed::oracle::{Row, Verdict, judge};
use walpost_bed::scene::LATER;
use walpost_bed::writer::{Writer, lsn};
use walpost_bed::{Consumed, read_all, within};

use crate::Broken;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::stage::Stage;
use crate::tally::Tally;

/// Rounds in an epoch.
const EPOCH: u64 = 25;

/// Transactions a second, of three rows on average.
const LOAD: u32 = 150;

/// At least so often it says how far it has come.
const PROGRESS: Duration = Duration::from_secs(15);

/// What was written in an epoch that has ended.
struct Past {
    name: String,
    rows: Vec<Row>,
    rolled_back: Vec<String>,
}

pub(crate) async fn soak(kills: u64, seed: u64, tally: Arc<Mutex<Tally>>) -> Result<(), Broken> {
    let mut dice = Dice::new(seed);
    let mut stage = Stage::set().await;
    let mut deck = Vec::new();
    let mut past = None;
    let began = Instant::now();
    let mut told = began;
    for epoch in 0..kills.div_ceil(EPOCH) {
        let name = format!("epoch-{epoch}");
        stage.kafka.create_topic(&stage.scene.topic(&name), 3).await;
        let writer = Writer::start_with(&stage.scene.postgres, &name, LOAD);
        for round in epoch * EPOCH..kills.min((epoch + 1) * EPOCH) {
            writer.commits(dice.of(1..60)).await;
            if deck.is_empty() {
                deck = Fault::deck(&mut dice);
            }
            let fault = deck.pop().expect("a deck has cards");
            let in_fault = |why: Broken| format!("kill {}, {}: {why}", round + 1, fault.name());
            fault.commit(&mut stage, &mut dice).await.map_err(in_fault)?;
            if fault.ends_walpost() {
                // What is confirmed now has to be there by itself.
                look(&stage, &tally, &name, &writer).await.map_err(in_fault)?;
                stage.start_walpost(None);
            }
            let pause = goes_on(&stage).await.map_err(in_fault)?;
            locked(&tally).add_fault(fault, pause, &stage);
            look(&stage, &tally, &name, &writer).await.map_err(in_fault)?;
            if told.elapsed() >= PROGRESS {
                told = Instant::now();
                let seconds = began.elapsed().as_secs();
                println!(
                    "{} of {kills} kills, {seconds} s; {}",
                    round + 1,
                    locked(&tally).judged()
                );
            }
        }
        let now = close(&stage, name, writer).await?;
        kept(&stage, &tally, &verdict(&stage, &now).await)?;
        if let Some(before) = past.replace(now) {
            finish(&stage, &tally, &before).await?;
        }
    }
    if let Some(last) = past {
        finish(&stage, &tally, &last).await?;
    }
    println!("{kills} kills in {} s", began.elapsed().as_secs());
    Ok(())
}

/// Awaits that what is committed now is confirmed; how long that took.
async fn goes_on(stage: &Stage) -> Result<Duration, Broken> {
    let healed = Instant::now();
    let now = lsn(&stage.ask("SELECT pg_current_wal_insert_lsn()").await?);
    let reached = within(LATER, async || {
        if stage.walpost.pid().is_none() {
            return Ok(Err("walpost ended by itself"));
        }
        match confirmed(stage).await {
            Ok(confirmed) if confirmed >= now => Ok(Ok(())),
            Ok(confirmed) => Err(format!("{confirmed:X} of {now:X}")),
            Err(broken) => Err(broken),
        }
    });
    match reached.await {
        Ok(Ok(())) => Ok(healed.elapsed()),
        Ok(Err(why)) => Err(stage.said(why)),
        Err(seen) => Err(stage.said(&format!("not confirmed within {LATER:?}: {seen}"))),
    }
}

async fn confirmed(stage: &Stage) -> Result<u64, Broken> {
    let query = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'walpost'";
    let confirmed = stage.ask(query).await?;
    if confirmed.is_empty() { Err("the slot is gone".to_owned()) } else { Ok(lsn(&confirmed)) }
}

/// Judges what was published so far, where rows may still be under way, and
/// whether the slot covers one that was not published.
async fn look(
    stage: &Stage,
    tally: &Mutex<Tally>,
    epoch: &str,
    writer: &Writer,
) -> Result<(), Broken> {
    // In this order: what is confirmed is published already, and what is
    // published was committed already.
    let confirmed = confirmed(stage).await?;
    let records = records(stage, epoch).await;
    let committed = stage.scene.committed().await;
    let mut verdict = judge_all(&committed, &writer.rolled_back(), &records);
    verdict.missing.clear();
    kept(stage, tally, &verdict)?;
    let unpublished = writer.unpublished(confirmed, &records);
    let Some(first) = unpublished.first() else {
        return Ok(());
    };
    let count = unpublished.len();
    locked(tally).passed_over += count;
    Err(stage.said(&format!("{count} rows confirmed, not published: {first}")))
}

/// Ends an epoch once all of it is confirmed, and makes room.
async fn close(stage: &Stage, name: String, writer: Writer) -> Result<Past, Broken> {
    let rolled_back = writer.stop().await;
    goes_on(stage).await?;
    let rows = stage.scene.committed().await;
    stage.scene.postgres.execute("TRUNCATE public.outbox").await;
    Ok(Past { name, rows, rolled_back })
}

/// The last word on an epoch that has ended.
async fn finish(stage: &Stage, tally: &Mutex<Tally>, past: &Past) -> Result<(), Broken> {
    let verdict = verdict(stage, past).await;
    kept(stage, tally, &verdict)?;
    locked(tally).add_verdict(&verdict);
    Ok(())
}

async fn verdict(stage: &Stage, past: &Past) -> Verdict {
    judge_all(&past.rows, &past.rolled_back, &records(stage, &past.name).await)
}

/// What breaks a promise is counted and ends it all.
fn kept(stage: &Stage, tally: &Mutex<Tally>, verdict: &Verdict) -> Result<(), Broken> {
    if verdict.is_ok() {
        return Ok(());
    }
    locked(tally).add_verdict(verdict);
    Err(stage.said(&verdict.to_string()))
}

fn locked(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

fn judge_all(committed: &[Row], rolled_back: &[String], records: &[Consumed]) -> Verdict {
    judge(committed, rolled_back.iter().map(String::as_str), records)
}

async fn records(stage: &Stage, epoch: &str) -> Vec<Consumed> {
    read_all(&stage.kafka.bootstrap(), stage.scene.topic(epoch).as_str()).await
}
