//! Periods without a partition, and the default partition.

use walpost_bed::eventually;
use walpost_bed::fixture::{SHORT_TIMEOUT, insert, stop};

use super::Parts;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_without_a_partition_are_delivered_reported_and_deleted() {
    let parts = Parts::with_periods(2, 1, "at-least-once").await;
    let walpost = parts.kept.run().await;
    // Nobody has made a partition for this time, and no writer fails.
    eventually(SHORT_TIMEOUT, "the only period is over", async || {
        parts.insert(1).await == "outbox_default"
    })
    .await;
    parts.insert(30).await;
    // A writer whose clock is ahead.
    let ahead = insert(7, 5).replace("payload)", "payload, created_at)");
    let ahead = ahead.replace("('i', i)", "('i', i), now() + interval '20 s'");
    parts.postgres().execute(&ahead).await;
    parts.kept.delivered().await;
    let (code, said) = parts.prune(&["--partitions-ahead", "40s"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("public.outbox_default: the default partition has 3"), "{said}");
    assert!(
        said.contains("partition not made: the default partition has rows of its period"),
        "{said}"
    );
    assert_eq!(said.matches("partition not made").count(), 1, "{said}");
    assert!(said.matches("partition made").count() >= 18, "{said}");
    assert!(said.contains("public.outbox_default: 3") && said.contains("rows deleted"), "{said}");
    assert_eq!(parts.kept.left().await, 7, "those of the time to come are kept");
    parts.kept.deleted_ones_are_published().await;
    eventually(SHORT_TIMEOUT, "a row comes into a partition that was made", async || {
        parts.insert(1).await.contains("outbox_p20")
    })
    .await;
    // Their time is over at last.
    let over = "SELECT now() > max(created_at) FROM public.outbox_default";
    eventually(SHORT_TIMEOUT, "the time of the rows is over", async || {
        parts.postgres().query_text(over).await.as_deref() == Some("t")
    })
    .await;
    let (code, said) = parts.prune(&["--partitions-ahead", "0s"]).await;
    assert!(code == Some(0) && !said.contains("partition made"), "{code:?} {said}");
    assert!(said.contains("rows deleted"), "{said}");
    let left =
        "SELECT count(*) FROM public.outbox_default WHERE created_at < now() - interval '15 s'";
    assert_eq!(parts.postgres().query_text(left).await.as_deref(), Some("0"));
    parts.is_exact().await;
    stop(walpost).await;
}

/// The bounds of the partitions that are made for a table with these columns, by the last of them, and
/// with these ranges.
async fn made(columns: &str, ranges: &[&str], ahead: &str) -> (Parts, Vec<String>) {
    let key = columns.rsplit(", ").next().and_then(|column| column.split(' ').next());
    let key = key.expect("a column");
    let mut table = format!(
        "CREATE TABLE public.outbox (
             id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
             aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, headers jsonb,
             n bigserial, {columns}
         ) PARTITION BY RANGE ({key});
         ALTER DATABASE postgres SET timezone = 'America/St_Johns'; SET timezone = 'UTC'"
    );
    for (number, range) in ranges.iter().enumerate() {
        let part = format!(
            "; DO $$ BEGIN EXECUTE format('CREATE TABLE public.part_{number} PARTITION OF public.outbox
                FOR VALUES FROM (%L) TO (%L)', {range}); END $$"
        );
        table.push_str(&part);
    }
    let parts = Parts::over(&table, "at-least-once").await;
    let walpost = parts.kept.run().await;
    parts.insert(1).await;
    parts.kept.delivered().await;
    let pruned =
        ["--time-column", "created_at", "--older-than", "300d", "--partitions-ahead", ahead];
    let (code, said) = parts.kept.prune(&pruned).await;
    assert_eq!(code, Some(0), "{said}");
    let client = parts.postgres().client().await;
    client.batch_execute("SET timezone = 'UTC'").await.expect("set");
    let query = "SELECT pg_get_expr(relpartbound, oid) FROM pg_class
                  WHERE relispartition AND relname LIKE 'outbox\\_p%' ORDER BY relname";
    let rows = client.query(query, &[]).await.expect("partitions");
    // Another time, it makes no more.
    let (_, said) = parts.kept.prune(&pruned).await;
    assert!(!said.contains("partition made"), "{said}");
    stop(walpost).await;
    (parts, rows.iter().map(|row| row.get(0)).collect())
}

/// What PostgreSQL calculates.
async fn expected(parts: &Parts, sql: &str) -> Vec<String> {
    let client = parts.postgres().client().await;
    client.batch_execute("SET timezone = 'UTC'").await.expect("set");
    let rows = client.query(sql, &[]).await.expect("ranges");
    rows.iter()
        .map(|row| {
            let (from, to): (String, String) = (row.get(0), row.get(1));
            format!("FOR VALUES FROM ('{from}') TO ('{to}')")
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn months_follow_months_whatever_their_length() {
    let months = [
        "date_trunc('month', now()) - interval '1 month', date_trunc('month', now()) + interval '1 month'",
        "date_trunc('month', now()) + interval '1 month', date_trunc('month', now()) + interval '2 months'",
    ];
    let (parts, bounds) = made("created_at timestamptz DEFAULT now()", &months, "200d").await;
    let sql = "SELECT m::text, (m + interval '1 month')::text
                 FROM generate_series(date_trunc('month', now()) + interval '2 months',
                                      now() + interval '200 days', '1 month') m";
    assert_eq!(bounds, expected(&parts, sql).await);
    assert!(bounds.len() >= 4, "{bounds:?}");
}

/// Times without a zone may be local ones, so partitions for up to 15 hours more are made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_without_a_zone_have_partitions_for_every_zone() {
    let first = [
        "date_trunc('hour', now()::timestamp) - interval '20 h', date_trunc('hour', now()::timestamp) - interval '14 h'",
        "date_trunc('hour', now()::timestamp) - interval '14 h', date_trunc('hour', now()::timestamp) - interval '8 h'",
    ];
    let (parts, bounds) = made(
        "created_at timestamp DEFAULT (now() AT TIME ZONE 'UTC') - interval '10 h'",
        &first,
        "1min",
    )
    .await;
    let sql = "SELECT m::text, (m + interval '6 h')::text
                 FROM generate_series(date_trunc('hour', now()::timestamp) - interval '8 h',
                                      now()::timestamp + interval '15 h', '6 h') m";
    assert_eq!(bounds, expected(&parts, sql).await);
}

/// A period that has begun is made too, since its writers fail without a default partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_default_partition_the_current_period_is_made() {
    let days = ["current_date - 40, current_date - 39", "current_date, current_date + 1"];
    let (parts, bounds) =
        made("created_at timestamptz DEFAULT now(), day date DEFAULT current_date", &days, "2d")
            .await;
    let sql = "SELECT m::date::text, (m::date + 1)::text
                 FROM generate_series(current_date + 1, (now() + interval '2 days 15 h')::date, interval '1 day') m";
    assert_eq!(bounds, expected(&parts, sql).await);
    let stale =
        ["now() - interval '3 h', now() - interval '2 h'", "'-infinity', now() - interval '5 h'"];
    let table = "created_at timestamptz DEFAULT now() - interval '150 min'";
    let (_, bounds) = made(table, &stale, "30min").await;
    assert!((1..=2).contains(&bounds.len()), "{bounds:?}");
}
