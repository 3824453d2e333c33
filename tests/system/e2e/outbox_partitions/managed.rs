//! A table whose partitions `pg_partman` makes and drops.

use walpost_bed::fixture::stop;

use super::{Parts, with_periods};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn partitions_of_pg_partman_are_only_named() {
    let table = format!(
        "{}; CREATE SCHEMA \"Part\"; CREATE EXTENSION pg_partman SCHEMA \"Part\"",
        with_periods(3, 40)
    );
    let mut parts = Parts::over(&table, "at-least-once").await;
    let postgres = parts.postgres();
    postgres
        .execute("CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        .await;
    let walpost = parts.kept.run().await;
    let first = parts.insert(20).await;
    parts.kept.delivered().await;
    parts.is_over(&first).await;
    let owner = parts.postgres().url_for("reader");
    let owner = std::mem::replace(&mut parts.kept.fixture.source, owner);
    let (code, said) = parts.prune(&["--dry-run"]).await;
    let needed =
        "GRANT USAGE ON SCHEMA \"Part\" TO it, and GRANT SELECT ON \"Part\".part_config TO it";
    assert!(code == Some(78) && said.contains(needed), "{code:?} {said}");
    let grant =
        "GRANT USAGE ON SCHEMA \"Part\" TO reader; GRANT SELECT ON \"Part\".part_config TO reader";
    parts.postgres().execute(grant).await;
    // The extension is there, and this table is not its own.
    let (code, said) = parts.prune(&["--dry-run"]).await;
    assert!(code == Some(78) && said.contains("made and dropped by its owner"), "{code:?} {said}");
    parts.kept.fixture.source = owner;
    let (code, said) = parts.prune(&["--dry-run"]).await;
    assert!(code == Some(0) && said.contains("would be dropped"), "{code:?} {said}");
    let managed = "INSERT INTO \"Part\".part_config
                       (parent_table, control, partition_type, partition_interval)
                   VALUES ('public.outbox', 'created_at', 'native', '3 seconds')";
    parts.postgres().execute(managed).await;
    walpost.pause();
    let second = parts.insert(10).await;
    parts.is_over(&second).await;
    let before = parts.count().await;
    let (code, said) = parts.prune(&[]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.lines().any(|line| line == format!("safe to drop: public.{first}")), "{said}");
    let unsafe_one = format!("public.{second}: not safe to drop: 10 rows are not proved");
    assert!(said.contains(&unsafe_one) && !said.contains("partition made"), "{said}");
    assert_eq!((parts.count().await, parts.kept.left().await), (before, 30));
    walpost.resume();
    parts.kept.delivered().await;
    stop(walpost).await;
}

/// As `pg_partman` itself sets it up, makes partitions, and drops what walpost names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn walpost_streams_and_judges_what_pg_partman_makes() {
    let table = "CREATE TABLE public.outbox (
            id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
            aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, headers jsonb,
            created_at timestamptz NOT NULL DEFAULT now(), n bigserial, PRIMARY KEY (id, created_at)
        ) PARTITION BY RANGE (created_at);
        CREATE SCHEMA partman; CREATE EXTENSION pg_partman SCHEMA partman;
        SELECT partman.create_parent('public.outbox', 'created_at', 'native', 'daily',
                                     p_start_partition => (now() - interval '2 days')::text)";
    let parts = Parts::over(table, "at-least-once").await;
    let walpost = parts.kept.run().await;
    parts.insert(50).await;
    parts.kept.delivered().await;
    parts.postgres().execute("CALL partman.run_maintenance_proc()").await;
    parts.insert(50).await;
    parts.kept.delivered().await;
    let (code, said) = parts.prune(&["--partitions-ahead", "90d"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("partition made"), "{said}");
    let safe: Vec<_> =
        said.lines().filter_map(|line| line.strip_prefix("safe to drop: ")).collect();
    assert!(safe.len() >= 2, "the days before have no rows: {said}");
    for partition in safe {
        parts.postgres().execute(&format!("DROP TABLE {partition}")).await;
    }
    assert_eq!(parts.kept.left().await, 100);
    parts.is_exact().await;
    stop(walpost).await;
}
