//! `walpost prune`: no row is deleted before its event is in Kafka.

use walpost_bed::fixture::{
    AGREES, Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, counted, ended, insert, stop,
};
use walpost_bed::oracle::{self, Row};
use walpost_bed::writer::Writer;
use walpost_bed::{Major, Postgres, Stop, Walpost, WalpostBuilder, eventually};

use super::state_topic::{newest_state, topic};

/// An idle server tells only twice a minute how far it is.
pub const WAL: &str = "SELECT pg_logical_emit_message(true, '', '')";

/// An outbox with a state topic, and a copy of all rows, deleted or not.
pub struct Kept {
    pub fixture: Fixture,
    pub topic: String,
    pub delivery: &'static str,
}

impl Kept {
    pub async fn new(delivery: &'static str) -> Self {
        Self::on(Major::V15, delivery).await
    }

    pub(crate) async fn on(major: Major, delivery: &'static str) -> Self {
        let fixture = Fixture::with(Postgres::builder(major).own_identity()).await;
        Self::over(fixture, delivery).await
    }

    pub async fn over(fixture: Fixture, delivery: &'static str) -> Self {
        let topic = topic(&fixture).await;
        fixture.adopt(&topic).await;
        fixture.keep_log().await;
        Self { fixture, topic, delivery }
    }

    pub fn arguments(&self) -> [&str; 4] {
        ["--delivery", self.delivery, "--state-topic", &self.topic]
    }

    pub async fn run(&self) -> Walpost {
        self.run_with(&[]).await
    }

    /// With further arguments.
    async fn run_with(&self, arguments: &[&str]) -> Walpost {
        let run = self.fixture.command("run").args(self.arguments()).args(arguments);
        let walpost = run.env("FAILPOINTS", "frequent_bookmarks=return").start();
        walpost.await_line(AGREES, LONG_TIMEOUT).await;
        // Rows that are written before it has noted where its own begin are from before the slot.
        eventually(LONG_TIMEOUT, "it has noted where its rows begin", async || {
            self.fixture.postgres.execute(WAL).await;
            newest_state(&self.fixture, &self.topic).await?["delivered"].as_object().map(drop)
        })
        .await;
        walpost
    }

    /// The slot says that every row is delivered that is there now.
    pub async fn delivered(&self) {
        self.fixture.slot_has_all().await;
    }

    /// A prune that is to be started.
    pub fn pruning(&self) -> WalpostBuilder {
        self.fixture.command("prune").args(["--state-topic", &self.topic])
    }

    /// The exit code, and what is printed.
    pub async fn prune(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let prune = self.pruning();
        let prune = prune.args(arguments).start();
        let (code, said) = ended(&prune).await;
        (code, format!("{}\n{said}", prune.stdout().join("\n")))
    }

    pub async fn left(&self) -> u64 {
        let count = self.fixture.postgres.query_text("SELECT count(*) FROM public.outbox").await;
        count.expect("a count").parse().expect("a number")
    }

    /// All rows that ever were, in commit order for each key.
    pub async fn all(&self) -> Vec<Row> {
        self.fixture.logged().await
    }

    /// Every row that is deleted is in Kafka; returns how many are.
    pub async fn deleted_ones_are_published(&self) -> usize {
        self.fixture.deleted_ones_are_among(&self.fixture.records().await).await
    }
}

async fn only_delivered_rows_are_deleted(delivery: &'static str) {
    let kept = Kept::new(delivery).await;
    let postgres = &kept.fixture.postgres;
    let walpost = kept.run().await;
    postgres.execute(&insert(200, 5)).await;
    let young = insert(100, 5).replace("payload)", "payload, created_at)");
    let young = young.replace("('i', i)", "('i', i), now() + interval '1 h'");
    postgres.execute(&young).await;
    kept.delivered().await;
    walpost.pause();
    postgres.execute(&insert(50, 5)).await;
    let (code, said) = kept.prune(&["--dry-run", "--older-than", "0s"]).await;
    assert_eq!(code, Some(0), "{said}");
    let counts = ["to be deleted", "younger, or without a time", "old, and not proved"];
    let counts = counts.map(|what| counted(&said.replace(" to be delivered", ""), what));
    assert_eq!((counts, kept.left().await), ([200, 100, 50], 350), "{said}");
    let few = ["--older-than", "0s", "--batch", "30", "--sleep", "0ms"];
    let (code, said) = kept.prune(&few).await;
    assert!(code == Some(0) && said.contains("public.outbox: 200 rows deleted"), "{said}");
    assert_eq!((kept.left().await, kept.deleted_ones_are_published().await), (150, 200));
    walpost.resume();
    kept.delivered().await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("public.outbox: 50 rows deleted"), "{said}");
    assert_eq!((kept.left().await, kept.deleted_ones_are_published().await), (100, 250));
    stop(walpost).await;
    // Nobody has compared the server that runs now with the state topic.
    assert!(kept.fixture.postgres.stop(Stop::Fast, SHORT_TIMEOUT).await, "it stops");
    kept.fixture.postgres.start_again().await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(1) && said.contains("has not compared this server"), "{said}");
    let records = kept.fixture.records().await;
    oracle::judge(&kept.all().await, std::iter::empty(), &records).assert_exact();
}

/// walpost has compared the server once it delivers again, without being started again itself.
async fn restarted_server_is_compared(delivery: &'static str) {
    let kept = Kept::new(delivery).await;
    let walpost = kept.run().await;
    let mut deleted = 0;
    for how in [Stop::Fast, Stop::Immediate, Stop::Fast] {
        kept.fixture.postgres.execute(&insert(20, 5)).await;
        kept.fixture.confirmed(LONG_TIMEOUT).await;
        kept.fixture.postgres.stop(how, SHORT_TIMEOUT).await;
        kept.fixture.postgres.start_again().await;
        kept.fixture.postgres.execute(&insert(20, 5)).await;
        kept.delivered().await;
        deleted += 40;
        let (code, said) = kept.prune(&["--older-than", "0s"]).await;
        assert!(code == Some(0) && said.contains("40 rows deleted"), "{how:?}: {said}");
        assert_eq!(kept.deleted_ones_are_published().await, deleted);
    }
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn restarted_server_is_compared_at_least_once() {
    restarted_server_is_compared("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_is_compared_exactly_once() {
    restarted_server_is_compared("exactly-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn only_delivered_rows_are_deleted_at_least_once() {
    only_delivered_rows_are_deleted("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_delivered_rows_are_deleted_exactly_once() {
    only_delivered_rows_are_deleted("exactly-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_from_before_the_slot_are_kept_even_if_they_are_updated() {
    let kept = Kept::new("at-least-once").await;
    let postgres = &kept.fixture.postgres;
    postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    postgres.execute(&insert(20, 5)).await;
    kept.fixture.init(&[]).await;
    kept.fixture.adopt(&kept.topic).await;
    let walpost = kept.run().await;
    kept.delivered().await;
    // A poller, for instance.
    postgres.execute("UPDATE public.outbox SET event_type = 'seen' WHERE n % 2 = 0").await;
    postgres.execute(&insert(10, 5)).await;
    kept.delivered().await;
    let (code, said) = kept.prune(&["--dry-run", "--older-than", "0s"]).await;
    let counts = ["to be deleted", "from before the slot"].map(|what| counted(&said, what));
    assert_eq!((code, counts), (Some(0), [10, 20]), "{said}");
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("10 rows deleted"), "{said}");
    assert_eq!((kept.left().await, kept.deleted_ones_are_published().await), (20, 10));
    let (code, said) = kept.prune(&["--older-than", "0s", "--include-before-slot"]).await;
    assert!(code == Some(0) && said.contains("20 rows deleted"), "{said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_consumers_of_the_database_keep_their_rows() {
    let kept = Kept::new("at-least-once").await;
    let postgres = &kept.fixture.postgres;
    let other = "SELECT pg_create_logical_replication_slot('other', 'test_decoding')";
    postgres.execute(other).await;
    let walpost = kept.run().await;
    postgres.execute(&insert(10, 5)).await;
    kept.delivered().await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(1) && said.contains("\"other\" has not confirmed"), "{said}");
    // Some of it. At each call the slot takes a transaction id from before the last position.
    let advance = "SELECT pg_replication_slot_advance('other', pg_current_wal_lsn())";
    postgres.execute(advance).await;
    postgres.execute(advance).await;
    postgres.execute(&insert(20, 5)).await;
    kept.delivered().await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("newer rows are kept"), "{said}");
    assert_eq!(kept.left().await, 20, "{said}");
    let (code, said) = kept.prune(&["--older-than", "0s", "--ignore-slot", "other"]).await;
    assert!(code == Some(0) && said.contains("20 rows deleted"), "{said}");
    kept.deleted_ones_are_published().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_archived_whole_or_kept() {
    let kept = Kept::new("at-least-once").await;
    let postgres = &kept.fixture.postgres;
    let tables = "ALTER TABLE public.outbox
                    ADD twice bigint GENERATED ALWAYS AS (n * 2) STORED,
                    ADD counted bigint GENERATED ALWAYS AS IDENTITY;
                  CREATE SCHEMA audit;
                  CREATE TABLE audit.\"Old rows\" (LIKE public.outbox INCLUDING ALL EXCLUDING GENERATED, at timestamptz DEFAULT now());
                  CREATE FUNCTION audit.drop() RETURNS trigger LANGUAGE plpgsql AS
                  'BEGIN RETURN CASE WHEN NEW.n % 7 = 0 THEN NULL ELSE NEW END; END';
                  CREATE TRIGGER picky BEFORE INSERT ON audit.\"Old rows\"
                         FOR EACH ROW EXECUTE FUNCTION audit.drop()";
    postgres.execute(tables).await;
    let walpost = kept.run().await;
    postgres.execute(&insert(30, 5)).await;
    kept.delivered().await;
    let before = postgres.query_rows("SELECT o::text FROM public.outbox o ORDER BY n").await;
    let archive = ["--older-than", "0s", "--archive-to", "audit.\"Old rows\""];
    let (code, said) = kept.prune(&archive).await;
    assert!(code == Some(1) && said.contains("only 26 of 30 rows"), "{said}");
    assert_eq!(kept.left().await, 30, "{said}");
    postgres.execute("DROP TRIGGER picky ON audit.\"Old rows\"").await;
    // PostgreSQL would calculate its values anew.
    let archived = ["--archive-to", "audit.\"Calculated\"", "--older-than", "0s"];
    let like = "CREATE TABLE audit.\"Calculated\" (LIKE public.outbox INCLUDING GENERATED)";
    postgres.execute(like).await;
    let (code, said) = kept.prune(&archived).await;
    assert!(code == Some(78) && said.contains("generated columns"), "{code:?} {said}");
    let (code, said) = kept.prune(&archive).await;
    assert!(code == Some(0) && said.contains("30 rows archived"), "{said}");
    assert_eq!(kept.left().await, 0);
    let columns =
        "id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, n, twice,
                   counted";
    let after =
        format!("SELECT r::text FROM (SELECT {columns} FROM audit.\"Old rows\") r ORDER BY n");
    let after = postgres.query_rows(&after.replace("ORDER BY n", "ORDER BY r.n")).await;
    assert_eq!(after, before);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_rows_are_left_to_the_next_run() {
    let kept = Kept::new("at-least-once").await;
    let postgres = &kept.fixture.postgres;
    let walpost = kept.run().await;
    postgres.execute(&insert(10, 5)).await;
    kept.delivered().await;
    let other = postgres.client().await;
    let lock = "BEGIN; SELECT FROM public.outbox WHERE n = 3 FOR UPDATE";
    other.batch_execute(lock).await.expect("locked");
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("1 rows were left to the next run"), "{said}");
    assert_eq!(kept.left().await, 1, "{said}");
    other.batch_execute("ROLLBACK").await.expect("unlocked");
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(0) && said.contains("1 rows deleted"), "{said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_deleted_on_a_restored_server() {
    let kept = Kept::new("exactly-once").await;
    let postgres = &kept.fixture.postgres;
    let walpost = kept.run().await;
    postgres.execute(&insert(10, 5)).await;
    kept.delivered().await;
    stop(walpost).await;
    assert!(postgres.stop(Stop::Fast, SHORT_TIMEOUT).await, "it stops");
    let saved = postgres.snapshot_data();
    postgres.start_again().await;
    let walpost = kept.run().await;
    postgres.execute(&insert(500, 5)).await;
    kept.delivered().await;
    stop(walpost).await;
    assert!(postgres.stop(Stop::Fast, SHORT_TIMEOUT).await, "it stops");
    postgres.restore_data(&saved);
    postgres.start_again().await;
    // Rows with the transaction ids and positions of those that are lost.
    for _ in 0..30 {
        postgres.execute(&insert(20, 5)).await;
    }
    let refused = async || {
        let (code, said) = kept.prune(&["--older-than", "0s"]).await;
        assert!(code == Some(1) && said.contains("has not compared this server"), "{said}");
    };
    refused().await;
    // An operator follows the runbook: a new slot, and a look at what is missing.
    postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    kept.fixture.init(&[]).await;
    refused().await;
    let recover = kept.fixture.command("recover").args(kept.arguments()).args(["--since", "now"]);
    ended(&recover.start()).await;
    refused().await;
    let (code, _) = kept.fixture.run_to_its_end(&kept.arguments()).await;
    assert_eq!(code, Some(3));
    refused().await;
    assert!(kept.left().await >= 600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_from_before_their_table_was_published_are_kept() {
    let kept = Kept::new("at-least-once").await;
    let postgres = &kept.fixture.postgres;
    postgres.execute("CREATE TABLE public.more (LIKE public.outbox INCLUDING ALL)").await;
    let walpost = kept.run().await;
    postgres.execute(&insert(40, 5).replace("public.outbox", "public.more")).await;
    postgres.execute(&insert(20, 5)).await;
    kept.delivered().await;
    stop(walpost).await;
    let both = ["--table", "public.outbox", "--table", "public.more", "--older-than", "0s"];
    let (code, said) = kept.prune(&both).await;
    assert!(code == Some(78) && said.contains("public.more"), "{code:?} {said}");
    postgres.execute("ALTER PUBLICATION walpost ADD TABLE public.more").await;
    let (code, said) = kept.prune(&both).await;
    assert!(code == Some(1) && said.contains("is not that with which"), "{code:?} {said}");
    let layout = async || {
        newest_state(&kept.fixture, &kept.topic).await.map(|state| state["layout"].clone())
    };
    let before = layout().await;
    let walpost = kept.run_with(&both[..4]).await;
    eventually(LONG_TIMEOUT, "it has noted where the rows of the other table begin", async || {
        postgres.execute(WAL).await;
        (layout().await != before).then_some(())
    })
    .await;
    postgres.execute(&insert(5, 5).replace("public.outbox", "public.more")).await;
    kept.delivered().await;
    let (code, said) = kept.prune(&both).await;
    assert!(code == Some(0) && said.contains("public.more: 5 rows deleted"), "{said}");
    let left = postgres.query_text("SELECT count(*) FROM public.more").await;
    assert_eq!(left.as_deref(), Some("40"), "{said}");
    let (code, said) = kept.prune(&["--table", "public.outbox", "--older-than", "0s"]).await;
    assert!(code == Some(1) && said.contains("is not that with which"), "{code:?} {said}");
    let archive = [&both[..], &["--archive-to", "public.more"]].concat();
    let (code, said) = kept.prune(&archive).await;
    assert!(code == Some(78) && said.contains("cannot be the archive"), "{code:?} {said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_events_that_may_be_skipped_are_kept() {
    let kept = Kept::new("at-least-once").await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    std::fs::write(&file, "poison.missing_field = 'skip'").expect("written");
    let config = ["--config", file.to_str().expect("UTF-8")];
    let walpost = kept.run_with(&config).await;
    kept.fixture.postgres.execute(&insert(5, 5)).await;
    kept.delivered().await;
    stop(walpost).await;
    let (code, said) = kept.prune(&["--older-than", "0s"]).await;
    assert!(code == Some(1) && said.contains("may have been skipped"), "{code:?} {said}");
    let (code, said) = kept.prune(&["--older-than", "0s", "--include-skipped"]).await;
    assert!(code == Some(0) && said.contains("5 rows deleted"), "{said}");
}

async fn nothing_undelivered_is_deleted_under_load(delivery: &'static str, rounds: u32) {
    let kept = Kept::new(delivery).await;
    let postgres = &kept.fixture.postgres;
    let writer = Writer::start(postgres, 200);
    let mut walpost = kept.run().await;
    let mut deleted = 0;
    for round in 0..rounds {
        writer.commits(40).await;
        match round % 4 {
            0 => kept.delivered().await,
            1 => walpost.pause(),
            2 => walpost.resume(),
            _ => walpost.kill9().await,
        }
        let (code, said) = kept.prune(&["--older-than", "0s", "--sleep", "1ms"]).await;
        assert_eq!(code, Some(0), "{said}");
        deleted = kept.deleted_ones_are_published().await;
        if round % 4 == 3 {
            walpost = kept.run().await;
        }
    }
    assert!(deleted > 100, "only {deleted} rows were deleted");
    let rolled_back = writer.stop().await;
    kept.fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    let records = kept.fixture.records().await;
    let rolled_back = rolled_back.iter().map(String::as_str);
    let verdict = oracle::judge(&kept.all().await, rolled_back, &records);
    if delivery == "exactly-once" { verdict.assert_exact() } else { verdict.assert_ok() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn nothing_undelivered_is_deleted_under_load_at_least_once() {
    nothing_undelivered_is_deleted_under_load("at-least-once", 12).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_undelivered_is_deleted_under_load_exactly_once() {
    nothing_undelivered_is_deleted_under_load("exactly-once", 12).await;
}
