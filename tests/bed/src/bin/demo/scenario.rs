//! The scenario: a few orders, then `kill -9` during a burst, then a comparison of committed rows
//! with delivered records.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use walpost_bed::oracle::{self, Row};
use walpost_bed::within;

use crate::DemoError;
use crate::services::Services;
use crate::shop::{End, Shop, Written};
use crate::terminal::Terminal;

/// How long a record may take that nothing holds up.
const SHORT_TIMEOUT: Duration = Duration::from_secs(20);
/// So that a viewer can follow.
const STEP: Duration = Duration::from_millis(250);

/// Transactions of the rush; walpost dies before one and starts again before another.
const RUSH: i64 = 240;
const KILL_AT: i64 = 90;
const START_AT: i64 = 150;
const RUSH_STEP: Duration = Duration::from_millis(10);
/// In the rush every so many transactions one is rolled back.
const REFUSED_EVERY: i64 = 12;

/// From the kill until what had piled up by the new start was delivered.
struct Outage {
    from: Instant,
    until: Instant,
}

/// Tells it, and fails where the account does not come out.
pub(crate) async fn run(terminal: &Terminal, services: &mut Services) -> Result<(), DemoError> {
    let mut shop = Shop::new(services.postgres.client().await);
    let mut written = morning(terminal, services, &mut shop).await?;
    let outage = rush(terminal, services, &mut shop, &mut written).await?;
    account(terminal, services, &written, &outage).await
}

/// A few orders, slowly.
async fn morning(
    terminal: &Terminal,
    services: &Services,
    shop: &mut Shop,
) -> Result<Vec<Written>, DemoError> {
    const COMMIT: End = End::Commit;
    const ROLLBACK: End = End::Rollback;
    let steps: [(i64, &str, &str, End); 12] = [
        (1001, "placed", "by Ada", COMMIT),
        (1002, "placed", "by Grace", COMMIT),
        (1001, "paid", "", COMMIT),
        (1002, "paid", ": card refused", ROLLBACK),
        (1003, "placed", "by Edsger", COMMIT),
        (1004, "placed", ": out of stock", ROLLBACK),
        (1001, "shipped", "", COMMIT),
        (1002, "paid", "with another card", COMMIT),
        (1003, "paid", ": card refused", ROLLBACK),
        (1003, "cancelled", "", COMMIT),
        (1002, "shipped", "", COMMIT),
        (1005, "placed", "by Barbara", COMMIT),
    ];
    terminal.heading("A few orders: each change and its event in one transaction");
    terminal.columns();
    let mut written = Vec::new();
    for (order, status, remark, end) in steps {
        let event = if status == "placed" {
            shop.place(order, remark.trim_start_matches("by "), end).await?
        } else {
            shop.advance(order, status, end).await?
        };
        let glue = if remark.is_empty() || remark.starts_with(':') { "" } else { " " };
        let what = format!("order {order} {status}{glue}{remark}");
        if end == End::Commit {
            let record = services.consumer.first(&event.id, SHORT_TIMEOUT).await?;
            terminal.delivered(&what, &record.place(), &spelled(record.at - event.at));
        } else {
            terminal.rolled_back(&what);
        }
        written.push(event);
        tokio::time::sleep(STEP).await;
    }
    let lag = services.lag().await;
    terminal.note(&format!("lag of the slot (WAL not yet confirmed): {lag}"));
    Ok(written)
}

/// Many orders, quickly, and walpost is killed in the middle.
async fn rush(
    terminal: &Terminal,
    services: &mut Services,
    shop: &mut Shop,
    written: &mut Vec<Written>,
) -> Result<Outage, DemoError> {
    terminal.heading("A burst, and kill -9 in the middle of it");
    terminal.say(&format!(
        "{RUSH} transactions, one every {} ms; each {REFUSED_EVERY}th is rolled back",
        RUSH_STEP.as_millis()
    ));
    let mut from = Instant::now();
    let mut started = from;
    for number in 0..RUSH {
        if number == KILL_AT {
            let pid = services.walpost().pid().unwrap_or_default();
            from = Instant::now();
            services.walpost().kill9().await;
            terminal.harm(&format!("after {KILL_AT}: kill -9 {pid}; the shop keeps working"));
        }
        if number == START_AT {
            let lag = services.lag().await;
            terminal
                .say(&format!("after {START_AT}: PostgreSQL retains {lag} of WAL for the slot"));
            started = Instant::now();
            services.start_walpost()?;
            let pid = services.walpost().pid().unwrap_or_default();
            terminal.say(&format!("walpost run, again (process {pid})"));
        }
        let refused = number % REFUSED_EVERY == REFUSED_EVERY - 1;
        let end = if refused { End::Rollback } else { End::Commit };
        written.push(shop.place(2001 + number, "the rush", end).await?);
        tokio::time::sleep(RUSH_STEP).await;
    }
    let mut until = started;
    for event in written.iter().filter(|event| event.end == End::Commit) {
        let record = services.consumer.first(&event.id, SHORT_TIMEOUT).await?;
        if event.at < started {
            until = until.max(record.at);
        }
    }
    terminal
        .good(&format!("the backlog was delivered {} after the start", spelled(until - started)));
    Ok(Outage { from, until })
}

/// Committed against arrived.
async fn account(
    terminal: &Terminal,
    services: &Services,
    written: &[Written],
    outage: &Outage,
) -> Result<(), DemoError> {
    terminal.heading("Result");
    // Records may still be on their way, repeats above all: all is sent when the slot has it all.
    let confirmed = within(SHORT_TIMEOUT, async || services.lag().await == "0 bytes").await;
    let lag = confirmed.map_or_else(|_| "not 0", |()| "0 bytes");
    let committed: Vec<_> = written.iter().filter(|event| event.end == End::Commit).collect();
    let rows: Vec<_> = committed.iter().map(|event| Row::new(&event.id, event.order)).collect();
    let refused = written.iter().filter(|event| event.end == End::Rollback);
    let refused: Vec<_> = refused.map(|event| event.id.as_str()).collect();
    let records = services.records().await;
    let verdict = oracle::judge(&rows, refused.iter().copied(), &records);
    let is_kept = if services.is_exact() { verdict.is_exact() } else { verdict.is_ok() };
    if !is_kept {
        return Err(format!("the guarantee does not hold: {verdict}").into());
    }
    let mut first = HashMap::new();
    for arrival in services.consumer.after(0) {
        first.entry(arrival.id).or_insert(arrival.at);
    }
    let mut usual = Vec::new();
    let mut held_up = Vec::new();
    for event in committed {
        let at = first.get(&event.id).ok_or("the consumer has not seen every record")?;
        let was_held_up = event.at < outage.until && *at > outage.from;
        if was_held_up { &mut held_up } else { &mut usual }.push(*at - event.at);
    }
    // The first one waits until producer and consumer have made their connections.
    let first = usual.remove(0);
    usual.sort_unstable();
    let p50 = usual.get(usual.len() / 2).copied().unwrap_or_default();
    let max = usual.last().copied().unwrap_or_default();
    let longest = held_up.iter().max().copied().unwrap_or_default();
    terminal
        .good(&format!("{:>5} events committed, all delivered, in order for each key", rows.len()));
    terminal.good(&format!("{:>5} events rolled back, none delivered", refused.len()));
    let repeats = if services.is_exact() {
        "the kill repeats nothing in the stream"
    } else {
        "repeats after the kill, with the same id (at least once)"
    };
    terminal.good(&format!("{:>5} records more than events: {repeats}", verdict.duplicates.len()));
    terminal.say(&format!(
        "delay from COMMIT to consumer: p50 {}, max {} ({} events); the very first {}",
        spelled(p50),
        spelled(max),
        usual.len(),
        spelled(first)
    ));
    terminal.say(&format!(
        "held up while walpost was dead: {} events, by {} at the most",
        held_up.len(),
        spelled(longest)
    ));
    terminal.say(&format!("lag of the slot: {lag}"));
    Ok(())
}

/// Milliseconds below a second, else seconds.
fn spelled(delay: Duration) -> String {
    if delay < Duration::from_secs(1) {
        format!("{:.1} ms", delay.as_secs_f64() * 1000.0)
    } else {
        format!("{:.2} s", delay.as_secs_f64())
    }
}
