//! `walpost recover`: a slot that is made again after rows were written, and a server that is set
//! back.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::util::Timeout;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use walpost_bed::fixture::{
    AGREES, Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, counted, ended, insert, stop,
};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres, Stop, eventually};

use super::failover::Pair;
use super::state_topic::{newest_state, topic};

pub const DROP: &str = "SELECT pg_drop_replication_slot('walpost')";

/// An outbox with a state topic.
pub struct Lost {
    pub fixture: Fixture,
    pub topic: String,
    delivery: &'static str,
}

impl Lost {
    pub async fn new(delivery: &'static str) -> Self {
        let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
        let topic = topic(&fixture).await;
        fixture.adopt(&topic).await;
        Self { fixture, topic, delivery }
    }

    pub fn arguments(&self) -> [&str; 4] {
        ["--delivery", self.delivery, "--state-topic", &self.topic]
    }

    /// Publishes what waits, and stops once there is a bookmark.
    pub async fn run_until_there_is_a_bookmark(&self) {
        let run = self.fixture.command("run").args(self.arguments());
        let walpost = run.env("FAILPOINTS", "frequent_bookmarks=return").start();
        walpost.await_line(AGREES, LONG_TIMEOUT).await;
        self.fixture.confirmed(LONG_TIMEOUT).await;
        eventually(LONG_TIMEOUT, "there is a bookmark of the last row", async || {
            // An idle server tells only twice a minute how far it is.
            self.fixture.postgres.execute("SELECT pg_logical_emit_message(true, '', '')").await;
            let state = newest_state(&self.fixture, &self.topic).await?;
            let below = state["delivered"]["bookmarks"][0]["below"].as_u64()?;
            let query = format!("SELECT max(xmin::text::bigint) < {below} FROM public.outbox");
            let all = self.fixture.postgres.query_text(&query).await;
            (all.as_deref() == Some("t")).then_some(())
        })
        .await;
        stop(walpost).await;
    }

    /// The exit code, and what is printed.
    pub async fn recover(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let recover = self.fixture.command("recover").args(self.arguments()).args(arguments);
        let recover = recover.args(["--order-by", "n"]).start();
        let (code, said) = ended(&recover).await;
        (code, format!("{}\n{said}", recover.stdout().join("\n")))
    }

    /// `walpost run` publishes the rest, and everything is there once.
    async fn is_exact_after_a_run(&self) {
        let arguments = [&self.arguments()[..], &["--until", "current"]].concat();
        let (code, said) = self.fixture.run_to_its_end(&arguments).await;
        assert_eq!(code, Some(0), "{said}");
        self.fixture.judge().await.assert_exact();
    }
}

async fn missing_rows_are_published(delivery: &'static str) {
    let lost = Lost::new(delivery).await;
    let postgres = &lost.fixture.postgres;
    postgres.execute(&insert(40, 5)).await;
    lost.run_until_there_is_a_bookmark().await;
    postgres.execute(&insert(20, 5)).await;
    postgres.execute(DROP).await;
    for key in 0..3 {
        postgres.execute(&insert(1, key + 1)).await;
    }
    // Nothing can be published before there is a slot for what comes then.
    let (code, said) = lost.recover(&[]).await;
    assert_eq!((code, counted(&said, "missing")), (Some(1), 23), "{said}");
    assert!(said.contains("the slot is missing: `walpost init --apply "), "{said}");
    let (code, said) = lost.recover(&["--apply"]).await;
    assert!(code == Some(3) && said.contains("run `walpost init --apply "), "{said}");
    lost.fixture.init(&[]).await;
    postgres.execute(&insert(10, 5)).await;
    let before = lost.fixture.records().await.len();
    let (code, said) = lost.recover(&[]).await;
    let counts = ["rows that were compared", "published", "missing", "cannot be told"];
    let counts = counts.map(|what| counted(&said, what));
    // The others are delivered by the bookmark; they are young, and compared too.
    assert_eq!((code, counts), (Some(1), [63, 40, 23, 0]), "{said}");
    assert_eq!(counted(&said, "waiting in the slot, not compared"), 10, "{said}");
    assert_eq!(counted(&said, "published, and in no table"), 0, "{said}");
    assert_eq!(lost.fixture.records().await.len(), before, "a report publishes nothing");
    let (code, said) = lost.fixture.run_to_its_end(&lost.arguments()).await;
    assert!(code == Some(3) && said.contains("walpost recover"), "{said}");
    let (code, said) = lost.recover(&["--apply"]).await;
    assert!(code == Some(0) && said.contains("23 events published"), "{said}");
    lost.is_exact_after_a_run().await;
    let (code, said) = lost.recover(&["--all"]).await;
    assert_eq!((code, counted(&said, "published")), (Some(0), 73), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn rows_that_a_lost_slot_did_not_send_are_published_at_least_once() {
    missing_rows_are_published("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_a_lost_slot_did_not_send_are_published_exactly_once() {
    missing_rows_are_published("exactly-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_among_writers_keeps_the_order_and_continues_after_a_kill() {
    let lost = Lost::new("exactly-once").await;
    let postgres = &lost.fixture.postgres;
    postgres.execute(&insert(40, 5)).await;
    lost.run_until_there_is_a_bookmark().await;
    postgres.execute(DROP).await;
    let writer = Writer::start(postgres, 300);
    writer.commits(300).await;
    postgres.execute(&insert(5_000, 7)).await;
    lost.fixture.init(&[]).await;
    writer.commits(100).await;
    for point in
        ["rows_announced=return", "row_batch=2*off->return", "acknowledged=1500*off->return"]
    {
        let recover = lost.fixture.command("recover").args(lost.arguments());
        let recover = recover.args(["--apply", "--order-by", "n"]).env("FAILPOINTS", point).start();
        let status = recover.wait(LONG_TIMEOUT).await.expect("it dies");
        assert_eq!(status.code(), None, "{point}: {:?}", recover.stderr());
        let (code, said) = lost.fixture.run_to_its_end(&lost.arguments()).await;
        assert!(code == Some(3) && said.contains("not all published yet"), "{said}");
    }
    let (code, said) = lost.recover(&["--apply"]).await;
    assert_eq!(code, Some(0), "{said}");
    let walpost = lost.fixture.run_with(&lost.arguments()).await;
    lost.fixture.judge_after(writer).await.assert_exact();
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_begun_is_continued_with_the_same_rows() {
    let lost = Lost::new("exactly-once").await;
    let postgres = &lost.fixture.postgres;
    postgres.execute(DROP).await;
    postgres.execute(&insert(7, 5)).await;
    // Young rows are compared whatever their transactions.
    postgres.execute("UPDATE public.outbox SET created_at = '2020-01-01Z'").await;
    lost.fixture.init(&[]).await;
    lost.fixture.adopt(&lost.topic).await;
    // From here on transactions count as delivered, and those of the rows do not.
    postgres.execute(&insert(5, 5)).await;
    lost.run_until_there_is_a_bookmark().await;
    let (code, said) = lost.recover(&[]).await;
    assert_eq!((code, counted(&said, "missing")), (Some(0), 0), "{said}");
    let recover = lost.fixture.command("recover").args(lost.arguments()).args(["--all", "--apply"]);
    let dying =
        recover.args(["--order-by", "n"]).env("FAILPOINTS", "rows_announced=return").start();
    assert_eq!(dying.wait(LONG_TIMEOUT).await.expect("it dies").code(), None);
    let (code, said) = lost.recover(&["--since", "now", "--apply"]).await;
    assert!(code == Some(1) && said.contains("chosen in another way"), "{said}");
    let skip = lost.fixture.command("skip").args(lost.arguments());
    let skip = skip.args(["--position", "00000000FFFFFFFF/00000000", "--apply"]).start();
    let (code, said) = ended(&skip).await;
    assert!(code == Some(1) && said.contains("change with each run"), "{said}");
    let (code, said) = lost.recover(&["--apply"]).await;
    assert!(code == Some(0) && said.contains("7 events published"), "{said}");
    let records = lost.fixture.records().await;
    assert_eq!(records.len(), 12);
    // Positions are not used again.
    let mut positions: Vec<_> =
        records.iter().filter_map(|record| record.header("walpost.position")).collect();
    positions.sort_unstable();
    positions.dedup();
    assert_eq!(positions.len(), 12, "{positions:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_behind_the_state_topic_is_left_as_it_is() {
    for delivery in ["at-least-once", "exactly-once"] {
        let lost = Lost::new(delivery).await;
        let (fixture, arguments) = (&lost.fixture, lost.arguments());
        fixture.postgres.execute(&insert(40, 5)).await;
        // What it logs each 15 s would let the next confirmation save the slot.
        fixture.postgres.pause_background_writer().await;
        let before = fixture.confirmed_flush().await.expect("a position");
        let walpost = fixture.run_with(&arguments).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        walpost.kill9().await;
        // The server has not written down what was confirmed.
        fixture.postgres.kill9().await;
        fixture.postgres.start_again().await;
        assert_eq!(fixture.confirmed_flush().await, Some(before));
        let (code, said) = lost.recover(&["--all", "--apply"]).await;
        assert_eq!((code, counted(&said, "published")), (Some(0), 40), "{said}");
        assert_eq!(counted(&said, "waiting in the slot, not compared"), 0, "{said}");
        fixture.postgres.execute(&insert(5, 5)).await;
        let (code, said) = lost.recover(&["--all"]).await;
        assert_eq!(counted(&said, "waiting in the slot, not compared"), 5, "{code:?} {said}");
        if delivery == "exactly-once" {
            lost.is_exact_after_a_run().await;
        } else {
            let walpost = fixture.run_with(&arguments).await;
            fixture.confirmed(LONG_TIMEOUT).await;
            stop(walpost).await;
            // The slot's position counts, not the topic's.
            fixture.judge().await.assert_ok();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updated_rows_are_found_in_kafka() {
    let lost = Lost::new("at-least-once").await;
    let postgres = &lost.fixture.postgres;
    postgres.execute(&insert(40, 5)).await;
    lost.run_until_there_is_a_bookmark().await;
    postgres.execute("UPDATE public.outbox SET event_type = 'another'").await;
    // Nobody else flushes what the reading of the rows writes.
    postgres.pause_background_writer().await;
    let (code, said) = lost.recover(&["--all"]).await;
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = lost.recover(&["--apply"]).await;
    assert_eq!(code, Some(0), "{said}");
    let counts = ["rows that were compared", "published", "missing"];
    assert_eq!(counts.map(|what| counted(&said, what)), [40, 40, 0], "{said}");
    lost.is_exact_after_a_run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kafka_may_have_deleted_is_not_told() {
    let lost = Lost::new("at-least-once").await;
    let (fixture, postgres) = (&lost.fixture, &lost.fixture.postgres);
    let compacted = [("cleanup.policy", "compact")];
    Kafka::shared().await.create_topic_with(&fixture.topic("order"), 2, &compacted).await;
    postgres.execute(&insert(4, 2)).await;
    lost.run_until_there_is_a_bookmark().await;
    postgres.execute(DROP).await;
    postgres.execute(&insert(3, 2)).await;
    fixture.init(&[]).await;
    let (code, said) = lost.recover(&["--apply"]).await;
    assert!(code == Some(1) && said.contains("it is compacted"), "{said}");
    assert!(said.contains("3 events are published cannot be told: --publish-undecided"), "{said}");
    assert_eq!(counted(&said, "cannot be told"), 3, "{said}");
    let (code, said) = lost.recover(&["--apply", "--publish-undecided"]).await;
    assert!(code == Some(0) && said.contains("3 events published"), "{said}");
    lost.is_exact_after_a_run().await;
}

async fn rows_are_published_by_one_instance(delivery: &'static str) {
    let lost = Lost::new(delivery).await;
    let postgres = &lost.fixture.postgres;
    postgres.execute(&insert(40, 5)).await;
    lost.run_until_there_is_a_bookmark().await;
    postgres.execute(DROP).await;
    postgres.execute(&insert(3_000, 5)).await;
    lost.fixture.init(&[]).await;
    let recover = lost.fixture.command("recover").args(lost.arguments());
    let recover = recover.args(["--order-by", "n", "--apply"]);
    let first = recover.env("FAILPOINTS", "rows_announced=sleep(5000)").start();
    eventually(LONG_TIMEOUT, "the first one has announced its rows", async || {
        let state = newest_state(&lost.fixture, &lost.topic).await?;
        (!state["rows"].is_null()).then_some(())
    })
    .await;
    first.pause();
    // Its sessions end, and with them its lock, which it does not see.
    let end = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
                WHERE application_name LIKE 'walpost%' AND pid <> pg_backend_pid()";
    postgres.execute(end).await;
    let (code, said) = lost.recover(&["--apply"]).await;
    assert!(code == Some(0) && said.contains("3000 events published"), "{said}");
    first.resume();
    let (code, said) = ended(&first).await;
    assert!(code == Some(3) && said.contains("another walpost has written"), "{said}");
    postgres.execute(&insert(10, 5)).await;
    lost.is_exact_after_a_run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn rows_are_published_by_the_instance_with_the_lock_at_least_once() {
    rows_are_published_by_one_instance("at-least-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_published_by_the_instance_with_the_lock_exactly_once() {
    rows_are_published_by_one_instance("exactly-once").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_is_no_time_is_reported_as_such() {
    let lost = Lost::new("at-least-once").await;
    let (code, said) = lost.recover(&["--since", "last tuesday"]).await;
    assert!(said.contains("--since \"last tuesday\" is no time"), "{code:?} {said}");
    assert_eq!(code, Some(78), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_a_restored_server_lacks_are_named() {
    let lost = Lost::new("at-least-once").await;
    let (fixture, arguments) = (&lost.fixture, lost.arguments());
    fixture.postgres.execute(&insert(40, 5)).await;
    lost.run_until_there_is_a_bookmark().await;
    assert!(fixture.postgres.stop(Stop::Fast, SHORT_TIMEOUT).await, "it stops");
    let saved = fixture.postgres.snapshot_data();
    fixture.postgres.start_again().await;
    fixture.postgres.execute(&insert(20, 5)).await;
    let newest = "SELECT id FROM public.outbox ORDER BY n DESC LIMIT 20";
    let ghosts = fixture.postgres.query_rows(newest).await;
    lost.run_until_there_is_a_bookmark().await;
    assert!(fixture.postgres.stop(Stop::Fast, SHORT_TIMEOUT).await, "it stops");
    fixture.postgres.restore_data(&saved);
    fixture.postgres.start_again().await;
    fixture.postgres.execute(&insert(5, 5)).await;
    let (code, said) = fixture.run_to_its_end(&arguments).await;
    assert!(code == Some(3) && said.contains("walpost recover"), "{said}");
    let (code, said) = lost.recover(&[]).await;
    assert!(code == Some(1) && said.contains("--since"), "{said}");
    let (code, said) = lost.recover(&["--all", "--list", "--apply"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(counted(&said, "published, and in no table"), 20, "{said}");
    for ghost in &ghosts {
        let id = ghost[0].as_deref().expect("an id");
        assert!(said.contains(&format!("in no table: {id}")), "{id} in\n{said}");
    }
    let walpost = fixture.run_with(&arguments).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    stop(walpost).await;
    let verdict = fixture.judge().await;
    assert_eq!((verdict.missing.len(), verdict.unexpected.len()), (0, 20), "{verdict}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_a_slot_lost_in_a_failover_did_not_send_are_published() {
    let Pair { fixture, proxy, standby } = Pair::new(Major::V17, false, false).await;
    let topic = topic(&fixture).await;
    fixture.adopt(&topic).await;
    let lost = Lost { fixture, topic, delivery: "exactly-once" };
    lost.fixture.postgres.execute(&insert(40, 5)).await;
    lost.run_until_there_is_a_bookmark().await;
    lost.fixture.postgres.execute(&insert(20, 5)).await;
    eventually(LONG_TIMEOUT, "the standby has the rows", async || {
        let rows = standby.query_text("SELECT count(*) FROM public.outbox").await;
        (rows.as_deref() == Some("60")).then_some(())
    })
    .await;
    let Lost { fixture, topic, delivery } = lost;
    let (fixture, _proxy) = Pair { fixture, proxy, standby }.fail_over().await;
    let lost = Lost { fixture, topic, delivery };
    let (code, said) = lost.fixture.run_to_its_end(&lost.arguments()).await;
    assert!(code == Some(3) && said.contains("walpost recover"), "{said}");
    lost.fixture.init(&["--failover"]).await;
    lost.fixture.postgres.execute(&insert(5, 5)).await;
    let (code, said) = lost.recover(&["--apply"]).await;
    assert_eq!((code, counted(&said, "missing")), (Some(0), 20), "{said}");
    assert_eq!(counted(&said, "published, and in no table"), 0, "{said}");
    lost.is_exact_after_a_run().await;
}

/// A failover slot is read only as far as the standby servers are that it waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_server_that_is_down_is_named_while_it_is_waited_for() {
    let fixture = Fixture::with(Postgres::builder(Major::V17).own_identity()).await;
    let topic = topic(&fixture).await;
    let lost = Lost { fixture, topic, delivery: "at-least-once" };
    let postgres = &lost.fixture.postgres;
    postgres.execute(DROP).await;
    lost.fixture.init(&["--failover"]).await;
    lost.fixture.adopt(&lost.topic).await;
    postgres.execute(&insert(5, 5)).await;
    postgres.execute("SELECT pg_create_physical_replication_slot('down', true)").await;
    postgres.execute("ALTER SYSTEM SET synchronized_standby_slots = 'down'").await;
    postgres.execute("SELECT pg_reload_conf()").await;
    let recover = lost.fixture.command("recover").args(lost.arguments()).arg("--all").start();
    recover.await_line("synchronized_standby_slots that is down", LONG_TIMEOUT).await;
    postgres.execute("ALTER SYSTEM RESET synchronized_standby_slots").await;
    postgres.execute("SELECT pg_reload_conf()").await;
    let (code, said) = ended(&recover).await;
    let report = recover.stdout().join("\n");
    assert_eq!(counted(&report, "waiting in the slot, not compared"), 5, "{report}\n{said}");
    assert_eq!(code, Some(0), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_behind_an_open_transaction_count() {
    let lost = Lost::new("at-least-once").await;
    let fixture = &lost.fixture;
    let topic = fixture.topic("order");
    Kafka::shared().await.create_topic_with(&topic, 1, &[]).await;
    // Of another program, on the same topic.
    let other: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &fixture.bootstrap)
        .set("transactional.id", format!("other-{topic}"))
        .create()
        .expect("a producer");
    let (long, record) = (Timeout::After(LONG_TIMEOUT), BaseRecord::<(), str>::to(&topic));
    other.init_transactions(long).expect("initialised");
    other.begin_transaction().expect("begun");
    other.send(record.payload("another")).expect("queued");
    other.flush(long).expect("sent");
    fixture.postgres.execute(&insert(40, 5)).await;
    let walpost = fixture.run_with(&lost.arguments()).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    let recover = fixture.command("recover").args(lost.arguments()).arg("--all").start();
    recover.await_line("reading the rows", LONG_TIMEOUT).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    recover.assert_runs();
    other.commit_transaction(long).expect("committed");
    let (code, said) = ended(&recover).await;
    let report = recover.stdout().join("\n");
    assert_eq!((code, counted(&report, "published")), (Some(0), 40), "{report}\n{said}");
}

/// Retention deletes records while they are read: whether their events are in Kafka cannot be told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_whose_records_are_deleted_meanwhile_are_not_taken_for_missing() {
    let lost = Lost::new("exactly-once").await;
    let postgres = &lost.fixture.postgres;
    postgres.execute(&insert(40, 5)).await;
    lost.run_until_there_is_a_bookmark().await;
    postgres.execute(DROP).await;
    postgres.execute(&insert(5, 5)).await;
    lost.fixture.init(&[]).await;
    let recover = lost.fixture.command("recover").args(lost.arguments()).args(["--all", "--apply"]);
    let recover = recover.args(["--order-by", "n"]);
    let recover = recover.env("FAILPOINTS", "records_counted=sleep(8000)").start();
    // It has judged then which records there are, and pauses before it reads them.
    recover.await_line("records of these topics", LONG_TIMEOUT).await;
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", Kafka::shared().await.bootstrap())
        .create()
        .expect("a client");
    let records = lost.fixture.records().await;
    let mut before = TopicPartitionList::new();
    for record in &records {
        let all = before.find_partition(&record.topic, record.partition).is_none();
        if all {
            before
                .add_partition_offset(&record.topic, record.partition, Offset::End)
                .expect("a partition");
        }
    }
    admin.delete_records(&before, &AdminOptions::new()).await.expect("deleted");
    let (code, said) = ended(&recover).await;
    let said = format!("{}\n{said}", recover.stdout().join("\n"));
    assert_eq!((code, counted(&said, "missing")), (Some(1), 0), "{said}");
    assert_eq!(counted(&said, "cannot be told"), 45, "{said}");
    assert!(said.contains("records were deleted while it was read"), "{said}");
    assert!(lost.fixture.records().await.is_empty(), "nothing is published again");
}

/// The page on security revokes the function from everybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_that_may_not_write_messages_can_recover() {
    let mut lost = Lost::new("at-least-once").await;
    let postgres = &lost.fixture.postgres;
    postgres.execute(&insert(4, 5)).await;
    lost.run_until_there_is_a_bookmark().await;
    let revoke = "CREATE ROLE operator LOGIN REPLICATION; GRANT SELECT ON public.outbox TO operator;
                  REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text) FROM PUBLIC";
    postgres.execute(revoke).await;
    lost.fixture.source = lost.fixture.postgres.url_for("operator");
    // WAL that no commit flushes, all the time.
    let writer = lost.fixture.postgres.client().await;
    let writer = tokio::spawn(async move {
        while writer.batch_execute("SELECT pg_logical_emit_message(false, '', 'x')").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let (code, said) = lost.recover(&[]).await;
    writer.abort();
    assert_eq!((code, counted(&said, "missing")), (Some(0), 0), "{said}");
}

/// Nothing would keep `run` from starting before all rows are published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_without_a_state_topic_is_refused() {
    let fixture = Fixture::new().await;
    for (name, arguments) in
        [("recover", &["--all", "--apply"][..]), ("init", &["--apply", "--existing-rows"])]
    {
        let command = fixture.command(name).args(["--state-topic", "off"]).args(arguments);
        let (code, said) = ended(&command.start()).await;
        assert!(code == Some(78) && said.contains("delivery.state_topic is off"), "{name}: {said}");
    }
}
