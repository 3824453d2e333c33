//! The function `outbox.publish`: what it writes, what it refuses, and how `walpost init` makes it.

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, ended, record_of};
use walpost_bed::{Major, Postgres};

use crate::shop::Shop;

const FILE: &str = include_str!("../../../sql/publish.sql");
const TABLE: &str = include_str!("../../../sql/01-schema.sql");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_is_published_if_the_callers_transaction_commits() {
    let shop = Shop::open().await;
    let client = shop.fixture.postgres.client().await;
    let publish = "SELECT outbox.publish('order', $1, 'order_placed', '{\"n\": 1}')::text";
    let mut ids = Vec::new();
    for (key, end) in [("kept", "COMMIT"), ("dropped", "ROLLBACK"), ("again", "COMMIT")] {
        client.batch_execute("BEGIN").await.unwrap();
        ids.push(client.query_one(publish, &[&key]).await.unwrap().get::<_, String>(0));
        client.batch_execute("SAVEPOINT s").await.unwrap();
        client.query_one(publish, &[&"savepoint"]).await.unwrap();
        client.batch_execute("ROLLBACK TO s").await.unwrap();
        client.batch_execute(end).await.unwrap();
    }
    let records = shop.records().await;
    assert_eq!(records.len(), 2);
    for (id, key) in [(&ids[0], "kept"), (&ids[2], "again")] {
        let record = record_of(&records, id);
        assert_eq!(record.key_text(), Some(key));
        assert_eq!(record.header("event_type"), Some("order_placed"));
        assert_eq!(record.value_text(), Some("{\"n\": 1}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn id_and_headers_are_those_of_the_caller() {
    let shop = Shop::open().await;
    let id = "0193a7e2-5b1c-7c3e-9f0a-6d2b8e4f1a90";
    let call = format!(
        "SELECT outbox.publish('order', 'A', 'order_placed', NULL, id => '{id}',
                               headers => '{{\"traceparent\": \"00-1-2-01\"}}')"
    );
    assert_eq!(shop.fixture.postgres.query_text(&call).await.as_deref(), Some(id));
    let records = shop.records().await;
    let record = record_of(&records, id);
    assert_eq!(record.header("traceparent"), Some("00-1-2-01"));
    assert_eq!(record.value, None);
    // The id is the table's primary key: the same event is not written twice.
    let error = shop.fixture.postgres.client().await.batch_execute(&call).await.unwrap_err();
    assert!(format!("{error:?}").contains("outbox_pkey"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_that_cannot_be_delivered_is_refused() {
    let postgres = Postgres::start(Major::V14).await;
    postgres.execute(TABLE).await;
    postgres.execute(FILE).await;
    let client = postgres.client().await;
    for (arguments, expected) in [
        ("'', 'A', 'placed', '{}'", "must not be empty"),
        ("'order', '', 'placed', '{}'", "must not be empty"),
        ("'order', NULL, 'placed', '{}'", "null value in column"),
        ("'order', 'A', 'placed', '{}', '[1]'", "headers must be a JSON object, not array"),
        ("'order', 'A', 'placed', '{}', 'null'", "headers must be a JSON object, not null"),
    ] {
        let call = format!("SELECT outbox.publish({arguments})");
        let error = client.batch_execute(&call).await.unwrap_err();
        assert!(format!("{error:?}").contains(expected), "{call}: {error:?}");
    }
    client.batch_execute("SELECT outbox.publish('order', 'A', 'placed', NULL)").await.unwrap();
    let rows = postgres.query_text("SELECT count(*) FROM public.outbox").await;
    assert_eq!(rows.as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caller_needs_the_rights_on_schema_and_table() {
    let postgres = Postgres::start(Major::V15).await;
    postgres.execute(TABLE).await;
    postgres.execute(FILE).await;
    postgres.execute("CREATE ROLE app").await;
    let client = postgres.client().await;
    client.batch_execute("SET ROLE app").await.unwrap();
    let call = "SELECT outbox.publish('order', 'A', 'placed', '{}')";
    for (lacks, grant) in [
        ("permission denied for schema outbox", "GRANT USAGE ON SCHEMA outbox TO app"),
        ("permission denied for table outbox", "GRANT INSERT ON public.outbox TO app"),
    ] {
        let error = client.batch_execute(call).await.unwrap_err();
        assert!(format!("{error:?}").contains(lacks), "{error:?}");
        postgres.execute(grant).await;
    }
    client.batch_execute(call).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_rejects_a_schema_or_function_of_an_untrusted_role() {
    let postgres = Postgres::start(Major::V15).await;
    postgres.execute(TABLE).await;
    let client = postgres.client().await;
    postgres
        .execute(
            "CREATE ROLE mallory; GRANT CREATE ON DATABASE postgres TO mallory; SET ROLE mallory;
             CREATE SCHEMA outbox",
        )
        .await;
    let error = client.batch_execute(FILE).await.unwrap_err();
    assert!(format!("{error:?}").contains("schema outbox belongs to role mallory"), "{error:?}");
    postgres
        .execute(
            "CREATE FUNCTION outbox.publish(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
             ALTER FUNCTION outbox.publish(text) OWNER TO mallory;
             ALTER SCHEMA outbox OWNER TO postgres",
        )
        .await;
    let error = client.batch_execute(FILE).await.unwrap_err();
    let expected = "function outbox.publish belongs to role mallory";
    assert!(format!("{error:?}").contains(expected), "{error:?}");
    // The owner of the table is trusted.
    postgres.execute("ALTER TABLE public.outbox OWNER TO mallory").await;
    client.batch_execute(FILE).await.unwrap();
}

/// Runs `walpost init`; returns its exit status and output.
async fn init(fixture: &Fixture, arguments: &[&str]) -> (Option<i32>, String) {
    let init = fixture.command("init").args(arguments).start();
    let (code, errors) = ended(&init).await;
    (code, init.stdout().join("\n") + "\n" + &errors)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_creates_the_function_for_the_configured_table() {
    let fixture = Fixture::empty().await.option("--table", r#""It's"."Out""#);
    fixture.postgres.execute(r#"CREATE SCHEMA "It's""#).await;
    let (code, said) = init(&fixture, &["--publish-function"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(r#"INSERT INTO "It's"."Out" (id, "#), "{said}");
    let (code, said) = init(&fixture, &[]).await;
    assert_eq!((code, said.contains("outbox.publish")), (Some(0), false), "{said}");
    for expected in ["function outbox.publish: created", "function outbox.publish: already there\n"]
    {
        let (code, said) = init(&fixture, &["--apply", "--publish-function"]).await;
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let _walpost = fixture.run().await;
    let call = "SELECT outbox.publish('order', 'A', 'placed', '{}')";
    let id = fixture.postgres.query_text(call).await.expect("an id");
    fixture.confirmed(LONG_TIMEOUT).await;
    record_of(&fixture.records().await, &id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_reports_another_body_and_an_untrusted_owner() {
    let fixture = Fixture::empty().await;
    let arguments = ["--apply", "--publish-function"];
    assert_eq!(init(&fixture, &arguments).await.0, Some(0));
    let other = FILE.replace("-- Without RETURNING", "-- Another body: without RETURNING");
    fixture.postgres.execute(&other).await;
    let (code, said) = init(&fixture, &arguments).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("already there (its body is another"), "{said}");
    fixture.postgres.execute("CREATE ROLE mallory").await;
    let owner = "ALTER FUNCTION outbox.publish OWNER TO mallory";
    fixture.postgres.execute(owner).await;
    let (code, said) = init(&fixture, &arguments).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(r#"it belongs to role "mallory", who can change it"#), "{said}");
}

/// PostgreSQL prefers it for the documented calls, whose arguments are literals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_reports_a_function_of_the_same_name_that_takes_calls() {
    let fixture = Fixture::empty().await;
    let arguments = ["--apply", "--publish-function"];
    assert_eq!(init(&fixture, &arguments).await.0, Some(0));
    fixture
        .postgres
        .execute(
            "CREATE ROLE mallory; GRANT CREATE, USAGE ON SCHEMA outbox TO mallory;
             SET ROLE mallory;
             CREATE FUNCTION outbox.publish(text, text, text, text) RETURNS text
                 LANGUAGE sql AS 'SELECT $1';
             RESET ROLE",
        )
        .await;
    let (code, said) = init(&fixture, &arguments).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(r#"role "mallory" has another function of this name"#), "{said}");
    let (_, command) = said.split_once("DROP FUNCTION ").expect("the command");
    let function = command.split(';').next().expect("a function");
    fixture.postgres.execute(&format!("DROP FUNCTION {function}")).await;
    let (_, said) = init(&fixture, &arguments).await;
    assert!(said.contains("function outbox.publish: already there\n"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_rejects_a_schema_of_an_untrusted_role() {
    let fixture = Fixture::empty().await;
    fixture
        .postgres
        .execute("CREATE ROLE mallory; CREATE SCHEMA outbox AUTHORIZATION mallory")
        .await;
    let (code, said) = init(&fixture, &["--apply", "--publish-function"]).await;
    assert_eq!(code, Some(1), "{said}");
    for expected in ["creating function outbox.publish", "schema outbox belongs to role mallory"] {
        assert!(said.contains(expected), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_without_a_table_refuses_the_function() {
    let fixture = Fixture::empty().await.option("--message-prefix", "outbox");
    let init = fixture.command("init").env("WALPOST_OUTBOX_TABLE", "").arg("--publish-function");
    let (code, said) = ended(&init.start()).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("--publish-function needs an outbox table"), "{said}");
}
