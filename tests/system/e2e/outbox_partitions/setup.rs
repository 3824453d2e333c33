//! `walpost init --partition-by`, and the other commands on such a table.

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, stop};
use walpost_bed::{Kafka, Major, Postgres};

use crate::catch_up::{IN_BATCHES, STREAMING, catching_up, one_by_one};
use crate::prune::Kept;

async fn by(period: &str, major: Major) -> Fixture {
    let postgres = Postgres::start(major).await;
    let bootstrap = Kafka::shared().await.bootstrap();
    Fixture::over_server(postgres, &bootstrap, &["--partition-by", period]).await
}

/// Rows of now, of the day after tomorrow, and of times without a partition.
async fn rows_of_any_time_are_published(period: &str, major: Major) {
    let fixture = by(period, major).await;
    let count = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'public.outbox'::regclass";
    let made = fixture.postgres.query_text(count).await;
    // A second time, it changes nothing.
    fixture.init(&["--partition-by", period]).await;
    assert_eq!(fixture.postgres.query_text(count).await, made);
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(20, 5)).await;
    for ago in ["-2 days", "1 year", "-1 year"] {
        let other = insert(5, 5).replace("payload)", "payload, created_at)");
        let other = other.replace("('i', i)", &format!("('i', i), now() - interval '{ago}'"));
        fixture.postgres.execute(&other).await;
    }
    fixture.assert_exact(LONG_TIMEOUT).await;
    let parts = "SELECT string_agg(DISTINCT tableoid::regclass::text, ' ' ORDER BY tableoid::regclass::text)
                   FROM public.outbox WHERE created_at BETWEEN now() - interval '1 min' AND now() + interval '3 d'";
    let format = if period == "hour" { "YYYYMMDD_HH24\"0000\"" } else { "YYYYMMDD" };
    let expected = format!(
        "SELECT string_agg(DISTINCT 'outbox_p' || to_char(date_trunc('{period}', created_at AT TIME ZONE 'UTC'), '{format}'), ' ')
           FROM public.outbox WHERE created_at BETWEEN now() - interval '1 min' AND now() + interval '3 d'"
    );
    assert_eq!(
        fixture.postgres.query_text(parts).await,
        fixture.postgres.query_text(&expected).await
    );
    let default = "SELECT count(*) FROM public.outbox_default";
    assert_eq!(fixture.postgres.query_text(default).await.as_deref(), Some("10"));
    let check = fixture.command("check").start();
    let (code, said) = ended(&check).await;
    assert_eq!(code, Some(0), "{said} {:?}", check.stdout());
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_any_time_are_published_by_hour() {
    rows_of_any_time_are_published("hour", Major::V15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_any_time_are_published_by_day_and_oldest_postgresql() {
    rows_of_any_time_are_published("day", Major::V14).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_any_time_are_published_by_month_and_newest_postgresql() {
    rows_of_any_time_are_published("month", Major::V18).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_existing_table_is_not_partitioned() {
    let fixture = Fixture::new().await;
    let init = fixture.command("init").args(["--apply", "--partition-by", "day"]).start();
    let (code, said) = ended(&init).await;
    assert!(
        code == Some(1) && said.contains("public.outbox exists, and is not partitioned"),
        "{said}"
    );
    let printed = fixture.command("init").args(["--partition-by", "week"]).start();
    let (code, said) = ended(&printed).await;
    assert!(
        code == Some(2) && said.contains("`week` is not hour, day or month"),
        "{code:?} {said}"
    );
}

/// Names of 63 bytes, capitals, other columns, and a session in another time zone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_time_zones_do_not_matter() {
    let long = "Ö".repeat(31);
    let table = format!("\"Sales\".\"{long}\"");
    let postgres = Postgres::start(Major::V15).await;
    let zone = "CREATE SCHEMA \"Sales\";
                ALTER DATABASE postgres SET timezone = 'Asia/Tokyo';
                ALTER DATABASE postgres SET datestyle = 'German'";
    postgres.execute(zone).await;
    let bootstrap = Kafka::shared().await.bootstrap();
    let fixture = Fixture::bare(postgres, &bootstrap).option("--table", &table);
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, "[outbox.columns]\nid = 'Event Id'\ntimestamp = 'At'\n")
        .expect("written");
    let fixture = fixture.option("--config", file.to_str().expect("UTF-8"));
    let init = ["--apply", "--partition-by", "hour", "--publish-function"];
    let (code, said) = ended(&fixture.command("init").args(init).start()).await;
    assert_eq!(code, Some(0), "{said}");
    let bounds = "SET timezone = 'UTC'; SET datestyle = 'ISO'";
    let client = fixture.postgres.client().await;
    client.batch_execute(bounds).await.expect("set");
    let names = "SELECT count(*) FILTER (WHERE relname LIKE '%\\_p' || to_char(
                            substring(pg_get_expr(relpartbound, oid) from 'FROM [(]''([^'']*)')::timestamptz,
                            'YYYYMMDD_HH24\"0000\"')),
                        count(*), max(octet_length(relname)) FROM pg_class WHERE relispartition AND relkind = 'r'";
    let row = client.query_one(names, &[]).await.expect("names");
    let (matching, all, longest): (i64, i64, i32) = (row.get(0), row.get(1), row.get(2));
    assert!(
        matching == all - 1 && all > 70 && longest <= 63,
        "{matching} of {all}, {longest} bytes"
    );
    let publish = "SELECT outbox.publish('order', '1', 'placed', '{}')";
    fixture.postgres.execute(publish).await;
    let (code, said) = fixture.run_to_its_end(&["--until", "current"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(fixture.records().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catch_up_reads_a_partitioned_outbox() {
    let fixture = by("day", Major::V15).await;
    one_by_one(&fixture, 3_000).await;
    fixture.postgres.execute(&insert(20_000, 100)).await;
    let walpost = catching_up(&fixture).start();
    walpost.await_line(IN_BATCHES, SHORT_TIMEOUT).await;
    walpost.await_line(STREAMING, LONG_TIMEOUT).await;
    one_by_one(&fixture, 100).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_partitions_are_recovered_and_replayed() {
    let postgres = Postgres::builder(Major::V15).own_identity().start().await;
    let bootstrap = Kafka::shared().await.bootstrap();
    let fixture = Fixture::over_server(postgres, &bootstrap, &["--partition-by", "day"]).await;
    let kept = Kept::over(fixture, "exactly-once").await;
    let postgres = &kept.fixture.postgres;
    let walpost = kept.run().await;
    postgres.execute(&insert(40, 5)).await;
    kept.delivered().await;
    stop(walpost).await;
    postgres.execute(&insert(20, 5)).await;
    postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    postgres.execute(&insert(5, 5)).await;
    let fixture = &kept.fixture;
    fixture.init(&["--partition-by", "day"]).await;
    let recover = fixture.command("recover").args(kept.arguments());
    let recover = recover.args(["--order-by", "n", "--apply"]).start();
    let (code, said) = ended(&recover).await;
    assert_eq!(code, Some(0), "{said}");
    let until = [&kept.arguments()[..], &["--until", "current"]].concat();
    let (code, said) = fixture.run_to_its_end(&until).await;
    assert_eq!(code, Some(0), "{said}");
    fixture.judge().await.assert_exact();
    let before = fixture.records().await.len();
    let id = postgres.query_text("SELECT id FROM public.outbox ORDER BY n LIMIT 1").await;
    let id = id.expect("an id");
    let replay = fixture.command("replay").args(["--id", &id, "--apply"]).start();
    let (code, said) = ended(&replay).await;
    assert_eq!(code, Some(0), "{said} {:?}", replay.stdout());
    assert!(!said.contains("no index"), "the key begins with the id: {said}");
    let (code, said) = fixture.run_to_its_end(&until).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(fixture.records().await.len(), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_rows_of_partitions_are_published() {
    let postgres = Postgres::builder(Major::V15).own_identity().start().await;
    let bootstrap = Kafka::shared().await.bootstrap();
    let fixture = Fixture::over_server(postgres, &bootstrap, &["--partition-by", "day"]).await;
    fixture.postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    fixture.postgres.execute(&insert(500, 5)).await;
    let topic = crate::state_topic::topic(&fixture).await;
    let init = fixture.command("init").args(["--state-topic", &topic, "--partition-by", "day"]);
    let init = init.args(["--apply", "--existing-rows", "--order-by", "n"]).start();
    let (code, said) = ended(&init).await;
    assert_eq!(code, Some(0), "{said}");
    fixture.judge().await.assert_exact();
}

/// As docs/retention.md says, with writers at work; nothing is lost, and the order of keys is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_existing_outbox_is_replaced_by_a_partitioned_one() {
    let fixture = Fixture::new().await;
    let postgres = &fixture.postgres;
    let walpost = fixture.run().await;
    postgres.execute(&insert(30, 5)).await;
    let printed = ["--partition-by", "day", "--no-role", "--table", "public.events"];
    let init = fixture.command("init").args(printed).start();
    assert_eq!(ended(&init).await.0, Some(0));
    let sql = init.stdout().join("\n");
    postgres.execute(&sql).await;
    postgres.execute("ALTER PUBLICATION walpost ADD TABLE public.events").await;
    postgres.execute(&insert(30, 5)).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    let both = ["--table", "public.outbox", "--table", "public.events"];
    let walpost = fixture.run_with(&both).await;
    postgres
        .execute("ALTER TABLE public.events ADD n bigint DEFAULT nextval('public.outbox_n_seq')")
        .await;
    postgres.execute(&insert(30, 5).replace("public.outbox", "public.events")).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let all =
        "SELECT id, aggregate_id FROM (SELECT id, aggregate_id, n FROM public.outbox UNION ALL
                      SELECT id, aggregate_id, n FROM public.events) o ORDER BY n";
    let rows = fixture.rows(all).await;
    assert_eq!(rows.len(), 90);
    fixture.assert_published(&rows, LONG_TIMEOUT).await;
    stop(walpost).await;
}

/// Which is why nothing moves rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_moves_to_another_partition_is_published_again() {
    let fixture = by("day", Major::V15).await;
    fixture.postgres.execute(&insert(1, 1)).await;
    let moved = "UPDATE public.outbox SET created_at = created_at + interval '1 day'";
    fixture.postgres.execute(moved).await;
    let (code, said) = fixture.run_to_its_end(&["--until", "current"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(fixture.records().await.len(), 2);
}
