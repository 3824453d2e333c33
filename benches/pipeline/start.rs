//! Time from process start to the first record with an existing slot, and from the last record to
//! its confirmation.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::message::BorrowedMessage;
use tokio::time::sleep;

use crate::Plan;
use crate::conditions::Conditions;
use crate::contender::Contender;
use crate::fixture::Fixture;
use crate::report::Report;
use crate::trial::Trial;

const PART: &str = "start";

/// Slots that are not confirmed by then are reported as if they were by then.
const UNCONFIRMED: Duration = Duration::from_secs(15);

pub(crate) async fn bench(fixture: &Fixture, plan: &Plan, report: &mut Report) {
    println!("\nstart:");
    for round in 1..=plan.rounds {
        for contender in plan.contenders() {
            run(fixture, contender, &format!("start_{}_{round}", contender.word()), report).await;
        }
    }
}

async fn run(fixture: &Fixture, contender: Contender, name: &str, report: &mut Report) {
    let last: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let seen = Arc::clone(&last);
    let each = move |_: &BorrowedMessage<'_>| seen.lock().expect("no panic").push(Instant::now());
    let mut trial = Trial::new(fixture, &Conditions::default(), name, each).await;
    trial.create_slot().await;
    let insert = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('order', '1', 'placed', '{}')";
    fixture.execute(insert).await;
    trial.prepare(contender).await;
    let begun = Instant::now();
    trial.start(contender).await;
    let count = |count: usize| last.lock().expect("no panic").len() >= count;
    trial.seconds_until(begun, "the first record", || count(1)).await;
    let first = last.lock().expect("no panic")[0].saturating_duration_since(begun);
    report.add(PART, contender.name(), "start → first record", "s", first.as_secs_f64());
    let client = fixture.servers.client().await;
    client.batch_execute(insert).await.expect("a row");
    let end = fixture.wal_end().await;
    let confirmed = format!(
        "SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = '{}'",
        trial.slot()
    );
    let confirmed = client.prepare(&confirmed).await.expect("a query");
    trial.seconds_until(begun, "the second record", || count(2)).await;
    let second = last.lock().expect("no panic")[1];
    while second.elapsed() < UNCONFIRMED {
        if client.query_one(&confirmed, &[]).await.expect("a slot").get(0) {
            break;
        }
        sleep(Duration::from_millis(2)).await;
    }
    let name_of_figure = "last record → confirmed";
    report.add(PART, contender.name(), name_of_figure, "s", second.elapsed().as_secs_f64());
    trial.end().await;
}
