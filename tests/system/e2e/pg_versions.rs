//! One compact scenario on every supported PostgreSQL version.

use walpost_bed::oracle::Row;
use walpost_bed::{Kafka, Major, Postgres};

use crate::catch_up::{IN_BATCHES, catching_up};
use walpost_bed::fixture::{
    Fixture, SHORT_TIMEOUT, assert_in_log_order, copy, insert, record_of, stop,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_on_postgresql_14_is_published() {
    publish_every_shape(Major::V14).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_on_postgresql_15_is_published() {
    publish_every_shape(Major::V15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_on_postgresql_16_is_published() {
    publish_every_shape(Major::V16).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_on_postgresql_17_is_published() {
    publish_every_shape(Major::V17).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_on_postgresql_18_is_published() {
    publish_every_shape(Major::V18).await;
}

async fn publish_every_shape(major: Major) {
    let postgres = Postgres::start(major).await;
    let fixture = Fixture::bare(postgres, &Kafka::shared().await.bootstrap())
        .option("--table", "public.outbox")
        .option("--table", "public.parted")
        .option("--message-prefix", "outbox")
        .over(
            "CREATE TABLE public.other (id int);
             CREATE TABLE public.parted (n serial, id uuid DEFAULT gen_random_uuid(), aggregate_type text,
               aggregate_id text, event_type text, payload jsonb) PARTITION BY RANGE (n);
             CREATE TABLE public.parted_1 PARTITION OF public.parted FOR VALUES FROM (1) TO (10);
             CREATE TABLE public.parted_2 PARTITION OF public.parted FOR VALUES FROM (10) TO (1000)",
        )
        .await;
    fixture.postgres.execute("ALTER TABLE public.outbox ADD COLUMN n bigserial").await;
    let walpost = fixture.run().await;
    write_every_shape(&fixture, 1).await;
    let records = fixture.assert_published(&expected(&fixture, 1).await, SHORT_TIMEOUT).await;
    assert_in_log_order(&records);
    let message = record_of(&records, "message 1");
    assert_eq!(message.value_text(), Some(r#"{"a": 1.50}"#));
    let last = stop(walpost).await;
    assert_eq!(last["delivered"].as_u64(), u64::try_from(records.len()).ok(), "{last}");

    // Rows written while no session reads wait in the slot, and are read in batches.
    write_every_shape(&fixture, 2).await;
    let walpost = catching_up(&fixture).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    write_every_shape(&fixture, 3).await;
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let records = fixture.assert_published(&expected(&fixture, 3).await, SHORT_TIMEOUT).await;
    assert_in_log_order(&records);

    // Other traffic alone moves the slot to the end.
    fixture.postgres.execute("INSERT INTO public.other SELECT generate_series(1, 10000)").await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    stop(walpost).await;
}

/// All committed rows of both tables, and as many messages.
async fn expected(fixture: &Fixture, messages: u32) -> Vec<Row> {
    let mut rows = fixture.committed().await;
    assert_eq!(rows.len(), usize::try_from(135 * messages).expect("few"));
    rows.extend(fixture.rows("SELECT id, aggregate_id FROM public.parted ORDER BY n").await);
    rows.extend((1..=messages).map(|n| Row::new(format!("message {n}"), "told")));
    rows
}

/// Commits 135 rows, 20 more in the other table, and a message.
async fn write_every_shape(fixture: &Fixture, turn: u32) {
    let (one, many) = (insert(1, 1), insert(20, 3));
    let in_the_parted =
        many.replace("public.outbox", "public.parted").replace("(i %", "'p' || (i %");
    let message = format!(
        "SELECT pg_logical_emit_message(true, 'outbox', '{{\"id\": \"message {turn}\",
           \"aggregate_type\": \"order\", \"aggregate_id\": \"told\", \"payload\": {{\"a\": 1.50}}}}')"
    );
    for sql in [
        one.clone(),
        many.clone(),
        copy(fixture, 50, 3),
        format!("BEGIN; {many}; SAVEPOINT s; {many}; ROLLBACK TO s; {one}; COMMIT"),
        format!("BEGIN; {many}; {message}; ROLLBACK"),
        "INSERT INTO public.other SELECT generate_series(1, 1000)".to_owned(),
        format!("BEGIN; {one}; {message}; INSERT INTO public.other VALUES (1); {many}; COMMIT"),
        format!("BEGIN; {in_the_parted}; {one}; COMMIT"),
        format!("{one}; {many}"),
    ] {
        fixture.postgres.execute(&sql).await;
    }
}
