//! `walpost skip`: one undeliverable event is passed over, and nothing else.

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, ended, insert, stop};
use walpost_bed::oracle::judge;
use walpost_bed::{Major, Postgres};

use super::prune::Kept;
use super::state_topic::topic;

/// A transaction with an event without a key between others, and others around it.
const WITH_KEYLESS: &str = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
     SELECT 'order', CASE n WHEN 3 THEN NULL ELSE 'k' || n % 2 END, 'placed', '{}' \
     FROM generate_series(1, 6) AS n";

const DELIVERABLE: &str =
    "SELECT id, aggregate_id FROM public.outbox WHERE aggregate_id IS NOT NULL ORDER BY n";

/// The exit status and the output of `walpost skip` for the event at this position.
async fn skip(
    fixture: &Fixture,
    topic: &str,
    position: &str,
    arguments: &[&str],
) -> (Option<i32>, String) {
    let skip = fixture.command("skip").args(["--state-topic", topic, "--position", position]);
    let skip = skip.args(arguments).start();
    let (status, said) = ended(&skip).await;
    (status, format!("{said}{}", skip.stdout().join("\n")))
}

async fn only_the_named_event_is_skipped(delivery: &str) {
    let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
    fixture.postgres.execute("ALTER TABLE public.outbox ALTER aggregate_id DROP NOT NULL").await;
    let topic = topic(&fixture).await;
    let arguments = ["--delivery", delivery, "--state-topic", &topic];

    let (status, said) = skip(&fixture, &topic, "0000000001926E68/00000002", &["--apply"]).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("`walpost adopt --apply "), "{said}");
    fixture.adopt(&topic).await;

    for sql in [&insert(20, 3), WITH_KEYLESS, &insert(20, 3)] {
        fixture.postgres.execute(sql).await;
    }
    let (status, said) = fixture.run_to_its_end(&arguments).await;
    assert_eq!(status, Some(4), "{said}");
    let (_, rest) = said.split_once("`walpost skip --position ").expect("the remedy");
    let position = rest.split(' ').next().expect("a position").to_owned();
    assert!(position.ends_with("/00000002"), "{position}");

    let (status, said) = skip(&fixture, &topic, &position, &[]).await;
    assert_eq!(status, Some(0), "{said}");
    let (status, _) = fixture.run_to_its_end(&arguments).await;
    assert_eq!(status, Some(4), "it was not applied");
    let (status, said) = skip(&fixture, &topic, &position, &["--apply"]).await;
    assert_eq!(status, Some(0), "{said}");
    // What numbers the events must not change in between.
    let other = [&arguments[..], &["--message-prefix", "events"]].concat();
    let (status, said) = fixture.run_to_its_end(&other).await;
    assert_eq!(status, Some(3), "{said}");
    assert!(said.contains("is to be skipped") && said.contains("--undo"), "{said}");
    for order in [&["--undo", "--apply"][..], &["--apply"]] {
        let (status, said) = skip(&fixture, &topic, &position, order).await;
        assert_eq!(status, Some(0), "{said}");
    }
    let walpost = fixture.run_with(&arguments).await;
    walpost.await_line(&position, LONG_TIMEOUT).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.postgres.execute(&insert(20, 3)).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;

    let (rows, records) = (fixture.rows(DELIVERABLE).await, fixture.records().await);
    let verdict = judge(&rows, std::iter::empty(), &records);
    // At least once, an event before the skipped one in its transaction is repeated by each start.
    if delivery == "exactly-once" {
        verdict.assert_exact();
    } else {
        verdict.assert_ok();
    }
    let (status, said) = skip(&fixture, &topic, &position, &["--apply"]).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("is not to come any more"), "{said}");
}

/// `walpost prune` keeps the row of an event that `walpost skip` passed over: nothing else has it.
async fn the_row_of_a_skipped_event_alone_is_not_pruned(delivery: &'static str) {
    let kept = Kept::new(delivery).await;
    let postgres = &kept.fixture.postgres;
    postgres.execute("ALTER TABLE public.outbox ALTER aggregate_id DROP NOT NULL").await;
    let walpost = kept.run().await;
    for sql in [&insert(20, 3), WITH_KEYLESS, &insert(20, 3)] {
        postgres.execute(sql).await;
    }
    let (status, said) = ended(&walpost).await;
    assert_eq!(status, Some(4), "{said}");
    let (_, rest) = said.split_once("`walpost skip --position ").expect("the remedy");
    let position = rest.split(' ').next().expect("a position").to_owned();
    let (status, said) = skip(&kept.fixture, &kept.topic, &position, &["--apply"]).await;
    assert_eq!(status, Some(0), "{said}");
    let walpost = kept.run().await;
    walpost.await_line(&position, LONG_TIMEOUT).await;
    kept.delivered().await;
    // The row is still known after a restart, which does not read the event again.
    walpost.kill9().await;
    let walpost = kept.run().await;
    // With another transaction's id than that of the event.
    postgres
        .execute("UPDATE public.outbox SET event_type = 'later' WHERE aggregate_id IS NULL")
        .await;
    postgres.execute(&insert(20, 3)).await;
    kept.delivered().await;
    let (code, said) = kept.prune(&["--older-than", "0s", "--dry-run"]).await;
    assert!(code == Some(0) && said.contains("passed over by `walpost skip`:       1"), "{said}");
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("65 rows deleted"), "{code:?} {said}");
    let left = "SELECT count(*) || ' ' || count(aggregate_id) FROM public.outbox";
    assert_eq!(postgres.query_text(left).await.as_deref(), Some("1 0"));
    let (code, said) = kept.prune(&["--older-than", "0s", "--include-skipped"]).await;
    assert!(code == Some(0) && said.contains("1 rows deleted"), "{code:?} {said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_of_a_skipped_event_is_kept() {
    the_row_of_a_skipped_event_alone_is_not_pruned("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_of_an_event_skipped_with_exactly_once_delivery_is_kept() {
    the_row_of_a_skipped_event_alone_is_not_pruned("exactly-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_is_skipped() {
    only_the_named_event_is_skipped("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_is_skipped_with_exactly_once_delivery() {
    only_the_named_event_is_skipped("exactly-once").await;
}
