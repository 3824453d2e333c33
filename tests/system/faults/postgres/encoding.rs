//! Databases in encodings other than UTF-8 (63).

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, record_of};
use walpost_bed::oracle::{Row, judge};
use walpost_bed::{Kafka, Major, Postgres};

use crate::case::{Case, CaseReport};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(63, "text_of_a_latin1_database_is_published_as_utf8", latin1),
        Case::new(63, "utf8_in_a_sql_ascii_database_is_published_unchanged", sql_ascii),
        Case::new(63, "bytes_of_unknown_encoding_halt", unknown_bytes),
        Case::new(63, "printed_fix_skips_nothing_that_waits_for_kafka", fix_skips_nothing),
    ]
}

async fn latin1(report: CaseReport) {
    let postgres = Postgres::builder(Major::V15).encoding("LATIN1").start().await;
    let fixture = Fixture::bare(postgres, &Kafka::shared().await.bootstrap())
        .option("--table", "public.\"Ausgänge\"");
    fixture.init(&[]).await;
    assert_eq!(
        fixture.postgres.query_text("SHOW server_encoding").await.as_deref(),
        Some("LATIN1")
    );
    let walpost = fixture.run().await;
    fixture
        .postgres
        .execute(
            "INSERT INTO public.\"Ausgänge\" (aggregate_type, aggregate_id, event_type, payload, headers)
               VALUES ('order', 'Käse', 'geprüft', '{\"größe\": \"½ Maß\"}', '{\"für\": \"Jürgen\"}')",
        )
        .await;
    let rows = fixture.rows("SELECT id, aggregate_id FROM public.\"Ausgänge\"").await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    report.exact(&judge(&rows, std::iter::empty(), &records));
    assert_eq!(records[0].key_text(), Some("Käse"));
    assert_eq!(records[0].value_text(), Some(r#"{"größe": "½ Maß"}"#));
    assert_eq!(records[0].header("event_type"), Some("geprüft"));
    assert_eq!(records[0].header("für"), Some("Jürgen"));
    report.still_running(&walpost);
}

/// A database that takes any bytes for text, with an outbox of plain text.
async fn without_encoding() -> Fixture {
    with_brokers(&Kafka::shared().await.bootstrap()).await
}

async fn with_brokers(bootstrap: &str) -> Fixture {
    let postgres = Postgres::builder(Major::V15).encoding("SQL_ASCII").start().await;
    let fixture = Fixture::bare(postgres, bootstrap);
    let table = "CREATE TABLE public.outbox (id text PRIMARY KEY, aggregate_type text,
                   aggregate_id text, event_type text, payload text)";
    fixture.over(table).await
}

async fn sql_ascii(report: CaseReport) {
    let fixture = without_encoding().await;
    let walpost = fixture.run().await;
    let row = "INSERT INTO public.outbox VALUES ('ä', 'order', 'Käse', 'geprüft', '½ Maß')";
    fixture.postgres.execute(row).await;
    let rows = fixture.rows("SELECT id, aggregate_id FROM public.outbox").await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    report.exact(&judge(&rows, std::iter::empty(), &records));
    assert_eq!(record_of(&records, "ä").value_text(), Some("½ Maß"));
    report.still_running(&walpost);
}

async fn unknown_bytes(report: CaseReport) {
    let fixture = without_encoding().await;
    let walpost = fixture.run().await;
    let row = |id: &str, payload: &str| {
        format!("INSERT INTO public.outbox VALUES ('{id}', 'order', 'k', 'e', {payload})")
    };
    fixture.postgres.execute(&row("before", "'p'")).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let good = fixture.postgres.wal_end().await;
    fixture.postgres.execute(&row("guilty", r"E'p\344'")).await;
    let bad = fixture.postgres.wal_end().await;
    fixture.postgres.execute(&row("after", "'p'")).await;
    let text = report.ends(&walpost, 4).await;
    assert!(text.contains("of a logical message has no form in UTF-8"), "{text}");
    assert!(fixture.has_confirmed(&good).await && !fixture.has_confirmed(&bad).await);
    let row = |id: &str| Row::new(id, "k");
    judge(&[row("before")], std::iter::empty(), &fixture.records().await).assert_exact();

    // The printed fix that it names is one.
    fixture.postgres.execute(&way_out(&text)).await;
    let next = fixture.run().await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let rows = [row("before"), row("after")];
    report.exact(&judge(&rows, std::iter::empty(), &fixture.records().await));
    report.still_running(&next);
}

/// The statements that a text names as the printed fix.
fn way_out(text: &str) -> String {
    let (_, way) = text.split_once("publish it by hand, then ").expect("a way out");
    let (way, _) = way.split_once("; and start").expect("its end");
    way.replace("<publication>", "walpost")
}

/// What is before the row is in no topic yet when walpost meets it.
async fn fix_skips_nothing(report: CaseReport) {
    let kafka = Kafka::start().await;
    let fixture = with_brokers(&kafka.bootstrap()).await;
    let row = |id: &str, payload: &str| {
        format!("INSERT INTO public.outbox VALUES ('{id}', 'order', 'k', 'e', {payload})")
    };
    let walpost = fixture.run_with(&["--drain-timeout", "2s"]).await;
    fixture.postgres.execute(&row("first", "'p'")).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    kafka.kill9().await;
    fixture.postgres.execute(&row("good", "'p'")).await;
    fixture.postgres.execute(&row("guilty", r"E'p\344'")).await;
    fixture.postgres.execute(&row("after", "'p'")).await;
    let text = report.ends(&walpost, 4).await;
    assert!(text.contains("start walpost again first") && !text.contains("advance"), "{text}");
    kafka.start_again().await;
    let text = report.ends(&fixture.command("run").start(), 4).await;
    fixture.postgres.execute(&way_out(&text)).await;
    let next = fixture.run().await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let rows = ["first", "good", "after"].map(|id| Row::new(id, "k"));
    report.exact(&judge(&rows, std::iter::empty(), &fixture.records().await));
    report.still_running(&next);
}
