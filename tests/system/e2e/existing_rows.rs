//! `walpost init --existing-rows`: rows from before the slot.

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, ended, insert, stop};
use walpost_bed::writer::Writer;
use walpost_bed::{Consumed, Major, Postgres, Walpost};

use super::state_topic::topic;

/// More than five runs can publish before they are killed.
const EXISTING_ROWS: u32 = 20_000;
const UNFINISHED: &str = "not all published yet";

/// An outbox without a slot, and a state topic that does not exist yet.
struct Before {
    fixture: Fixture,
    topic: String,
    delivery: &'static str,
}

impl Before {
    async fn new(delivery: &'static str) -> Self {
        let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
        fixture.postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
        let topic = topic(&fixture).await;
        Self { fixture, topic, delivery }
    }

    fn arguments(&self) -> [&str; 4] {
        ["--delivery", self.delivery, "--state-topic", &self.topic]
    }

    fn init(&self, points: &str) -> Walpost {
        let init = self.fixture.command("init").args(self.arguments());
        let init = init.args(["--apply", "--existing-rows", "--order-by", "n"]);
        // Several Kafka transactions.
        let init = init.env("WALPOST_DELIVERY_TRANSACTION_BYTES", "32KiB");
        init.env("FAILPOINTS", points).start()
    }

    /// `why`: after it was announced, and before the slot is made, there is none.
    async fn run_is_refused(&self, why: &str) {
        let (code, said) = self.fixture.run_to_its_end(&self.arguments()).await;
        assert!(code == Some(3) && said.contains(why), "{code:?}, not {why}: {said}");
    }
}

/// Rows of a transaction and of its savepoints, one of which is rolled back.
fn with_savepoints(count: u32) -> String {
    let row = insert(count, 3);
    format!("{row}; SAVEPOINT a; {row}; RELEASE a; SAVEPOINT b; {row}; ROLLBACK TO b; {row}")
}

async fn published_before_the_stream(delivery: &'static str) {
    let before = Before::new(delivery).await;
    let (fixture, postgres) = (&before.fixture, &before.fixture.postgres);
    postgres.execute(&insert(20_000, 50)).await;
    postgres.execute(&format!("BEGIN; {}; COMMIT", with_savepoints(10))).await;
    let writer = Writer::start(postgres, 200);
    writer.commits(50).await;
    // The slot is made when these have ended: with rows from before it in their snapshots.
    let open = postgres.client().await;
    open.batch_execute(&format!("BEGIN; {}", with_savepoints(20))).await.expect("it is open");
    let prepared = format!("BEGIN; {}; PREPARE TRANSACTION 'p'", with_savepoints(20));
    postgres.execute(&prepared).await;
    let init = before.init("");
    init.await_line("waits for the end of all transactions", LONG_TIMEOUT).await;
    open.batch_execute("COMMIT").await.expect("committed");
    postgres.execute("COMMIT PREPARED 'p'").await;
    let (code, said) = ended(&init).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(init.stdout().join("\n").contains("events published"), "{:?}", init.stdout());
    let walpost = fixture.run_with(&before.arguments()).await;
    writer.commits(50).await;
    fixture.judge_after(writer).await.assert_exact();
    stop(walpost).await;
    // Where it was read already, rows are compared with Kafka instead.
    let (code, said) = ended(&before.init("")).await;
    assert!(code == Some(3) && said.contains("walpost recover --all"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn existing_rows_are_published_before_the_stream_at_least_once() {
    published_before_the_stream("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_rows_are_published_before_the_stream_exactly_once() {
    published_before_the_stream("exactly-once").await;
}

async fn resumed_after_kills(delivery: &'static str) {
    let before = Before::new(delivery).await;
    let (fixture, postgres) = (&before.fixture, &before.fixture.postgres);
    postgres.execute(&insert(EXISTING_ROWS, 50)).await;
    let writer = Writer::start(postgres, 100);
    writer.commits(50).await;
    let status = before.init("existing_announced=return").wait(LONG_TIMEOUT).await;
    assert_eq!(status.expect("it dies").code(), None);
    before.run_is_refused("does not exist").await;
    // As an operator would do then: walpost has to know that there is more to do.
    fixture.init(&before.arguments()).await;
    before.run_is_refused(UNFINISHED).await;
    let mut points = vec!["rows_announced=return".to_owned()];
    for _ in 0..5 {
        // Rows are read slowly, so that most of them are not sent yet.
        let point = if delivery == "exactly-once" {
            // The first commit of a run announces it, without rows.
            format!("committed={}*off->return", fastrand::u32(1..6))
        } else {
            format!("acknowledged={}*off->return", fastrand::u32(1..1_000))
        };
        points.push(format!("row_batch=sleep(200);{point}"));
    }
    let mut published = Vec::new();
    for point in points {
        let init = before.init(&point);
        let status = init.wait(LONG_TIMEOUT).await.expect("it dies");
        assert_eq!(status.code(), None, "{point}: {:?}", init.stderr());
        before.run_is_refused(UNFINISHED).await;
        // A poller, for instance.
        let update = "UPDATE public.outbox SET event_type = 'seen' WHERE n % 50 = 1";
        postgres.execute(update).await;
        postgres.execute(&format!("BEGIN; {}; COMMIT", with_savepoints(5))).await;
        writer.commits(10).await;
        published.push(fixture.records().await.len());
    }
    // Each of the kills left a part of the rows.
    assert!(
        published[0] == 0 && published.last() < Some(&(EXISTING_ROWS as usize)),
        "{published:?}"
    );
    assert!(published.windows(2).filter(|two| two[0] < two[1]).count() >= 4, "{published:?}");
    let (code, said) = ended(&before.init("")).await;
    assert!(code == Some(0) || said.contains("walpost recover --all"), "{said}");
    let walpost = fixture.run_with(&before.arguments()).await;
    let verdict = fixture.judge_after(writer).await;
    if delivery == "exactly-once" {
        verdict.assert_exact();
    } else {
        // What a killed producer has sent can arrive after Kafka was read.
        verdict.assert_ok();
        assert!(verdict.duplicates.len() < 2_000, "{verdict}");
    }
    stop(walpost).await;
}

#[ignore = "long: make long"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_rows_are_continued_after_kills_at_least_once() {
    resumed_after_kills("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_rows_are_continued_after_kills_exactly_once() {
    resumed_after_kills("exactly-once").await;
}

/// A record without what differs between two rows.
fn shape(record: &Consumed) -> String {
    let own = ["id", "walpost.position"];
    let headers = record.headers.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    let headers: Vec<_> = headers.collect();
    format!("{:?} {:?} {:?} {headers:?}", record.topic, record.key, record.value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_rows_have_the_records_of_streamed_ones() {
    let before = Before::new("at-least-once").await;
    let (fixture, postgres) = (&before.fixture, &before.fixture.postgres);
    let further = "CREATE TYPE public.mood AS ENUM ('glad', 'so so');
                   CREATE TYPE public.pair AS (a text, b int);
                   CREATE DOMAIN public.blob AS bytea CHECK (octet_length(VALUE) < 9);
                   CREATE TYPE public.reach AS RANGE (subtype = float8);
                   ALTER TABLE public.outbox ADD flag boolean, ADD bytes bytea, ADD at timestamptz,
                   ADD padded character(5), ADD number double precision, ADD many text[],
                   ADD mood public.mood, ADD pair public.pair, ADD blob public.blob, ADD reach public.reach,
                   ADD moods public.mood[], ADD pairs public.pair[], ADD unused public.mood";
    postgres.execute(further).await;
    // Rows that the publication does not send are not published either.
    postgres
        .execute("ALTER PUBLICATION walpost SET TABLE public.outbox WHERE (aggregate_id <> 'no')")
        .await;
    let insert = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers,
                         flag, bytes, at, padded, number, many, mood, pair, blob, reach, moods, pairs)
                  VALUES ('order', 'k', 'placed', '{\"a\": 1.50}', '{\"h\": \"x\\ty\"}', true, '\\x00ff',
                          '2026-11-25 10:00:00.123456+05', 'ab', 0.1, '{\"a,b\",NULL}', 'so so',
                          '(\"x \"\"y\",7)', '\\x00ff', '[0.1,2)', '{\"so so\",NULL}', '{\"(,)\",\"(a,1)\"}'),
                         ('order', 'k', 'placed', 'null', NULL, NULL, NULL, 'infinity', '', 'NaN', '{}',
                          NULL, '(,)', NULL, 'empty', '{}', NULL),
                         ('order', 'no', 'placed', '1', NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                          NULL, NULL, NULL, NULL, NULL, NULL)";
    postgres.execute(insert).await;
    let placed = [
        "flag", "bytes", "at", "padded", "number", "many", "mood", "pair", "blob", "reach",
        "moods", "pairs",
    ];
    let place: Vec<_> = placed.iter().map(|column| format!("'{column}:header'")).collect();
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, format!("record.place = [{}]", place.join(", "))).expect("written");
    let config = ["--config", file.to_str().expect("UTF-8")];
    let init = fixture.command("init").args(before.arguments()).args(config);
    let (code, said) =
        ended(&init.args(["--apply", "--existing-rows", "--order-by", "n"]).start()).await;
    assert_eq!(code, Some(0), "{said}");
    let existing: Vec<_> = fixture.records().await.iter().map(shape).collect();
    assert_eq!(existing.len(), 2, "{existing:?}");
    let arguments = [&before.arguments()[..], &config].concat();
    let walpost = fixture.run_with(&arguments).await;
    postgres.execute(insert).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    let all: Vec<_> = fixture.records().await.iter().map(shape).collect();
    assert_eq!(all, [&existing[..], &existing[..]].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_the_slot_sends_and_that_are_gone_leave_none_out() {
    let before = Before::new("exactly-once").await;
    let (fixture, postgres) = (&before.fixture, &before.fixture.postgres);
    postgres.execute(&insert(5, 3)).await;
    let status = before.init("existing_announced=return").wait(LONG_TIMEOUT).await;
    assert_eq!(status.expect("it dies").code(), None);
    fixture.init(&before.arguments()).await;
    postgres.execute(&format!("{}; DELETE FROM public.outbox WHERE n > 5", insert(10, 3))).await;
    let init = before.init("");
    let (code, said) = ended(&init).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(init.stdout().join("\n").contains("5 events published"), "{:?}", init.stdout());
    assert_eq!(fixture.records().await.len(), 5);
}

/// They could not be told from those that are published, after an interruption.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_without_ids_are_reported_before_anything_is_announced() {
    let before = Before::new("exactly-once").await;
    let (fixture, postgres) = (&before.fixture, &before.fixture.postgres);
    postgres
        .execute("ALTER TABLE public.outbox DROP CONSTRAINT outbox_pkey, ALTER id DROP NOT NULL")
        .await;
    postgres.execute(&insert(5, 3)).await;
    postgres.execute("UPDATE public.outbox SET id = NULL WHERE n = 3").await;
    let (code, said) = ended(&before.init("")).await;
    assert!(code == Some(78) && said.contains("public.outbox has rows without an id"), "{said}");
    let slots = postgres.query_text("SELECT count(*) FROM pg_replication_slots").await;
    assert_eq!(slots.as_deref(), Some("0"));
    postgres.execute("DELETE FROM public.outbox WHERE id IS NULL").await;
    let (code, said) = ended(&before.init("")).await;
    assert_eq!((code, fixture.records().await.len()), (Some(0), 4), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_cannot_be_read_are_reported_before_anything_is_announced() {
    let mut before = Before::new("at-least-once").await;
    before.fixture.postgres.execute(&insert(5, 3)).await;
    before.fixture.postgres.execute("CREATE ROLE writer LOGIN REPLICATION").await;
    let owner = before.fixture.source.clone();
    before.fixture.source = before.fixture.postgres.url_for("writer");
    let (code, said) = ended(&before.init("")).await;
    assert!(
        code == Some(78) && said.contains("GRANT SELECT ON public.outbox TO writer"),
        "{code:?} {said}"
    );
    before.fixture.source = owner;
    let init = before.fixture.command("init").args(before.arguments());
    let init = init.args(["--apply", "--existing-rows", "--order-by", "number"]);
    let (code, said) = ended(&init.start()).await;
    assert!(code == Some(78) && said.contains("no column number"), "{code:?} {said}");
    // Nothing keeps what comes from now on from being published.
    before.fixture.init(&[&before.arguments()[..], &["--no-state"]].concat()).await;
    let adopt = before.fixture.command("adopt").args(before.arguments()).arg("--apply").start();
    let (code, said) = ended(&adopt).await;
    assert_eq!(code, Some(0), "{said}");
    let walpost = before.fixture.run_with(&before.arguments()).await;
    before.fixture.postgres.execute(&insert(2, 3)).await;
    before.fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    assert_eq!(before.fixture.records().await.len(), 2);
}
