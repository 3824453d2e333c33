//! All kinds of outbox tables: quoted names, partitions, column lists, several tables, tables
//! published with all others, and Debezium's columns.

use walpost_bed::Walpost;
use walpost_bed::fixture::{
    Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, assert_in_log_order, ended, insert, program, record_of,
    stop,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quoted_identifiers_are_supported() {
    let table = r#""Sales dept"."Out""Box's, ÄÖ""#;
    let fixture = Fixture::empty()
        .await
        .option("--table", table)
        .option("--publication", r#"It's "mine", too"#)
        .option("--slot", "1_odd_slot_")
        .over(r#"CREATE SCHEMA "Sales dept""#)
        .await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(20, 3).replace("public.outbox", table)).await;
    let rows =
        fixture.rows(&format!("SELECT id, aggregate_id FROM {table} ORDER BY payload")).await;
    assert_eq!(rows.len(), 20);
    fixture.assert_published(&rows, SHORT_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sufficient_column_list_is_accepted() {
    let fixture = Fixture::empty()
        .await
        .over(
            "CREATE TABLE public.outbox (secret text DEFAULT 'secret', id serial PRIMARY KEY,
               aggregate_type text, between int DEFAULT 7, aggregate_id text, event_type text, payload jsonb,
               headers jsonb DEFAULT '{\"secret\": \"secret\"}');
             CREATE PUBLICATION walpost
               FOR TABLE public.outbox (payload, id, aggregate_id, aggregate_type)
               WITH (publish = 'insert')",
        )
        .await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(30, 4)).await;
    let rows = fixture.rows("SELECT id, aggregate_id FROM public.outbox ORDER BY id").await;
    let records = fixture.assert_published(&rows, SHORT_TIMEOUT).await;
    for record in records {
        let names: Vec<_> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["id", "walpost.position"]);
        assert!(record.value_text().is_some_and(|value| value.starts_with("{\"i\": ")));
    }
    stop(walpost).await;
}

/// A table that lacks a column which others have, how its records are made, and where the row
/// goes by them.
const SPARSE: [(&str, &str, &str, [&str; 2]); 4] = [
    (
        "id uuid DEFAULT gen_random_uuid() PRIMARY KEY, event_type text NOT NULL, \
         aggregate_id text NOT NULL, payload jsonb",
        "topic = '{event_type}'",
        "(event_type, aggregate_id, payload) VALUES ('placed', 'A-7', '{}')",
        ["placed", "A-7"],
    ),
    (
        "id bigint PRIMARY KEY, type text NOT NULL, payload jsonb NOT NULL",
        "topic = '{event_type}'\nkey = '{id}'",
        "VALUES (42, 'placed', '{}')",
        ["placed", "42"],
    ),
    (
        "id bigint PRIMARY KEY, task_type task NOT NULL, payload jsonb NOT NULL",
        "topic = '{task_type}'\nkey = '{id}'",
        "VALUES (42, 'mail', '{}')",
        ["mail", "42"],
    ),
    (
        "number bigint PRIMARY KEY, payload jsonb NOT NULL",
        "topic = 'all'\nkey = '{number}'\nheaders = ['walpost.position']",
        "VALUES (42, '{}')",
        ["all", "42"],
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_not_used_in_records_are_optional() {
    for (columns, record, row, [topic, key]) in SPARSE {
        let fixture = Fixture::empty().await;
        let prefix = fixture.topic("");
        let directory = tempfile::TempDir::new().expect("a directory");
        let file = directory.path().join("walpost.toml");
        let record = record.replace("topic = '", &format!("topic = '{prefix}"));
        let toml = format!("[record]\n{record}\n[outbox]\nmessage_prefix = 'outbox'\n");
        std::fs::write(&file, toml).expect("it can be written");
        let command = |name: &str| {
            Walpost::builder(program())
                .args([name, "--source", &fixture.source, "--config"])
                .arg(&file)
                .args(["--bootstrap-servers", &fixture.bootstrap])
                .args(["-X", "allow.auto.create.topics=true"])
        };
        let create =
            format!("CREATE TYPE task AS ENUM ('mail'); CREATE TABLE public.outbox ({columns})");
        fixture.postgres.execute(&create).await;
        for name in ["init", "check"] {
            let apply = (name == "init").then_some("--apply");
            let (code, said) = ended(&command(name).args(apply).start()).await;
            assert_eq!(code, Some(0), "{name} of ({columns}): {said}");
        }
        let walpost = command("run").start();
        walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
        fixture.postgres.execute(&format!("INSERT INTO public.outbox {row}")).await;
        // The same as a logical message, a member for each column.
        let message =
            "SELECT pg_logical_emit_message(true, 'outbox', to_json(o)::text) FROM public.outbox o";
        fixture.postgres.execute(message).await;
        fixture.confirmed(SHORT_TIMEOUT).await;
        let records = fixture.records().await;
        assert_eq!(records.len(), 2, "({columns}): {:?}", walpost.stderr());
        for record in records {
            assert_eq!((record.topic, record.key), (format!("{prefix}{topic}"), Some(key.into())));
        }
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_outbox_is_published_under_the_root_name() {
    let fixture = Fixture::empty()
        .await
        .over(
            "CREATE TABLE public.outbox (id serial, aggregate_type text, aggregate_id text, event_type text,
               payload jsonb) PARTITION BY RANGE (id);
             CREATE TABLE public.outbox_1 PARTITION OF public.outbox FOR VALUES FROM (1) TO (100)",
        )
        .await;
    let walpost = fixture.run().await;
    let rows = insert(60, 3);
    fixture.postgres.execute(&rows).await;
    // A later partition, attached, with its columns in another order, and one
    // in between that was dropped.
    fixture
        .postgres
        .execute(
            "CREATE TABLE public.outbox_2 (payload jsonb, old int, event_type text, aggregate_id text,
               id int NOT NULL, aggregate_type text);
             ALTER TABLE public.outbox_2 DROP COLUMN old;
             ALTER TABLE public.outbox ATTACH PARTITION public.outbox_2 FOR VALUES FROM (100) TO (200)",
        )
        .await;
    fixture.postgres.execute(&rows).await;
    fixture
        .postgres
        .execute(
            "INSERT INTO public.outbox_2 (id, aggregate_type, aggregate_id, event_type, payload)
               VALUES (199, 'order', '0', 'placed', '{\"i\": 1}')",
        )
        .await;
    let rows = fixture.rows("SELECT id, aggregate_id FROM public.outbox ORDER BY id").await;
    assert_eq!(rows.len(), 121);
    let records = fixture.assert_published(&rows, SHORT_TIMEOUT).await;
    assert_in_log_order(&records);
    assert_eq!(record_of(&records, "199").value_text(), Some("{\"i\": 1}"));
    fixture.postgres.execute("DROP TABLE public.outbox_1").await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_several_outbox_tables_keep_transaction_order() {
    let fixture = Fixture::empty()
        .await
        .option("--table", "public.outbox")
        .option("--table", "billing.outbox")
        .option("--table", "billing.\"Debezium\"")
        .over(
            "CREATE SCHEMA billing; CREATE SEQUENCE n;
             CREATE TABLE public.outbox (id int PRIMARY KEY DEFAULT nextval('n'), aggregate_type text,
               aggregate_id text, event_type text, payload jsonb);
             CREATE TABLE billing.outbox (payload text, aggregate_id varchar(9), aggregate_type name,
               event_type text, id bigint PRIMARY KEY DEFAULT nextval('n'));
             CREATE TABLE billing.\"Debezium\" (id int PRIMARY KEY DEFAULT nextval('n'),
               aggregatetype varchar(255), aggregateid varchar(255), type varchar(255), payload jsonb);
             CREATE TABLE billing.unrelated (id int)",
        )
        .await;
    let walpost = fixture.run().await;
    let row = |table: &str, names: &str| {
        format!("INSERT INTO {table} ({names}, payload) VALUES ('order', 'k', 'placed', '1')")
    };
    let ours = "aggregate_type, aggregate_id, event_type";
    let [one, two, three] = [
        row("public.outbox", ours),
        row("billing.outbox", ours),
        row("billing.\"Debezium\"", "aggregatetype, aggregateid, type"),
    ];
    for _ in 0..20 {
        let sql = format!(
            "{one}; {two}; {one}; {three}; INSERT INTO billing.unrelated VALUES (1); {two}; {three}; {one}"
        );
        fixture.postgres.execute(&sql).await;
    }
    let query = "SELECT i, 'k' FROM generate_series(1, 140) AS i";
    let rows = fixture.rows(query).await;
    let records = fixture.assert_published(&rows, SHORT_TIMEOUT).await;
    assert_in_log_order(&records);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debeziums_column_names_are_supported() {
    let fixture = Fixture::empty()
        .await
        .over(
            "CREATE TABLE public.outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
               aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
               type varchar(255) NOT NULL, payload jsonb, n serial)",
        )
        .await;
    let walpost = fixture.run().await;
    fixture
        .postgres
        .execute(
            "INSERT INTO public.outbox (aggregatetype, aggregateid, type, payload)
               SELECT 'order', i % 3, 'OrderCreated', '{\"a\": 1}' FROM generate_series(1, 9) AS i",
        )
        .await;
    let rows = fixture.rows("SELECT id, aggregateid FROM public.outbox ORDER BY n").await;
    let records = fixture.assert_published(&rows, SHORT_TIMEOUT).await;
    assert_eq!(records[0].topic, fixture.topic("order"));
    assert_eq!(records[0].header("event_type"), Some("OrderCreated"));
    assert_eq!(records[0].value_text(), Some("{\"a\": 1}"));
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publication_of_all_tables_works_under_heavy_writes() {
    let fixture = Fixture::empty()
        .await
        .over(
            "CREATE TABLE public.other (id int, t text);
             ALTER TABLE public.other REPLICA IDENTITY FULL;
             CREATE SCHEMA aside;
             CREATE TABLE aside.outbox (id int, aggregate_type text, aggregate_id text);
             CREATE PUBLICATION walpost FOR ALL TABLES",
        )
        .await;
    fixture.postgres.execute("ALTER TABLE public.outbox ADD COLUMN n bigserial").await;
    let walpost = fixture.run().await;
    let heavy = "INSERT INTO public.other
           SELECT i, repeat('x', 300) FROM generate_series(1, 50000) AS i;
         INSERT INTO aside.outbox SELECT i, 'order', i FROM generate_series(1, 100) AS i";
    let rows = insert(20, 3);
    fixture.postgres.execute(&format!("{heavy}; {rows}; {heavy}")).await;
    fixture.postgres.execute(heavy).await;
    fixture.postgres.execute(&rows).await;
    fixture.postgres.execute("UPDATE public.other SET id = -id WHERE id < 1000").await;
    fixture.postgres.execute(heavy).await;
    fixture.assert_exact(LONG_TIMEOUT).await;
    let last = stop(walpost).await;
    assert_eq!((&last["delivered"], &last["ignored_updates"]), (&40.into(), &0.into()), "{last}");
}
