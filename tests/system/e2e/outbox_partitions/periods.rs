//! Periods without a partition, and the default partition.

use std::time::SystemTime;

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
    assert!(said.matches("partition made").count() >= 16, "{said}");
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

/// A time zone half an hour off.
const ZONE: &str = "America/St_Johns";

/// The bounds of the partitions that are made for a table with these columns, by the last of them, and
/// with these ranges, in a time zone.
async fn made_in(zone: &str, columns: &str, ranges: &[&str], ahead: &str) -> (Parts, Vec<String>) {
    let key = columns.rsplit(", ").next().and_then(|column| column.split(' ').next());
    let key = key.expect("a column");
    let mut table = format!(
        "CREATE TABLE public.outbox (
             id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
             aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, headers jsonb,
             n bigserial, {columns}
         ) PARTITION BY RANGE ({key});
         ALTER DATABASE postgres SET timezone = '{zone}'; SET timezone = 'UTC'"
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

/// The bounds of the partitions that are made, which are those that PostgreSQL calculates by `sql`.
async fn assert_made(columns: &str, ranges: &[&str], ahead: &str, sql: &str) -> Vec<String> {
    assert_made_in(ZONE, columns, ranges, ahead, sql).await
}

/// The same in a time zone.
async fn assert_made_in(
    zone: &str,
    columns: &str,
    ranges: &[&str],
    ahead: &str,
    sql: &str,
) -> Vec<String> {
    loop {
        let hour = hour();
        let (parts, bounds) = made_in(zone, columns, ranges, ahead).await;
        let expected = expected(&parts, sql).await;
        // Otherwise a period began between the times at which they look at the clock.
        if hour == self::hour() {
            assert_eq!(bounds, expected);
            return bounds;
        }
    }
}

/// The hour of the clock, since 1970.
fn hour() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("a time after 1970").as_secs() / 3600
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
    let sql = "SELECT m::text, (m + interval '1 month')::text
                 FROM generate_series(date_trunc('month', now()) + interval '2 months',
                                      now() + interval '200 days', '1 month') m";
    let bounds = assert_made("created_at timestamptz DEFAULT now()", &months, "200d", sql).await;
    assert!(bounds.len() >= 4, "{bounds:?}");
}

/// Times without a zone may be local ones, so partitions for up to 15 hours more are made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_without_a_zone_have_partitions_for_every_zone() {
    let first = [
        "date_trunc('hour', now()::timestamp) - interval '20 h', date_trunc('hour', now()::timestamp) - interval '14 h'",
        "date_trunc('hour', now()::timestamp) - interval '14 h', date_trunc('hour', now()::timestamp) - interval '8 h'",
    ];
    let sql = "SELECT m::text, (m + interval '6 h')::text
                 FROM generate_series(date_trunc('hour', now()::timestamp) - interval '8 h',
                                      now()::timestamp + interval '15 h', '6 h') m";
    let column = "created_at timestamp DEFAULT (now() AT TIME ZONE 'UTC') - interval '10 h'";
    assert_made(column, &first, "1min", sql).await;
}

/// A period that has begun is made too, since its writers fail without a default partition; also that of
/// yesterday, if it may be yesterday for a writer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_default_partition_the_current_period_is_made() {
    let days = ["current_date - 40, current_date - 39", "current_date, current_date + 1"];
    let sql = "SELECT m::date::text, (m::date + 1)::text
                 FROM generate_series((now() - interval '15 h')::date, (now() + interval '2 days 15 h')::date,
                                      interval '1 day') m
                WHERE m <> current_date";
    let columns =
        "created_at timestamptz DEFAULT now(), day date DEFAULT (now() AT TIME ZONE 'UTC')::date";
    assert_made(columns, &days, "2d", sql).await;
    let stale =
        ["now() - interval '3 h', now() - interval '2 h'", "'-infinity', now() - interval '5 h'"];
    let table = "created_at timestamptz DEFAULT now() - interval '150 min'";
    let (_, bounds) = made_in(ZONE, table, &stale, "30min").await;
    assert!((1..=2).contains(&bounds.len()), "{bounds:?}");
}

/// Days of a zone where the clocks change remain days; so do those of a zone that is not known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_follow_days_when_the_clocks_change() {
    let midnight = "date_trunc('day', now() AT TIME ZONE 'Europe/Berlin')";
    let day = |from: i32| {
        let at = |days: i32| {
            format!("({midnight} + interval '{days} days') AT TIME ZONE 'Europe/Berlin'")
        };
        format!("{}, {}", at(from), at(from + 1))
    };
    let days = [day(-1), day(0)];
    let days = [days[0].as_str(), days[1].as_str()];
    let column = "created_at timestamptz DEFAULT now()";
    let sql = format!(
        "SELECT (m AT TIME ZONE 'Europe/Berlin')::text,
                ((m + interval '1 day') AT TIME ZONE 'Europe/Berlin')::text
           FROM generate_series({midnight} + interval '1 day',
                                now() AT TIME ZONE 'Europe/Berlin' + interval '200 days', '1 day') m"
    );
    let bounds = assert_made_in("Europe/Berlin", column, &days, "200d", &sql).await;
    assert!(
        bounds.iter().any(|bound| bound.contains("22:00:00"))
            && bounds.iter().any(|bound| bound.contains("23:00:00")),
        "{bounds:?}"
    );
    // One such day is all there is, of a zone that is not known.
    let long =
        ["date_trunc('day', now()) - interval '1 h', date_trunc('day', now()) + interval '1 day'"];
    let sql = "SELECT m::text, (m + interval '1 day')::text
                 FROM generate_series(date_trunc('day', now()) + interval '1 day',
                                      now() + interval '3 days', '1 day') m";
    assert_made(column, &long, "3d", sql).await;
}

/// Neither its length nor its place says anything about the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_were_made_by_hand_for_later_change_no_others() {
    let ranges = [
        "date_trunc('day', now()) - interval '1 day', date_trunc('day', now())",
        "date_trunc('day', now()), date_trunc('day', now()) + interval '1 day'",
        "date_trunc('day', now()) + interval '54 h', date_trunc('day', now()) + interval '3 days'",
        "date_trunc('day', now()) + interval '10 years', date_trunc('day', now()) + interval '20 years'",
    ];
    let sql = "SELECT m::text, CASE WHEN m = date_trunc('day', now()) + interval '2 days' THEN m + interval '6 h'
                                    ELSE m + interval '1 day' END::text
                 FROM generate_series(date_trunc('day', now()) + interval '1 day',
                                      now() + interval '5 days', '1 day') m";
    let bounds = assert_made("created_at timestamptz DEFAULT now()", &ranges, "5d", sql).await;
    assert!(bounds.len() >= 4, "{bounds:?}");
}

/// PostgreSQL would read it for each partition that is attached, while writers wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_default_partition_is_read_once_for_all_partitions() {
    let parts = Parts::with_periods(600, 1, "at-least-once").await;
    let postgres = parts.postgres();
    postgres.execute("ALTER DATABASE postgres SET max_parallel_workers_per_gather = 0").await;
    let walpost = parts.kept.run().await;
    let rows = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
                SELECT 'order', i % 5, 'placed', to_jsonb(
                           (SELECT string_agg(md5(i::text || j::text), '') FROM generate_series(1, 50) j)),
                       now() - interval '1 h'
                  FROM generate_series(1, 12000) i";
    postgres.execute(rows).await;
    parts.kept.delivered().await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walpost'";
    let running = postgres.query_text(sessions).await;
    let constraint = "SELECT count(*) FROM pg_constraint WHERE conname = 'prune_partitions_ahead'";
    // Killed while rows of the time to come are refused.
    let ahead = ["--partitions-ahead", "5h"];
    let prune = parts.kept.pruning();
    let prune = prune.args(["--older-than", "0s"]).args(ahead);
    let prune = prune.env("FAILPOINTS", "default_excluded=return").start();
    let status = prune.wait(SHORT_TIMEOUT).await.expect("it dies");
    assert_eq!(status.code(), None, "{:?}", prune.stderr());
    assert_eq!(postgres.query_text(constraint).await.as_deref(), Some("1"));
    let client = postgres.client().await;
    let later = insert(1, 1).replace("payload)", "payload, created_at)");
    let later = later.replace("('i', i)", "('i', i), now() + interval '150 min'");
    client.batch_execute(&later).await.expect_err("the constraint refuses it");
    // Soon is early enough for another run.
    let soon = later.replace("150 min", "119 min");
    client.batch_execute(&format!("BEGIN; {soon}; ROLLBACK")).await.expect("it is not refused");
    let other = postgres.client().await;
    let lock = "BEGIN; LOCK TABLE public.outbox_default IN ROW EXCLUSIVE MODE";
    other.batch_execute(lock).await.expect("locked");
    let (code, said) = parts.prune(&ahead).await;
    assert!(code == Some(1) && said.contains("DROP CONSTRAINT"), "{code:?} {said}");
    other.batch_execute("ROLLBACK").await.expect("unlocked");
    let (code, said) = parts.prune(&[&ahead[..], &["--dry-run"]].concat()).await;
    assert!(code == Some(0) && said.contains("rows of the periods to come are refused"), "{said}");
    // Whatever ends the next run.
    let (code, said) = parts.prune(&["--ignore-slot", "unknown"]).await;
    assert_eq!(code, Some(78), "{said}");
    assert_eq!(postgres.query_text(constraint).await.as_deref(), Some("0"), "{said}");
    parts.insert(1).await;
    let scans = "SELECT seq_scan::int4 FROM pg_stat_all_tables WHERE relname = 'outbox_default'";
    // Those of a session are counted when it ends.
    let scans = async || {
        eventually(SHORT_TIMEOUT, "the sessions of prune have ended", async || {
            postgres.query_text(sessions).await == running
        })
        .await;
        let scans = postgres.query_text(scans).await.expect("a number");
        scans.parse::<usize>().expect("a number")
    };
    let before = scans().await;
    let (code, said) = parts.prune(&ahead).await;
    assert_eq!(code, Some(1), "{said}");
    let made = said.matches("partition made").count();
    let soon = said.matches("partition not made: it begins within two hours").count();
    assert!(made >= 17 && (10..=12).contains(&soon), "{said}");
    assert_eq!(postgres.query_text(constraint).await.as_deref(), Some("0"));
    // To find rows of the periods, to validate the constraint, to count the rows, and for the oldest.
    let found = scans().await - before;
    assert!((4..8).contains(&found), "it was read {found} times for {made} partitions");
    client.batch_execute(&later).await.expect("it has a partition");
    let place = "SELECT tableoid::regclass FROM public.outbox ORDER BY n DESC LIMIT 1";
    let place = postgres.query_text(place).await.expect("a row");
    assert!(place.contains("outbox_p20"), "{place}");
    // Another run makes the next one only.
    let (code, said) = parts.prune(&ahead).await;
    assert!(code == Some(1) && said.matches("partition made").count() <= 2, "{code:?} {said}");
    parts.is_exact().await;
    stop(walpost).await;
}
