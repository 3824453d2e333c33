//! Large volumes: many rows in one transaction, in one each, and from many concurrent writers.

use walpost_bed::{Kafka, Major, Postgres, Walpost, eventually, oracle};

use walpost_bed::fixture::{
    Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, assert_in_log_order, insert, stop,
};

/// What a release build may have, and room for a debug build's.
const MEMORY_BYTES: u64 = (96 + 32) << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_of_a_million_rows_stays_within_the_memory_budget() {
    let kafka = Kafka::start().await;
    let fixture = Fixture::bare(Postgres::start(Major::V15).await, &kafka.bootstrap());
    fixture.init(&[]).await;
    // Rows come faster without a key, and walpost needs none.
    let columns = "DROP CONSTRAINT outbox_pkey, ADD COLUMN n bigserial";
    fixture.postgres.execute(&format!("ALTER TABLE public.outbox {columns}")).await;
    let walpost = fixture.run().await;
    // One record each for all partitions: the first of one goes alone.
    fixture.postgres.execute(&insert(100, 100)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;

    let client = fixture.postgres.client().await;
    client.batch_execute(&format!("BEGIN; {}", insert(1_000_000, 1000))).await.expect("rows");
    let before = walpost.rss_bytes().expect("it runs");
    kafka.pause();
    client.batch_execute("COMMIT").await.expect("a commit");
    await_standstill(&walpost, before).await;
    let stalled = walpost.peak_rss_bytes().expect("it runs");
    kafka.resume();
    fixture.confirmed(LONG_TIMEOUT).await;
    let peak = walpost.peak_rss_bytes().expect("it runs");
    assert!(peak < MEMORY_BYTES, "{} MiB, {} MiB of it in the stall", peak >> 20, stalled >> 20);

    let (committed, records) = tokio::join!(fixture.committed(), fixture.records());
    oracle::judge(&committed, [], &records).assert_exact();
    assert_eq!(records.len(), 1_000_100);
    assert_in_log_order(&records);
    stop(walpost).await;
}

/// Awaits that walpost has begun to fill its budget and reads no more: its memory has grown and then
/// stays as it is over many looks. On a busy machine brokers seem to be far away, and walpost changes to
/// several producers: then few records wait for the first one of a partition.
async fn await_standstill(walpost: &Walpost, before: u64) {
    let (mut last, mut looks) = (before, 0);
    eventually(LONG_TIMEOUT, "nothing more is read", async || {
        let now = walpost.rss_bytes().expect("it runs");
        looks = if now == last && now > before + (2 << 20) { looks + 1 } else { 0 };
        last = now;
        if looks >= 50 { Ok(()) } else { Err((before, now, looks)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_thousand_single_row_transactions_are_published_as_they_commit() {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    fixture
        .postgres
        .execute(
            "CREATE PROCEDURE write_one_by_one(writer int, count int) LANGUAGE plpgsql AS $$
             BEGIN
               FOR i IN 1..count LOOP
                 INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
                   VALUES ('order', writer || '-' || i % 10, 'placed', jsonb_build_object('i', i));
                 COMMIT;
               END LOOP;
             END $$",
        )
        .await;
    let write = async |writer: u32| {
        fixture.postgres.execute(&format!("CALL write_one_by_one({writer}, 25000)")).await;
    };
    tokio::join!(write(1), write(2), write(3), write(4));
    fixture.assert_exact(LONG_TIMEOUT).await;
    let records = fixture.records().await;
    assert_eq!(records.len(), 100_000);
    assert_in_log_order(&records);
    let last = stop(walpost).await;
    assert!(last["transactions"].as_u64() >= Some(100_000), "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interleaved_transactions_are_published_whole_and_in_commit_order() {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    let write = async |writer: u32| {
        let client = fixture.postgres.client().await;
        for turn in 0..125 {
            client.batch_execute("BEGIN").await.expect("a transaction");
            for row in 0..=turn % 4 {
                let sql = format!(
                    "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) \
                     VALUES ('order', '{writer}-{}', 'placed')",
                    row % 2
                );
                client.batch_execute(&sql).await.expect("a row");
            }
            let end = if turn % 9 == 0 { "ROLLBACK" } else { "COMMIT" };
            client.batch_execute(end).await.expect("an end");
        }
    };
    tokio::join!(write(1), write(2), write(3), write(4), write(5), write(6), write(7), write(8));
    // Else the test would prove nothing.
    let query = "SELECT count(*) FROM (SELECT FROM public.outbox GROUP BY xmin::text
                   HAVING max(n) - min(n) >= count(*)) AS mingled";
    let mingled = fixture.postgres.query_text(query).await.expect("a number");
    assert!(mingled.parse::<u32>().expect("a number") > 100, "{mingled} transactions mingled");
    fixture.assert_exact(SHORT_TIMEOUT).await;
    assert_in_log_order(&fixture.records().await);
    stop(walpost).await;
}
