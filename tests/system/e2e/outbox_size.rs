//! What is read of the outbox and of other instances once a minute: metrics and status.

use walpost_bed::eventually;
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, insert, stop};

use super::endpoints::Answering;

/// By a role without any right on the table, and without waiting for its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn size_of_a_partitioned_outbox_is_the_sum_of_its_partitions() {
    let table =
        "CREATE TABLE public.outbox (id uuid DEFAULT gen_random_uuid(), aggregate_type text,
                     aggregate_id text, event_type text, payload jsonb, created_at timestamptz
                     DEFAULT now(), PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at);
                 CREATE TABLE public.old PARTITION OF public.outbox
                     FOR VALUES FROM ('2001-01-01') TO ('2020-01-01');
                 CREATE TABLE public.new PARTITION OF public.outbox DEFAULT";
    let mut fixture = Fixture::empty().await.over(table).await;
    fixture.source = fixture.postgres.url_for("walpost");
    fixture.postgres.execute(&insert(3000, 10)).await;
    let old = "UPDATE public.outbox SET created_at = '2002-02-02' WHERE aggregate_id IN ('1', '2')";
    fixture.postgres.execute(old).await;
    let size = |table: &str| {
        format!(
            "SELECT pg_total_relation_size('{table}'), pg_total_relation_size('{table}') > 50000"
        )
    };
    let mut sum = 0.0;
    for table in ["public.old", "public.new"] {
        let row = fixture.postgres.query_rows(&size(table)).await.remove(0);
        assert_eq!(row[1].as_deref(), Some("t"), "{table} is empty");
        sum += row[0].as_ref().and_then(|bytes| bytes.parse::<f64>().ok()).expect("a size");
    }
    let locker = fixture.postgres.client().await;
    let lock = "BEGIN; LOCK TABLE ONLY public.old IN ACCESS EXCLUSIVE MODE";
    locker.batch_execute(lock).await.expect("locked");
    let answering = Answering::run(&fixture, &[]).await;
    eventually(SHORT_TIMEOUT, "the slot's metrics are read", async || {
        answering.scrape().await.of("walpost_slot_observed_timestamp_seconds") > 0.0
    })
    .await;
    // What follows on the same connection does not wait for the lock.
    let message = "SELECT pg_logical_emit_message(true, '', '')";
    fixture.postgres.execute(message).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let name = "walpost_outbox_size_bytes";
    assert_eq!(answering.scrape().await.sum(name, &[]), None, "half a table");
    stop(answering.walpost).await;
    locker.batch_execute("ROLLBACK").await.expect("unlocked");
    let answering = Answering::run(&fixture, &[]).await;
    eventually(SHORT_TIMEOUT, "the size is read", async || {
        answering.scrape().await.sum(name, &[]).is_some()
    })
    .await;
    let labels = [("table", "public.outbox")];
    let found = answering.scrape().await.sum(name, &labels).expect("of that table");
    assert!((found - sum).abs() < 1e-9, "{found} is not {sum}");
    assert!(!answering.walpost.said("cannot read the size of the outbox"));
    stop(answering.walpost).await;
}

/// By a role without any right on the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_rows_and_standby_instances_are_in_the_status() {
    let mut fixture = Fixture::new().await;
    fixture.source = fixture.postgres.url_for("walpost");
    fixture.postgres.execute(&insert(10, 1)).await;
    let often = || fixture.command("run").env("FAILPOINTS", "frequent_bookmarks=return");
    let first = Answering::over(often()).await;
    let standbys = async |at: &Answering| at.scrape().await.sum("walpost_standby_instances", &[]);
    let is_removed = async |at: &Answering| {
        let status: serde_json::Value =
            serde_json::from_str(&at.page("/status").await.1).expect("JSON");
        status["outbox_removed_at"]["public.outbox"].is_number()
    };
    eventually(SHORT_TIMEOUT, "nobody stands by", async || standbys(&first).await == Some(0.0))
        .await;
    assert!(!is_removed(&first).await);
    let second = Answering::over(often()).await;
    eventually(SHORT_TIMEOUT, "one stands by", async || standbys(&first).await == Some(1.0)).await;
    assert_eq!(standbys(&second).await, None);
    fixture.postgres.execute("DELETE FROM public.outbox").await;
    eventually(SHORT_TIMEOUT, "rows are gone", async || is_removed(&first).await).await;
    stop(first.walpost).await;
    eventually(SHORT_TIMEOUT, "nobody stands by", async || standbys(&second).await == Some(0.0))
        .await;
    stop(second.walpost).await;
}
