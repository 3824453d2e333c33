//! `docs/writing-events.md` quotes programs that run, and SQL that works as written.

use serde_json::{Value, json};
use walpost_bed::page::{blocks, is_quoted};

use crate::shop::Shop;

const PAGE: &str = include_str!("../../../docs/writing-events.md");

/// The languages of the page's code, with the files that each block is a part of.
const QUOTED: [(&str, &[&str]); 5] = [
    (
        "java",
        &[
            include_str!("../../../examples/writers/java-jdbc/Writer.java"),
            include_str!("../../../examples/writers/java-spring/Writer.java"),
        ],
    ),
    ("go", &[include_str!("../../../examples/writers/go-pgx/main.go")]),
    (
        "python",
        &[
            include_str!("../../../examples/writers/python/writer_psycopg.py"),
            include_str!("../../../examples/writers/python/writer_sqlalchemy.py"),
        ],
    ),
    ("typescript", &[include_str!("../../../examples/writers/typescript/writer.ts")]),
    (
        "rust",
        &[
            include_str!("../../../examples/writers/rust/main.rs"),
            // Compiled as one of the crate's doc tests.
            include_str!("../../../clients/rust/README.md"),
        ],
    ),
];

#[test]
fn code_quoted_on_the_page_matches_the_programs() {
    let blocks = blocks(PAGE);
    for (language, programs) in QUOTED {
        let quoted: Vec<_> = blocks.iter().filter(|(of, _)| of == language).collect();
        for (_, block) in &quoted {
            let is_known = programs.iter().any(|program| is_quoted(block, program));
            assert!(is_known, "not in a {language} program:\n{block}");
        }
        for program in programs {
            let is_on_page = quoted.iter().any(|(_, block)| is_quoted(block, program));
            assert!(is_on_page, "the page quotes nothing of a {language} program");
        }
    }
    let tested = ["sh", "sql"];
    let is_known =
        |of: &str| tested.contains(&of) || QUOTED.iter().any(|(language, _)| of == *language);
    assert!(blocks.iter().all(|(of, _)| is_known(of)), "a block that is not tested");
}

/// Key, event type, value and source of each event of the page's SQL, in order.
fn events_of_the_page() -> Vec<(String, String, Option<Value>, Option<String>)> {
    let event = |key: &str, event_type: &str, value: Option<Value>, source: Option<&str>| {
        (key.to_owned(), event_type.to_owned(), value, source.map(str::to_owned))
    };
    let placed = |key, cents, source| {
        let value = json!({ "customer": "acme", "total_cents": cents });
        event(key, "order_placed", Some(value), source)
    };
    vec![
        placed("42", 1250, None),
        placed("43", 990, Some("shop")),
        event("42", "order_paid", Some(json!({ "total_cents": 1250 })), None),
        placed("44", 800, None),
        event("44", "order_deleted", None, None),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_on_the_page_writes_its_events() {
    let shop = Shop::open().await;
    let postgres = &shop.fixture.postgres;
    postgres.execute("CREATE ROLE app").await;
    for (_, sql) in blocks(PAGE).iter().filter(|(language, _)| language == "sql") {
        postgres.execute(sql).await;
        if sql.contains("ON CONFLICT") {
            // The second time no row is inserted, and no event is written.
            postgres.execute(sql).await;
        }
    }
    let mut records = shop.records().await;
    records.sort_by_key(|record| record.header("walpost.position").map(str::to_owned));
    let events = records.iter().map(|record| {
        (
            record.key_text().expect("a key").to_owned(),
            record.header("event_type").expect("a type").to_owned(),
            record.value_text().map(|value| serde_json::from_str(value).expect("JSON")),
            record.header("source").map(str::to_owned),
        )
    });
    assert_eq!(events.collect::<Vec<_>>(), events_of_the_page());
    // The application can do all of it with the rights that the page grants.
    postgres
        .execute(
            "GRANT SELECT, INSERT, UPDATE ON public.orders TO app; SET ROLE app;
             INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c');
             SELECT outbox.publish('a', 'b', 'c', '{}')",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statement_with_the_event_in_a_cte_writes_all_events_under_a_limit() {
    let shop = Shop::open().await;
    let postgres = &shop.fixture.postgres;
    let orders = "TRUNCATE public.orders, public.outbox;
        INSERT INTO public.orders (id, customer, total_cents)
        SELECT i, 'acme', 100 FROM generate_series(1, 3) AS i";
    let events = "SELECT count(*) FROM public.outbox";
    let paid = "SELECT count(*) FROM public.orders WHERE status = 'paid'";
    for (statement, count) in [
        (
            "WITH o AS (UPDATE public.orders SET status = 'paid' RETURNING id),
                  e AS (INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type)
                        SELECT 'order', id::text, 'order_paid' FROM o)
             SELECT id FROM o LIMIT 1",
            "3",
        ),
        // Why the page does not do it like this.
        (
            "WITH o AS (UPDATE public.orders SET status = 'paid' RETURNING id)
             SELECT outbox.publish('order', id::text, 'order_paid', NULL) FROM o LIMIT 1",
            "1",
        ),
    ] {
        postgres.execute(orders).await;
        postgres.execute(statement).await;
        assert_eq!(postgres.query_text(paid).await.as_deref(), Some("3"), "{statement}");
        assert_eq!(postgres.query_text(events).await.as_deref(), Some(count), "{statement}");
    }
}
