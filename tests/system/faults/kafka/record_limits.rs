//! Records that the client or the broker can never accept (20, 21, 24).

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, insert};
use walpost_bed::oracle::judge;
use walpost_bed::{Kafka, Walpost};

use crate::case::{Case, CaseReport};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(20, "record_too_large_for_the_client_halts", for_the_client),
        Case::new(21, "record_too_large_for_the_topic_halts_in_order", |report| {
            for_the_topic(report, TooLarge { rows: 50, guilty: 25, properties: &[] })
        }),
        Case::new(21, "rejected_record_is_not_overtaken_by_requests_in_flight", |report| {
            for_the_topic(report, TooLarge { rows: 50, guilty: 25, properties: ONE_BY_ONE })
        }),
        Case::new(21, "rejected_first_record_is_not_overtaken_by_requests_in_flight", |report| {
            for_the_topic(report, TooLarge { rows: 50, guilty: 0, properties: ONE_BY_ONE })
        }),
        Case::new(21, "rejected_record_is_isolated_quickly_among_thousands", |report| {
            for_the_topic(report, TooLarge { rows: 4000, guilty: 2000, properties: &[] })
        }),
        Case::new(21, "first_of_two_rejected_records_is_named", two_rejected),
        Case::new(24, "timestamp_too_old_halts", |report| {
            bad_timestamp(report, "message.timestamp.before.max.ms", "now() - interval '2 days'")
        }),
        Case::new(24, "timestamp_too_new_halts", |report| {
            bad_timestamp(report, "message.timestamp.after.max.ms", "now() + interval '2 days'")
        }),
    ]
}

/// Each record in a request of its own, as many in flight as may be.
const ONE_BY_ONE: &[&str] =
    &["batch.num.messages=1", "linger.ms=0", "max.in.flight.requests.per.connection=5"];

/// It halts at row number `guilty`, which its one error names, with all before
/// it published, and the next start is there again.
async fn halts(
    report: &CaseReport,
    fixture: &Fixture,
    walpost: Walpost,
    guilty: usize,
    arguments: &[&str],
) -> String {
    let before = format!("SELECT id, aggregate_id FROM public.outbox ORDER BY n LIMIT {guilty}");
    let before = fixture.rows(&before).await;
    let query = format!("SELECT id FROM public.outbox ORDER BY n LIMIT 1 OFFSET {guilty}");
    let id = fixture.postgres.query_text(&query).await.expect("the guilty row");
    let mut error = String::new();
    let mut walpost = walpost;
    for start in 1..=2 {
        if start > 1 {
            walpost = fixture.command("run").args(arguments).start();
        }
        report.ends(&walpost, 4).await;
        let lines = walpost.stderr();
        error.clone_from(lines.last().expect("it said why"));
        assert!(error.contains(&id), "the event's id {id} in\n{error}");
        let mut words = error.split([' ', ',', ':', '"']);
        assert!(words.any(is_position), "a position in\n{error}");
        assert!(error.contains("pg_replication_slot_advance("), "the way out in\n{error}");
        report.ok(&judge(&before, std::iter::empty(), &fixture.records().await));
    }
    error
}

/// Whether this is a position in the form of the header `walpost.position`.
fn is_position(word: &str) -> bool {
    let hexadecimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = word.split_once('/').filter(|(lsn, ordinal)| (lsn.len(), ordinal.len()) == (16, 8));
    parts.is_some_and(|(lsn, ordinal)| hexadecimal(lsn) && hexadecimal(ordinal))
}

fn row(aggregate_id: &str, payload: &str) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('order', {aggregate_id}, 'placed', {payload})"
    )
}

/// An SQL expression for a payload that does not compress to less than this many bytes.
fn text_of(bytes: usize) -> String {
    let hashes = bytes / 32 + 1;
    format!(
        "(SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, {hashes}) AS i)"
    )
}

async fn for_the_client(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    for _ in 0..3 {
        fixture.postgres.execute(&insert(5, 3)).await;
    }
    let bad = row("'1'", &text_of(2_000_000));
    fixture.postgres.execute(&format!("{bad}; {}", insert(5, 3))).await;
    fixture.postgres.execute(&insert(5, 3)).await;
    let error = halts(&report, &fixture, walpost, 15, &[]).await;
    for word in ["too large", "message.max.bytes", &fixture.topic("order")] {
        assert!(error.contains(word), "{word:?} in\n{error}");
    }
}

/// A topic that accepts 20 kB, and rows of one key, one of them with 50 kB.
#[derive(Clone, Copy)]
struct TooLarge {
    rows: usize,
    guilty: usize,
    properties: &'static [&'static str],
}

/// In one transaction, and each row in its own.
async fn for_the_topic(report: CaseReport, case: TooLarge) {
    for one_transaction in [true, false] {
        if one_transaction || case.rows < 1000 {
            in_transactions(&report, case, one_transaction).await;
        }
    }
}

async fn in_transactions(report: &CaseReport, case: TooLarge, one_transaction: bool) {
    let fixture = Fixture::new().await;
    let topic = fixture.topic("order");
    let limit = [("max.message.bytes", "20000")];
    Kafka::shared().await.create_topic_with(&topic, 1, &limit).await;
    let rows = (0..case.rows).map(|number| {
        let payload = if number == case.guilty { text_of(50_000) } else { format!("'{number}'") };
        row("'1'", &payload) + ";"
    });
    let rows: Vec<String> = rows.collect();
    if one_transaction {
        fixture.postgres.execute(&format!("BEGIN;{}COMMIT", rows.concat())).await;
    } else {
        let client = fixture.postgres.client().await;
        for row in &rows {
            client.batch_execute(row).await.expect("it is written");
        }
    }
    let arguments: Vec<&str> = case.properties.iter().flat_map(|one| ["-X", one]).collect();
    let walpost = fixture.command("run").args(&arguments).start();
    let error = halts(report, &fixture, walpost, case.guilty, &arguments).await;
    for word in ["too large", "max.message.bytes", &topic] {
        assert!(error.contains(word), "{word:?} in\n{error}");
    }
}

async fn two_rejected(report: CaseReport) {
    let fixture = Fixture::new().await;
    let limit = [("max.message.bytes", "20000")];
    Kafka::shared().await.create_topic_with(&fixture.topic("order"), 1, &limit).await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&row("'1'", "'0'")).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let rows = [("'1'", text_of(50_000)), ("'1'", "'2'".into()), ("NULL", "'3'".into())];
    let rows = rows.map(|(key, payload)| row(key, &payload));
    fixture.postgres.execute("ALTER TABLE public.outbox ALTER aggregate_id DROP NOT NULL").await;
    fixture.postgres.execute(&rows.join(";")).await;
    let error = halts(&report, &fixture, walpost, 1, &[]).await;
    assert!(!error.contains("aggregate_id"), "{error}");
}

/// The topic accepts timestamps that are at most an hour from the broker's clock.
async fn bad_timestamp(report: CaseReport, setting: &'static str, bad: &'static str) {
    let fixture = Fixture::new().await;
    let topic = fixture.topic("order");
    Kafka::shared().await.create_topic_with(&topic, 1, &[(setting, "3600000")]).await;
    fixture.postgres.execute("ALTER TABLE outbox ADD COLUMN at timestamptz DEFAULT now()").await;
    let file = fixture.postgres.data_dir().join("walpost.toml");
    let text = "[outbox.columns]\ntimestamp = \"at\"\n[record]\ntimestamp = \"column\"\n";
    std::fs::write(&file, text).expect("it is writable");
    let fixture = fixture.option("--config", &file.display().to_string());
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(30, 3)).await;
    let guilty = format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, at) \
         VALUES ('order', '1', 'placed', '{{}}', {bad})"
    );
    let good = insert(10, 3);
    fixture.postgres.execute(&format!("BEGIN; {good}; {guilty}; {good}; COMMIT")).await;
    let error = halts(&report, &fixture, walpost, 40, &[]).await;
    for word in ["timestamp", setting, &topic] {
        assert!(error.contains(word), "{word:?} in\n{error}");
    }
    // The printed fix: the topic accepts it, and the next start continues.
    Kafka::shared().await.administration().set(&topic, setting, "864000000").await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    report.ok(&fixture.judge().await);
    report.still_running(&walpost);
}
