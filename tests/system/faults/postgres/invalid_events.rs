//! Rows that are not valid events, and large rows (44, 45).

use std::time::Duration;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert, record_of};
use walpost_bed::oracle::{Row, judge};
use walpost_bed::{Kafka, Walpost};

use crate::case::{Case, CaseReport};

/// Of a row that no budget has room for: it is held whole.
const LARGE_BYTES: u32 = 256 << 20;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(44, "event_without_a_key_halts", |report| without_key(report, "NULL")),
        Case::new(44, "event_with_an_empty_key_halts", |report| without_key(report, "''")),
        Case::new(45, "empty_and_one_mebibyte_payloads_are_published", mebibyte),
        Case::new(45, "row_larger_than_the_budget_is_named_and_not_retried_forever", budget),
        Case::new(45, "text_of_256_mebibytes_is_named", |report| large(report, "text")).long(),
        Case::new(45, "bytea_of_256_mebibytes_is_named", |report| large(report, "bytea")).long(),
    ]
}

/// It halts at the row of that id, with all before it delivered and confirmed.
async fn halts(
    report: &CaseReport,
    fixture: &Fixture,
    walpost: &Walpost,
    id: &str,
    before: &[Row],
) -> String {
    let text = report.ends(walpost, 4).await;
    let line = text.lines().last().unwrap_or_default().to_owned();
    assert!(line.contains("table public.outbox") && line.contains(id), "{line}");
    assert!(line.contains("pg_replication_slot_advance('walpost'"), "{line}");
    let verdict = judge(before, std::iter::empty(), &fixture.records().await);
    if line.contains("is refused") {
        // The brokers may refuse it before those before it are known to be acknowledged.
        report.ok(&verdict);
    } else {
        report.exact(&verdict);
    }
    line
}

async fn without_key(report: CaseReport, key: &str) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    let walpost = fixture.run().await;
    for _ in 0..3 {
        fixture.postgres.execute(&insert(5, 3)).await;
    }
    let good = fixture.postgres.wal_end().await;
    let rows = fixture.committed().await;
    let guilty = format!(
        "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type) \
         VALUES (md5('guilty')::uuid, 'order', {key}, 'placed')"
    );
    fixture.postgres.execute(&format!("{guilty}; {}", insert(5, 3))).await;
    let bad = fixture.postgres.wal_end().await;
    fixture.postgres.execute(&insert(5, 3)).await;
    let id = fixture.postgres.query_text("SELECT md5('guilty')::uuid").await.expect("an id");
    let line = halts(&report, &fixture, &walpost, &id, &rows).await;
    assert!(line.contains("aggregate_id"), "{line}");
    assert!(fixture.has_confirmed(&good).await && !fixture.has_confirmed(&bad).await);
    // The next start halts at it again.
    halts(&report, &fixture, &fixture.command("run").start(), &id, &rows).await;
}

/// A table whose ids are numbers and whose payloads are of that type.
fn table(kind: &str) -> String {
    format!(
        "CREATE TABLE public.outbox (id int PRIMARY KEY, aggregate_type text, aggregate_id text,
           event_type text, payload {kind})"
    )
}

async fn mebibyte(report: CaseReport) {
    let fixture =
        Fixture::empty().await.option("-X", "message.max.bytes=2000000").over(&table("text")).await;
    let topic = fixture.topic("order");
    let settings = [("max.message.bytes", "2000000")];
    Kafka::shared().await.create_topic_with(&topic, 1, &settings).await;
    let walpost = fixture.run().await;
    // The third does not shrink, so that neither side can keep it small.
    fixture
        .postgres
        .execute(
            "INSERT INTO public.outbox
               SELECT 1, 'order', 'k', 'e', ''
               UNION ALL SELECT 2, 'order', 'k', 'e', repeat('x', 1048576)
               UNION ALL SELECT 3, 'order', 'k', 'e', string_agg(md5(i::text), '')
                           FROM generate_series(1, 32768) AS i
               UNION ALL SELECT 4, 'order', 'k', 'e', 'small'",
        )
        .await;
    let rows = fixture.rows("SELECT id, aggregate_id FROM public.outbox ORDER BY id").await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    report.exact(&judge(&rows, std::iter::empty(), &records));
    assert_eq!(record_of(&records, "1").value.as_deref(), Some([].as_slice()));
    assert_eq!(record_of(&records, "2").value, Some(vec![b'x'; 1 << 20]));
    let stored =
        fixture.postgres.query_text("SELECT payload FROM public.outbox WHERE id = 3").await;
    assert_eq!(record_of(&records, "3").value_text().map(str::len), Some(1 << 20));
    assert_eq!(record_of(&records, "3").value_text(), stored.as_deref());
    report.still_running(&walpost);
}

async fn budget(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(&insert(3, 5)).await;
    let rows = fixture.committed().await;
    let large = "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload) \
                 VALUES (md5('large')::uuid, 'order', '1', 'placed', to_jsonb(repeat('x', 5000000)))";
    fixture.postgres.execute(large).await;
    let id = fixture.postgres.query_text("SELECT md5('large')::uuid").await.expect("an id");
    let run = fixture.command("run").args(["--in-flight-bytes", "64KiB"]);
    let walpost = run.args(["-X", "message.max.bytes=100000000"]).start();
    halts(&report, &fixture, &walpost, &id, &rows).await;
}

async fn large(report: CaseReport, kind: &str) {
    let fixture = Fixture::empty().await.over(&table(kind)).await;
    let walpost = fixture.run().await;
    let client = fixture.postgres.client().await;
    let row = |id: u32, size: u32| {
        format!(
            "INSERT INTO public.outbox VALUES ({id}, 'order', 'k', 'e', repeat('x', {size})::{kind})"
        )
    };
    client.batch_execute(&row(1, 10)).await.expect("small");
    fixture.confirmed(SHORT_TIMEOUT).await;
    let good = fixture.postgres.wal_end().await;
    client.batch_execute(&row(271_828, LARGE_BYTES)).await.expect("large");
    let bad = fixture.postgres.wal_end().await;
    let mut peak = 0;
    walpost_bed::eventually(LONG_TIMEOUT, "it halts", async || {
        peak = walpost.peak_rss_bytes().unwrap_or(0).max(peak);
        walpost.wait(Duration::ZERO).await.is_some()
    })
    .await;
    // A bytea comes as text of twice its size.
    assert!(peak < 4 * u64::from(LARGE_BYTES), "{} MiB", peak >> 20);
    report.did(format!("{} MiB at the most", peak >> 20));
    let line = halts(&report, &fixture, &walpost, "271828", &[Row::new(1, "k")]).await;
    assert!(line.contains("message.max.bytes"), "{line}");
    assert!(fixture.has_confirmed(&good).await && !fixture.has_confirmed(&bad).await);
}
