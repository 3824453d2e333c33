//! Data that PostgreSQL stores but cannot send, and the printed fix: it skips one transaction and
//! no other.

use std::time::Duration;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended};
use walpost_bed::oracle::{Row, judge};
use walpost_bed::{Endpoints, Kafka, Major, Postgres, Walpost, eventually};

fn row(id: &str, payload: &str) -> String {
    format!("INSERT INTO public.outbox VALUES ('{id}', 'order', 'k', 'e', {payload})")
}

/// A database that takes any bytes for text, with an outbox of plain text.
async fn without_encoding(major: Major, bootstrap: &str) -> Fixture {
    let postgres = Postgres::builder(major).encoding("SQL_ASCII").start().await;
    let table = "CREATE TABLE public.outbox (id text PRIMARY KEY, aggregate_type text,
                   aggregate_id text, event_type text, payload text)";
    Fixture::bare(postgres, bootstrap).over(table).await
}

/// Awaits its exit with a long timeout; returns exit code and log.
async fn ended_at_last(walpost: &Walpost) -> (Option<i32>, String) {
    let status = walpost.wait(LONG_TIMEOUT).await.expect("it ends");
    (status.code(), walpost.stderr().join("\n"))
}

/// Runs what `text` names as the printed fix, word for word but for the publication's name.
async fn apply_printed_fix(fixture: &Fixture, text: &str) {
    let (_, way) = text.split_once("publish it by hand, then ").expect("a way out");
    let (way, _) = way.split_once("; and start").expect("its end");
    fixture.postgres.execute(&way.replace("<publication>", "walpost")).await;
}

/// Resumes from there: these rows are published, and nothing else.
async fn resumes_and_publishes(fixture: &Fixture, ids: &[&str]) {
    let (code, text) =
        ended_at_last(&fixture.command("run").args(["--until", "current"]).start()).await;
    assert_eq!(code, Some(0), "{text}");
    let rows: Vec<Row> = ids.iter().map(|id| Row::new(*id, "k")).collect();
    judge(&rows, std::iter::empty(), &fixture.records().await).assert_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn unconvertible_row_halts_and_only_its_transaction_is_skipped() {
    let fixture = Fixture::new().await;
    let columns = "(aggregate_type, aggregate_id, event_type, payload)";
    let insert = |key: &str, payload: &str| {
        format!("INSERT INTO public.outbox {columns} VALUES ('order', '{key}', 'e', {payload})")
    };
    fixture.postgres.execute(&insert("before", "'{}'")).await;
    // As text each of these characters takes six: a little more than 1 GiB.
    let wide = insert("wide", r"to_jsonb(repeat(E'\x01', 179000000))");
    fixture.postgres.execute(&wide).await;
    fixture.postgres.execute(&insert("after", "'{}'")).await;
    let mut said = String::new();
    for feed in ["auto", "stream"] {
        let walpost = fixture.command("run").args(["--catch-up", feed]);
        let walpost = walpost.env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB").start();
        let (code, text) = ended_at_last(&walpost).await;
        assert_eq!(code, Some(4), "{feed}: {text}");
        assert!(text.contains("larger than PostgreSQL can send"), "{feed}: {text}");
        assert_eq!(text.contains("in SQL batches; streaming it instead"), feed == "auto", "{text}");
        said = text;
    }
    apply_printed_fix(&fixture, &said).await;
    let (code, text) =
        ended_at_last(&fixture.command("run").args(["--until", "current"]).start()).await;
    assert_eq!(code, Some(0), "{text}");
    let rows = fixture.rows("SELECT id, aggregate_id FROM public.outbox ORDER BY n").await;
    let rows: Vec<Row> =
        rows.into_iter().filter(|row| row.key.as_deref() != Some("wide")).collect();
    assert_eq!(rows.len(), 2);
    // Nothing is confirmed to a session that has ended.
    judge(&rows, std::iter::empty(), &fixture.records().await).assert_ok();
}

/// Any role that may connect can emit such a message, also if no message prefix is configured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unconvertible_foreign_message_does_not_halt() {
    let fixture = without_encoding(Major::V15, &Kafka::shared().await.bootstrap()).await;
    for transactional in [true, false] {
        let emit = format!(r"SELECT pg_logical_emit_message({transactional}, E'\xff', 'x')");
        fixture.postgres.execute(&emit).await;
    }
    fixture.postgres.execute(&row("good", "'p'")).await;
    resumes_and_publishes(&fixture, &["good"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fix_for_an_unconvertible_message_skips_only_that_message() {
    for major in [Major::V14, Major::V15, Major::V18] {
        let fixture = without_encoding(major, &Kafka::shared().await.bootstrap())
            .await
            .option("--message-prefix", "outbox");
        fixture.postgres.execute(&row("one", "'p'")).await;
        for transactional in ["true", "false"] {
            let emit = format!(r"SELECT pg_logical_emit_message({transactional}, E'\xff', 'x')");
            fixture.postgres.execute(&emit).await;
            fixture.postgres.execute(&row(transactional, "'p'")).await;
        }
        for _ in 0..2 {
            let (code, text) = ended(&fixture.command("run").start()).await;
            assert_eq!(code, Some(4), "{major:?}: {text}");
            assert!(text.contains("of a logical message has no form in UTF-8"), "{text}");
            apply_printed_fix(&fixture, &text).await;
        }
        resumes_and_publishes(&fixture, &["one", "true", "false"]).await;
    }
}

/// Records that were received and wait for Kafka show the position of the transaction that cannot be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fix_skips_nothing_that_was_waiting_for_kafka() {
    let kafka = Kafka::start().await;
    let fixture =
        without_encoding(Major::V15, &kafka.bootstrap()).await.option("--in-flight-bytes", "64KiB");
    let walpost = fixture.run().await;
    fixture.postgres.execute(&row("first", "'p'")).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    kafka.kill9().await;
    let good = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for id in good {
        fixture.postgres.execute(&row(id, "repeat('p', 20000)")).await;
    }
    fixture.postgres.execute(&row("guilty", r"E'p\344'")).await;
    fixture.postgres.execute(&row("after", "'p'")).await;
    eventually(SHORT_TIMEOUT, "the server gives up", async || fixture.walsender().await.is_none())
        .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    walpost.assert_runs();
    kafka.start_again().await;
    let (code, text) = ended_at_last(&walpost).await;
    assert_eq!(code, Some(4), "{text}");
    apply_printed_fix(&fixture, &text).await;
    let mut all = vec!["first"];
    all.extend(good);
    all.push("after");
    resumes_and_publishes(&fixture, &all).await;
}

/// Any role that can connect decides its size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_message_uses_no_memory() {
    let fixture = Fixture::new().await;
    for feed in ["stream", "auto"] {
        for transactional in [true, false] {
            let emit = format!(
                "SELECT pg_logical_emit_message({transactional}, 'nobody', repeat('x', 200000000))"
            );
            fixture.postgres.execute(&emit).await;
        }
        fixture.postgres.execute(&walpost_bed::fixture::insert(1, 1)).await;
        let walpost = fixture.command("run").args(["--catch-up", feed]);
        let walpost = walpost.env("WALPOST_SOURCE_CATCH_UP_THRESHOLD", "1KiB").start();
        fixture.confirmed(LONG_TIMEOUT).await;
        let peak = walpost.peak_rss_bytes().expect("it runs");
        assert!(peak < 120 << 20, "{feed}: {} MiB", peak >> 20);
        walpost_bed::fixture::stop(walpost).await;
    }
}

/// A possibly transient error does not halt, but one that repeats at each attempt must not be
/// reported as ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_error_at_one_position_makes_walpost_unready() {
    let fixture = Fixture::new().await;
    fixture
        .postgres
        .execute(
            "CREATE TYPE public.mood AS ENUM ('gone', 'there');
             ALTER TABLE public.outbox ADD COLUMN mood public.mood;
             CREATE TABLE public.moods AS SELECT 'gone'::public.mood AS mood",
        )
        .await;
    let walpost = fixture.run_with(&["--admin-listen", "127.0.0.1:0"]).await;
    let endpoints = Endpoints::of(&walpost).await;
    let ready = async || endpoints.page("/readyz").await;
    eventually(SHORT_TIMEOUT, "it is ready", async || ready().await.0 == 200).await;
    // A value without a label has no text.
    fixture.postgres.execute("DELETE FROM pg_catalog.pg_enum WHERE enumlabel = 'gone'").await;
    fixture
        .postgres
        .execute(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, mood)
               SELECT 'order', 'k', 'e', '{}', mood FROM public.moods",
        )
        .await;
    walpost.await_line("repeatedly ends the stream at the same position", SHORT_TIMEOUT).await;
    let (status, body) = ready().await;
    assert_eq!(status, 503);
    assert!(body.contains("times in a row") && body.contains("22P03"), "{body}");
    let opened = walpost.mark();
    walpost.await_line_after(opened, "streaming from PostgreSQL", SHORT_TIMEOUT).await;
    assert_eq!(ready().await.0, 503, "even while a session is open");
    walpost.terminate();
    assert!(walpost.wait(SHORT_TIMEOUT).await.is_some_and(|status| status.success()));
}
