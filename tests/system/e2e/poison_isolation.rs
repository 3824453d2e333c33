//! Undeliverable events among many deliverable ones: several in a transaction, at its ends, in
//! large transactions, and during outages of brokers and walpost itself.

use serde_json::Value;
use tempfile::TempDir;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, create_command, ended, stop};
use walpost_bed::{Consumed, Kafka, Major, Postgres, Walpost};

const CAUSES: [&str; 5] = ["too_large", "missing_field", "invalid_topic", "refused", "undecodable"];

/// A row of that number and key; `cause` is what it is refused for, or nothing.
fn row(n: usize, key: &str, cause: &str) -> String {
    let key = if cause == "missing_field" { "NULL".to_owned() } else { format!("'{key}'") };
    let kind = if cause == "invalid_topic" { "an order" } else { "order" };
    let headers = if cause == "undecodable" { "'[1]'" } else { "NULL" };
    let age = if cause == "refused" { "2 days" } else { "0" };
    let much = if cause == "too_large" { 2000 } else { 0 };
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers, \
         created_at) SELECT '{kind}', {key}, 'placed', jsonb_build_object('n', {n}, 'much', \
         (SELECT string_agg(md5(i::text), '') FROM generate_series(1, {much}) AS i)), {headers}, \
         now() - interval '{age}'; "
    )
}

/// An outbox, a topic that takes little, and one for dead letters, each of one partition.
struct PoisonFixture {
    fixture: Fixture,
    dead: String,
    directory: TempDir,
}

impl PoisonFixture {
    async fn new(kafka: &Kafka) -> Self {
        let postgres = Postgres::builder(Major::V15);
        let fixture = Fixture::with_brokers(postgres, &kafka.bootstrap()).await;
        fixture.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
        let limits =
            [("max.message.bytes", "20000"), ("message.timestamp.before.max.ms", "3600000")];
        kafka.create_topic_with(&fixture.topic("order"), 1, &limits).await;
        let dead = fixture.topic("dead");
        kafka.create_topic(&dead, 1).await;
        Self { fixture, dead, directory: TempDir::new().expect("a directory") }
    }

    /// The arguments for one policy for all causes.
    fn arguments(&self, policy: &str) -> [String; 2] {
        let policies = CAUSES.map(|cause| format!("{cause} = '{policy}'\n")).concat();
        let toml = format!(
            "record.timestamp = 'column'\noutbox.columns.timestamp = 'created_at'\n[poison]\n\
             {policies}dead_letter_topic = '{}'\nretries = 1\n",
            self.dead
        );
        let file = self.directory.path().join("walpost.toml");
        std::fs::write(&file, toml).expect("it can be written");
        ["--config".to_owned(), file.to_str().expect("UTF-8").to_owned()]
    }

    async fn run(&self, policy: &str) -> Walpost {
        self.fixture.run_with(&self.arguments(policy).each_ref().map(String::as_str)).await
    }

    /// The numbers in the topic and among the dead letters, each where it came first.
    async fn numbers(&self) -> [Vec<u64>; 2] {
        let records = self.fixture.records().await;
        [false, true].map(|dead| {
            let mut numbers = Vec::new();
            for record in records.iter().filter(|record| (record.topic == self.dead) == dead) {
                let number = number(record);
                if !numbers.contains(&number) {
                    numbers.push(number);
                }
            }
            numbers
        })
    }
}

fn number(record: &Consumed) -> u64 {
    let value: Value = serde_json::from_str(record.value_text().expect("text")).expect("JSON");
    value["n"].as_u64().expect("a number")
}

/// The first, the last, adjacent ones, and some next to good ones; rejected by walpost, and by the broker.
const MIXED: [&str; 10] = [
    "too_large",
    "",
    "missing_field",
    "",
    "refused",
    "invalid_topic",
    "",
    "too_large",
    "",
    "undecodable",
];

fn mixed(from: usize) -> String {
    let rows = MIXED.iter().enumerate().map(|(at, cause)| row(from + at, "k", cause));
    format!("BEGIN; {}COMMIT", rows.collect::<String>())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_poison_of_a_transaction_is_diverted_in_order_and_logged() {
    let setup = PoisonFixture::new(Kafka::shared().await).await;
    for (policy, says, letters) in [
        ("skip", ": skipped", &[][..]),
        ("dead_letter", ": goes to the dead-letter topic", &[0, 2, 4, 5, 7, 9]),
    ] {
        let from = if policy == "skip" { 0 } else { 100 };
        let walpost = setup.run(policy).await;
        setup.fixture.postgres.execute(&mixed(from)).await;
        setup.fixture.confirmed(LONG_TIMEOUT).await;
        let lines = walpost.stderr();
        for (ordinal, cause) in MIXED.iter().enumerate() {
            let place = format!("/{ordinal:08X}");
            let logged = lines.iter().filter(|line| line.contains(says) && line.contains(&place));
            assert_eq!(
                logged.count(),
                usize::from(!cause.is_empty()),
                "{policy}: {ordinal} {cause}"
            );
        }
        let [good, dead] = setup.numbers().await;
        let good: Vec<_> = good.into_iter().filter(|n| *n >= from as u64).collect();
        assert_eq!(good, [1, 3, 6, 8].map(|n| n + from as u64), "{policy}");
        assert_eq!(dead, letters.iter().map(|n| n + from as u64).collect::<Vec<_>>());
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_in_a_large_transaction_leaves_other_events_in_order() {
    let setup = PoisonFixture::new(Kafka::shared().await).await;
    let many = |from: usize| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT 'order', 'k', 'placed', jsonb_build_object('n', {from} + i) \
               FROM generate_series(1, 1000) AS i; "
        )
    };
    let bad = |n| row(n, "k", "too_large");
    let sql = format!("BEGIN; {}{}{}{}{}COMMIT", bad(0), many(0), bad(1001), many(1001), bad(2002));
    setup.fixture.postgres.execute(&sql).await;
    let arguments = setup.arguments("dead_letter");
    let walpost = setup.fixture.command("run").args(arguments).args(["--until", "current"]).start();
    let status = walpost.wait(LONG_TIMEOUT).await.expect("it comes to the end");
    assert!(status.success(), "{:?}", walpost.stderr());
    let [good, dead] = setup.numbers().await;
    assert_eq!(dead, [0, 1001, 2002]);
    assert_eq!(good, (1..2002).filter(|n| *n != 1001).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_outage_during_isolation_changes_nothing() {
    let kafka = Kafka::start().await;
    let setup = PoisonFixture::new(&kafka).await;
    let walpost = setup.run("dead_letter").await;
    for turn in 0..3 {
        let from = turn * 10;
        setup.fixture.postgres.execute(&mixed(from)).await;
        if turn == 1 {
            walpost.await_line("delivery failed; replaying", SHORT_TIMEOUT).await;
            kafka.kill9().await;
            kafka.start_again().await;
        }
    }
    setup.fixture.confirmed(LONG_TIMEOUT).await;
    let [good, dead] = setup.numbers().await;
    let (bad, fine): (Vec<_>, Vec<_>) = (0..30).partition(|n| !MIXED[n % 10].is_empty());
    assert_eq!(good, fine.iter().map(|n| *n as u64).collect::<Vec<_>>());
    assert_eq!(dead, bad.iter().map(|n| *n as u64).collect::<Vec<_>>());
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_dead_letter_halts_and_is_not_lost() {
    let kafka = Kafka::shared().await;
    let setup = PoisonFixture::new(kafka).await;
    let settings = [("max.message.bytes", "30000"), ("cleanup.policy", "compact")];
    kafka.delete_topic(&setup.dead).await;
    kafka.create_topic_with(&setup.dead, 1, &settings).await;
    let check = setup.fixture.command("check").args(setup.arguments("dead_letter")).start();
    ended(&check).await;
    let found = check.stdout().join("\n");
    for part in ["takes 30000 bytes a record", "is compacted"] {
        assert!(found.contains(&format!("{} {part}", setup.dead)), "{found}");
    }
    let sql = [row(0, "k", ""), row(1, "k", "too_large"), row(2, "k", "")].concat();
    let committed = setup.fixture.postgres.commit(&sql).await;
    for _ in 0..2 {
        let arguments = setup.arguments("dead_letter");
        let (code, text) =
            setup.fixture.run_to_its_end(&arguments.each_ref().map(String::as_str)).await;
        assert_eq!(code, Some(4), "{text}");
        let error = text.lines().last().expect("it says why");
        for part in [&setup.dead, "max.message.bytes", "/00000001 ", "table public.outbox"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        let [good, dead] = setup.numbers().await;
        assert_eq!((good[0], dead.len()), (0, 0), "what stands before it, and no letter");
        setup.fixture.assert_unconfirmed(&committed).await;
    }
    kafka.administration().set(&setup.dead, "max.message.bytes", "1000000").await;
    let walpost = setup.run("dead_letter").await;
    setup.fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(setup.numbers().await, [vec![0, 2], vec![1]]);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_or_forbidden_dead_letter_topic_is_reported_and_retried() {
    let builder = Kafka::builder().guarded().user("relay", "right");
    let kafka = builder.property("auto.create.topics.enable", "false").start().await;
    let mut setup = PoisonFixture::new(&kafka).await;
    kafka.delete_topic(&setup.dead).await;
    kafka.allow("relay", &["Write", "Describe"], &setup.fixture.topic("order")).await;
    let sql = [row(0, "k", ""), row(1, "k", "undecodable"), row(2, "k", "")].concat();
    let login = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=relay"];
    let login = login.iter().chain(&["sasl.password=right"]).flat_map(|one| ["-X", one]);
    let guarded = kafka.sasl_bootstrap().expect("a user was added");
    let open = std::mem::replace(&mut setup.fixture.bootstrap, guarded);
    let command = setup.fixture.command("run").args(setup.arguments("dead_letter"));
    let walpost = command.args(login).start();
    let guarded = std::mem::replace(&mut setup.fixture.bootstrap, open);
    walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    let committed = setup.fixture.postgres.commit(&sql).await;
    let advice = format!("the ACL operations WRITE and DESCRIBE on topic {}", setup.dead);
    walpost.await_line(&advice, SHORT_TIMEOUT).await;
    kafka.allow("relay", &["Write", "Describe"], &setup.dead).await;
    let advice = create_command(&guarded, &setup.dead);
    walpost.await_line(&advice, SHORT_TIMEOUT).await;
    setup.fixture.assert_unconfirmed(&committed).await;
    kafka.create_topic(&setup.dead, 1).await;
    setup.fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(setup.numbers().await, [vec![0, 2], vec![1]]);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_shows_diverted_events_and_halts_like_run() {
    let setup = PoisonFixture::new(Kafka::shared().await).await;
    let causes = ["", "invalid_topic", "", "undecodable", ""];
    let rows = causes.iter().enumerate().map(|(n, cause)| row(n, "k", cause));
    setup.fixture.postgres.execute(&format!("BEGIN; {}COMMIT", rows.collect::<String>())).await;
    for (policy, code, printed, logged) in [
        ("skip", 0, 3, ": skipped"),
        ("dead_letter", 0, 5, "would be dead-lettered"),
        ("halt", 4, 1, "an order"),
    ] {
        let command =
            setup.fixture.command("tail").args(setup.arguments(policy)).arg("--from-slot");
        let tail = command.start();
        assert_eq!(ended(&tail).await.0, Some(code), "{policy}");
        assert_eq!(tail.stdout().len(), printed, "{policy}: {:?}", tail.stdout());
        let lines = tail.stderr();
        let logged = lines.iter().filter(|line| line.contains(logged)).count();
        assert_eq!(logged, if policy == "halt" { 1 } else { 2 }, "{policy}: {lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_before_confirming_a_dead_letter_loses_nothing() {
    let setup = PoisonFixture::new(Kafka::shared().await).await;
    let deaths = ["produced=1*off", "produced=2*off", "callback=1*off", "acknowledged=1*off"];
    let mut from = 0;
    for cause in ["undecodable", "too_large"] {
        for death in deaths {
            let causes = ["", cause, ""];
            let rows = causes.iter().enumerate().map(|(n, cause)| row(from + n, "k", cause));
            let committed = setup.fixture.postgres.commit(&rows.collect::<String>()).await;
            let command = setup.fixture.command("run").args(setup.arguments("dead_letter"));
            let dying = command.env("FAILPOINTS", format!("{death}->return")).start();
            let status = dying.wait(SHORT_TIMEOUT).await.expect("it dies");
            assert_eq!(status.code(), None, "{cause}, {death}: {status:?}");
            setup.fixture.assert_unconfirmed(&committed).await;
            let walpost = setup.run("dead_letter").await;
            setup.fixture.confirmed(LONG_TIMEOUT).await;
            walpost.kill9().await;
            from += 3;
        }
    }
    let (bad, fine): (Vec<_>, Vec<_>) = (0..from as u64).partition(|n| n % 3 == 1);
    assert_eq!(setup.numbers().await, [fine, bad]);
}
