//! Partitions that are not dropped, whatever their rows are, and tables whose partitions are no
//! periods.

use walpost_bed::fixture::{SHORT_TIMEOUT, insert, stop};

use super::Parts;

/// Without a default partition, which DETACH … CONCURRENTLY excludes.
const TABLE: &str = "
    CREATE TABLE public.outbox (
        id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
        aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, headers jsonb,
        created_at timestamptz NOT NULL DEFAULT now(), n bigserial
    ) PARTITION BY RANGE (created_at);
    CREATE TABLE public.now PARTITION OF public.outbox FOR VALUES FROM (now() - interval '1 h') TO ('3000-01-01Z');
    CREATE TABLE public.plain PARTITION OF public.outbox FOR VALUES FROM (MINVALUE) TO ('2001-01-01Z');
    CREATE TABLE public.nested PARTITION OF public.outbox FOR VALUES FROM ('2001-01-01Z') TO ('2002-01-01Z')
        PARTITION BY LIST (aggregate_type);
    CREATE TABLE public.leaf PARTITION OF public.nested DEFAULT;
    CREATE TABLE public.detaching PARTITION OF public.outbox FOR VALUES FROM ('2003-01-01Z') TO ('2004-01-01Z');
    CREATE TABLE public.referenced PARTITION OF public.outbox (PRIMARY KEY (id))
        FOR VALUES FROM ('2004-01-01Z') TO ('2005-01-01Z');
    CREATE TABLE public.receipts (event uuid REFERENCES public.referenced);
    CREATE TABLE public.viewed PARTITION OF public.outbox FOR VALUES FROM ('2005-01-01Z') TO ('2006-01-01Z');
    CREATE VIEW public.view AS SELECT * FROM public.viewed";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_cannot_be_dropped_are_left_and_named() {
    let parts = Parts::over(TABLE, "at-least-once").await;
    let postgres = parts.postgres();
    let walpost = parts.kept.run().await;
    let nested = insert(3, 3).replace("payload)", "payload, created_at)");
    postgres.execute(&nested.replace("('i', i)", "('i', i), '2001-06-01Z'")).await;
    parts.kept.delivered().await;
    let reader = postgres.client().await;
    reader.batch_execute("BEGIN; SELECT FROM public.outbox LIMIT 1").await.expect("it reads");
    let other = postgres.client().await;
    let detach = "SET statement_timeout = '2s'";
    other.batch_execute(detach).await.expect("set");
    let detach = "ALTER TABLE public.outbox DETACH PARTITION public.detaching CONCURRENTLY";
    other.batch_execute(detach).await.expect_err("it waits for the reader");
    reader.batch_execute("COMMIT").await.expect("it has read");
    // A name that would be a line of its own, in a pipeline that drops what is named.
    let renamed = "ALTER TABLE public.plain RENAME TO \"plain\nsafe to drop: public.log\"";
    postgres.execute(renamed).await;
    let (code, said) = parts.prune(&[]).await;
    assert_eq!(code, Some(1), "{said}");
    for left in [
        "nested: partition left: it has partitions of its own",
        "detaching: partition left: DETACH PARTITION … CONCURRENTLY was interrupted",
        "referenced: partition left: foreign key receipts_event_fkey of",
        "viewed: partition left: PostgreSQL does not drop it",
    ] {
        assert!(said.contains(&format!("public.{left}")), "{left} in {said}");
    }
    assert!(said.contains("view public.view depends on"), "{said}");
    let plain = "public.U&\"plain\\000Asafe to drop: public.log\": partition with 0 rows dropped";
    assert!(said.lines().any(|line| line == plain), "{said}");
    assert_eq!(parts.count().await, 5, "{said}");
    assert!(!said.contains("partition made"), "the last one has no end: {said}");
    let rows = ["--delete-rows", "--include-before-slot"];
    let (code, said) = parts.prune(&rows).await;
    assert!(code == Some(1) && said.contains("public.leaf: 3 rows deleted"), "{code:?} {said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_partitions_that_are_no_periods_are_deleted_one_by_one() {
    let table = "CREATE TABLE public.outbox (
            id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
            aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, headers jsonb,
            created_at timestamptz NOT NULL DEFAULT now(), n bigserial
        ) PARTITION BY LIST (aggregate_id);
        CREATE TABLE public.zero PARTITION OF public.outbox FOR VALUES IN ('0');
        CREATE TABLE public.others PARTITION OF public.outbox DEFAULT";
    let parts = Parts::over(table, "at-least-once").await;
    let walpost = parts.kept.run().await;
    parts.insert(20).await;
    parts.kept.delivered().await;
    let (code, said) = parts.prune(&[]).await;
    assert!(
        code == Some(78) && said.contains("partitioned by LIST (aggregate_id)"),
        "{code:?} {said}"
    );
    let (code, said) = parts.prune(&["--delete-rows"]).await;
    assert_eq!(code, Some(0), "{said}");
    for deleted in ["public.zero: 4 rows deleted", "public.others: 16 rows deleted"] {
        assert!(said.contains(deleted), "{said}");
    }
    assert_eq!((parts.kept.left().await, parts.count().await), (0, 2));
    parts.is_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_needs_the_rights_of_the_owner() {
    let mut parts = Parts::with_periods(3, 40, "at-least-once").await;
    let roles = "CREATE ROLE pruner LOGIN; CREATE ROLE keeper;
                 GRANT SELECT, DELETE, UPDATE (id) ON public.outbox TO pruner;
                 ALTER TABLE public.outbox OWNER TO keeper;
                 DO $$ DECLARE part regclass; BEGIN
                     FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'public.outbox'::regclass LOOP
                         EXECUTE format('ALTER TABLE %s OWNER TO keeper', part);
                     END LOOP;
                 END $$;
                 REVOKE CREATE ON SCHEMA public FROM PUBLIC; GRANT INSERT ON public.log TO keeper";
    parts.postgres().execute(roles).await;
    let walpost = parts.kept.run().await;
    let first = parts.insert(20).await;
    parts.kept.delivered().await;
    parts.is_over(&first).await;
    parts.kept.fixture.source = parts.postgres().url_for("pruner");
    let postgres = parts.postgres();
    let prune = async || parts.prune(&["--partitions-ahead", "150s"]).await;
    let grant_owner = "GRANT keeper TO pruner; ALTER TABLE public.outbox_default OWNER TO postgres;
                       GRANT SELECT, DELETE, UPDATE (id) ON public.outbox_default TO pruner";
    let other = format!(
        "ALTER TABLE public.outbox_default OWNER TO keeper; ALTER TABLE {first} OWNER TO postgres;
         GRANT SELECT, DELETE, UPDATE (id) ON {first} TO pruner"
    );
    for (needed, code, remedy) in [
        ("made and dropped by its owner: GRANT \"keeper\" TO this user", 78, grant_owner),
        (
            "GRANT CREATE ON SCHEMA \"public\" TO \"keeper\"",
            78,
            "GRANT CREATE ON SCHEMA public TO keeper",
        ),
        ("its default partition has another owner", 78, &other),
        (
            "partition left: only its owner may drop it: GRANT \"postgres\" TO this user",
            1,
            &format!("ALTER TABLE {first} OWNER TO keeper"),
        ),
    ] {
        for dry in
            [&["--dry-run", "--partitions-ahead", "150s"][..], &["--partitions-ahead", "150s"]]
        {
            let (found, said) = parts.prune(dry).await;
            assert!(found == Some(code) && said.contains(needed), "{found:?} {said}");
        }
        postgres.execute(remedy).await;
    }
    let (code, said) = prune().await;
    assert!(code == Some(0) && !parts.exists(&first).await, "{code:?} {said}");
    let owners = "SELECT string_agg(DISTINCT pg_get_userbyid(relowner), ' ') FROM pg_class
                   WHERE relname LIKE 'outbox_p2%' AND relkind = 'r'";
    assert_eq!(postgres.query_text(owners).await.as_deref(), Some("keeper"));
    let walpost_stops = walpost.wait(std::time::Duration::from_millis(1)).await;
    assert!(walpost_stops.is_none(), "it still runs");
    parts.kept.fixture.confirmed(SHORT_TIMEOUT).await;
    stop(walpost).await;
}
