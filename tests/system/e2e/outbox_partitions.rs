//! A partitioned outbox: `walpost init --partition-by` creates it, and `walpost prune` makes and drops
//! partitions. No row is dropped before its event is in Kafka, and no writer waits long or fails.

mod changes;
mod load;
mod locks;
mod managed;
mod obstacles;
mod periods;
mod setup;

use std::time::{Duration, Instant};

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, stop};
use walpost_bed::oracle;
use walpost_bed::{Kafka, Major, Postgres, Walpost, eventually};

use super::prune::Kept;

/// A table as `init --partition-by` creates it, with periods of some seconds, `count` of them from now
/// on.
pub fn with_periods(seconds: u32, count: u32) -> String {
    format!(
        "CREATE TABLE public.outbox (
             id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
             aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, headers jsonb,
             created_at timestamptz NOT NULL DEFAULT now(), n bigserial, PRIMARY KEY (id, created_at)
         ) PARTITION BY RANGE (created_at);
         DO $$ DECLARE at timestamptz := date_trunc('second', now()); BEGIN
             FOR i IN 1..{count} LOOP
                 EXECUTE format('CREATE TABLE public.first_%s PARTITION OF public.outbox
                                     FOR VALUES FROM (%L) TO (%L)', i, at, at + interval '{seconds} s');
                 at := at + interval '{seconds} s';
             END LOOP;
         END $$;
         CREATE TABLE public.outbox_default PARTITION OF public.outbox DEFAULT"
    )
}

/// A partitioned outbox with a state topic.
pub struct Parts {
    pub kept: Kept,
}

impl Parts {
    pub async fn with_periods(seconds: u32, count: u32, delivery: &'static str) -> Self {
        Self::over(&with_periods(seconds, count), delivery).await
    }

    /// A table that this SQL creates.
    pub async fn over(table: &str, delivery: &'static str) -> Self {
        let postgres = Postgres::builder(Major::V15).own_identity().start().await;
        let fixture = Fixture::bare(postgres, &Kafka::shared().await.bootstrap());
        Self { kept: Kept::over(fixture.over(table).await, delivery).await }
    }

    /// With periods of three seconds, the oldest of which is over and has 20 delivered rows.
    pub async fn with_an_old_one() -> (Self, Walpost, String) {
        let parts = Self::with_periods(3, 60, "at-least-once").await;
        let walpost = parts.kept.run().await;
        let first = parts.insert(20).await;
        parts.is_oldest(&first).await;
        parts.kept.delivered().await;
        parts.is_over(&first).await;
        (parts, walpost, first)
    }

    pub fn postgres(&self) -> &Postgres {
        &self.kept.fixture.postgres
    }

    /// Inserts rows; the partition of the last one.
    pub async fn insert(&self, count: u32) -> String {
        self.postgres().execute(&insert(count, 5)).await;
        let query = "SELECT tableoid::regclass FROM public.outbox ORDER BY n DESC LIMIT 1";
        self.postgres().query_text(query).await.expect("a row")
    }

    /// The period of a partition is over.
    pub async fn is_over(&self, partition: &str) {
        let query = format!(
            "SELECT substring(pg_get_expr(relpartbound, oid) from 'TO [(]''(.*)''[)]')::timestamptz <= now()
               FROM pg_class WHERE oid = '{partition}'::regclass"
        );
        eventually(SHORT_TIMEOUT, "the period is over", async || {
            self.postgres().query_text(&query).await.as_deref() == Some("t")
        })
        .await;
    }

    /// Drops the partitions before this one, which have no rows.
    pub async fn is_oldest(&self, partition: &str) {
        let number = partition.strip_prefix("first_").expect("one of the first");
        let sql = format!(
            "DO $$ BEGIN FOR i IN 1..{number} - 1 LOOP
                 EXECUTE format('DROP TABLE public.first_%s', i);
             END LOOP; END $$"
        );
        self.postgres().execute(&sql).await;
    }

    pub async fn exists(&self, partition: &str) -> bool {
        let query = format!("SELECT to_regclass('{partition}') IS NOT NULL");
        self.postgres().query_text(&query).await.as_deref() == Some("t")
    }

    pub async fn count(&self) -> u32 {
        let query = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'public.outbox'::regclass";
        let count = self.postgres().query_text(query).await.expect("a count");
        count.parse().expect("a number")
    }

    pub async fn prune(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let ahead = "--partitions-ahead";
        let default = if arguments.contains(&ahead) { &[][..] } else { &[ahead, "60s"] };
        let arguments = [&["--older-than", "0s"], default, arguments].concat();
        self.kept.prune(&arguments).await
    }

    /// What the consumer read is what was ever committed.
    pub async fn is_exact(&self) {
        self.kept.fixture.confirmed(LONG_TIMEOUT).await;
        let records = self.kept.fixture.records().await;
        oracle::judge(&self.kept.all().await, std::iter::empty(), &records).assert_exact();
    }
}

/// Inserts a row with a key that no other session writes.
pub fn insert_of(key: &str) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
         VALUES ('order', '{key}', 'placed', '1');"
    )
}

/// Inserts rows one after the other, until it is told to stop; the longest that one took.
pub struct Prober {
    stop: tokio::sync::oneshot::Sender<()>,
    task: tokio::task::JoinHandle<(Duration, u32)>,
}

impl Prober {
    pub async fn start(postgres: &Postgres) -> Self {
        let client = postgres.client().await;
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            let (mut slowest, mut count) = (Duration::ZERO, 0);
            while stopped.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
                let began = Instant::now();
                client.batch_execute(&insert_of("prober")).await.expect("no writer fails");
                slowest = slowest.max(began.elapsed());
                count += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            (slowest, count)
        });
        Self { stop, task }
    }

    /// The slowest insert, and how many there were.
    pub async fn stop(self) -> (Duration, u32) {
        self.stop.send(()).expect("it still writes");
        self.task.await.expect("no writer fails")
    }
}

async fn delivered_partitions_are_dropped(delivery: &'static str) {
    let parts = Parts::with_periods(3, 20, delivery).await;
    let walpost = parts.kept.run().await;
    let first = parts.insert(200).await;
    parts.kept.delivered().await;
    parts.is_over(&first).await;
    walpost.pause();
    let second = parts.insert(50).await;
    assert_ne!(first, second);
    parts.is_over(&second).await;
    let before = parts.count().await;
    let ahead = ["--partitions-ahead", "90s"];
    let (code, said) = parts.prune(&[&ahead[..], &["--dry-run"]].concat()).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("{first}: partition with 200 rows would be dropped")), "{said}");
    let left = format!("{second}: partition left: 50 rows are not proved to be delivered");
    assert!(said.contains(&left) && said.contains("partition would be made"), "{said}");
    assert_eq!(parts.count().await, before, "a dry run changes nothing");
    let (code, said) = parts.prune(&ahead).await;
    assert!(code == Some(0) && said.contains(&left), "{code:?} {said}");
    assert!(said.contains(&format!("{first}: partition with 200 rows dropped")), "{said}");
    let made = said.matches("partition made").count();
    assert!(made >= 10 && said.contains("outbox_p20"), "{said}");
    assert!(!parts.exists(&first).await && parts.exists(&second).await, "{said}");
    assert_eq!(parts.kept.deleted_ones_are_published().await, 200);
    walpost.resume();
    parts.kept.delivered().await;
    let (code, said) = parts.prune(&ahead).await;
    assert!(code == Some(0) && !parts.exists(&second).await, "{code:?} {said}");
    assert_eq!(parts.kept.deleted_ones_are_published().await, 250);
    // A partition that prune made has rows.
    eventually(LONG_TIMEOUT, "a row comes into a partition that was made", async || {
        parts.insert(1).await.contains("outbox_p20")
    })
    .await;
    parts.is_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_partitions_are_dropped_at_least_once() {
    delivered_partitions_are_dropped("at-least-once").await;
}

#[ignore = "long: make long"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_partitions_are_dropped_exactly_once() {
    delivered_partitions_are_dropped("exactly-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_row_of_a_partition_is_archived_once_and_then_it_is_dropped() {
    let parts = Parts::with_periods(3, 30, "at-least-once").await;
    let archive = "CREATE TABLE public.archive (LIKE public.outbox, at timestamptz DEFAULT now());
         CREATE FUNCTION public.lose() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN RETURN CASE WHEN NEW.n % 7 = 0 THEN NULL ELSE NEW END; END';
         CREATE TRIGGER picky BEFORE INSERT ON public.archive FOR EACH ROW EXECUTE FUNCTION public.lose()";
    parts.postgres().execute(archive).await;
    let walpost = parts.kept.run().await;
    let first = parts.insert(30_000).await;
    parts.kept.delivered().await;
    parts.is_over(&first).await;
    let query = "SELECT md5(string_agg(o::text, ' ' ORDER BY n)) FROM public.outbox o";
    let before = parts.postgres().query_text(query).await;
    let to = ["--archive-to", "public.archive"];
    let (code, said) = parts.prune(&to).await;
    assert!(code == Some(1) && said.contains("rows: they were not deleted"), "{code:?} {said}");
    assert!(parts.exists(&first).await && parts.kept.left().await == 30_000, "{said}");
    let (code, said) = parts.prune(&["--archive-to", &first]).await;
    assert!(code == Some(78) && said.contains("partitions of one table"), "{code:?} {said}");
    parts.postgres().execute("DROP TRIGGER picky ON public.archive").await;
    // Killed after the first transaction.
    let prune = parts.kept.pruning();
    let prune = prune.args(["--older-than", "0s", "--batch", "10000", "--sleep", "1h"]);
    let prune = prune.args(["--partitions-ahead", "0s"]);
    let prune = prune.args(to).start();
    let archived = "SELECT count(*) FROM public.archive";
    eventually(LONG_TIMEOUT, "some rows are archived", async || {
        parts.postgres().query_text(archived).await.as_deref() != Some("0")
    })
    .await;
    prune.kill9().await;
    assert!(parts.exists(&first).await);
    let left = parts.kept.left().await;
    assert!((1..30_000).contains(&left), "{left}");
    let (code, said) = parts.prune(&to).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&format!("{first}: partition with {left} rows archived and dropped")),
        "{said}"
    );
    assert!(!parts.exists(&first).await, "{said}");
    let query = "SELECT md5(string_agg(o::text, ' ' ORDER BY n)) FROM
                     (SELECT id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, n
                        FROM public.archive) o";
    assert_eq!(parts.postgres().query_text(query).await, before);
    parts.is_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_from_before_a_partition_was_attached_are_kept() {
    attached_rows_are_kept(false).await;
}

/// All rows of the table are published then, and those of other tables are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_from_before_a_partition_was_attached_are_kept_after_a_recovery() {
    attached_rows_are_kept(true).await;
}

async fn attached_rows_are_kept(recovers: bool) {
    let parts = Parts::with_periods(4, 1, "at-least-once").await;
    let postgres = parts.postgres();
    postgres.execute("DROP TABLE public.outbox_default").await;
    if recovers {
        let recover = parts.kept.fixture.command("recover").args(parts.kept.arguments());
        let (code, said) = ended(&recover.args(["--all", "--apply"]).start()).await;
        assert_eq!(code, Some(0), "{said}");
    }
    let walpost = parts.kept.run().await;
    // A later period, however long that took; it begins as the others do.
    let begin = "SELECT (first + (1 + floor(greatest(0, extract(epoch FROM now() - first)) / 4)) * interval '4 s')::text
                   FROM (SELECT substring(pg_get_expr(relpartbound, oid) from 'TO [(]''(.*)''[)]')::timestamptz
                           FROM pg_class WHERE relname = 'first_1') AS of (first)";
    let begin = postgres.query_text(begin).await.expect("the first one has an end");
    let fill = format!(
        "CREATE TABLE public.filled (LIKE public.outbox INCLUDING DEFAULTS);
         INSERT INTO public.filled (aggregate_type, aggregate_id, event_type, created_at)
         SELECT 'order', i, 'placed', '{begin}' FROM generate_series(1, 10) i"
    );
    postgres.execute(&fill).await;
    let attach = format!(
        "DO $$ BEGIN EXECUTE format(
             'ALTER TABLE public.outbox ATTACH PARTITION public.filled FOR VALUES FROM (%L) TO (%L)',
             timestamptz '{begin}', timestamptz '{begin}' + interval '4 s'); END $$"
    );
    postgres.execute(&attach).await;
    eventually(SHORT_TIMEOUT, "a row comes into that partition", async || {
        postgres.query_text("SELECT now() >= max(created_at) FROM public.filled").await.as_deref()
            == Some("t")
    })
    .await;
    assert_eq!(parts.insert(5).await, "filled");
    parts.kept.delivered().await;
    parts.is_over("filled").await;
    let (code, said) = parts.prune(&[]).await;
    let left =
        "filled: partition left: 10 rows are from before the slot, or from before it was attached";
    assert!(code == Some(0) && said.contains(left), "{code:?} {said}");
    let (code, said) = parts.prune(&["--delete-rows"]).await;
    assert!(code == Some(0) && said.contains("public.filled: 5 rows deleted"), "{code:?} {said}");
    let (code, said) = parts.prune(&["--include-before-slot"]).await;
    assert!(code == Some(0) && said.contains("partition with 10 rows dropped"), "{code:?} {said}");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_prune_leaves_a_partition_whole_or_dropped() {
    let (parts, walpost, first) = Parts::with_an_old_one().await;
    let dying = async |point: &str| {
        let prune = parts.kept.pruning().args(["--older-than", "0s"]);
        let prune = prune.args(["--partitions-ahead", "60s"]);
        let prune = prune.env("FAILPOINTS", point).start();
        let status = prune.wait(SHORT_TIMEOUT).await.expect("it dies");
        assert_eq!(status.code(), None, "{:?}", prune.stderr());
    };
    dying("partition_checked=return").await;
    assert!(parts.exists(&first).await && parts.kept.left().await == 20);
    // Nobody is locked out once the server has noticed.
    let late = format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, created_at)
                        SELECT 'order', 'late', 'placed', created_at FROM {first} LIMIT 1"
    );
    parts.postgres().execute(&late).await;
    parts.kept.delivered().await;
    dying("partition_dropped=return").await;
    assert!(!parts.exists(&first).await);
    assert_eq!(parts.kept.deleted_ones_are_published().await, 21);
    let (code, said) = parts.prune(&[]).await;
    assert_eq!(code, Some(0), "{said}");
    parts.is_exact().await;
    stop(walpost).await;
}
