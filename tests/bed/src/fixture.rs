//! A database with an outbox, a topic of its own on the shared broker, and the walpost binary
//! between them.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::consumer::{Consumed, Topics, read_all};
use crate::eventually::eventually;
use crate::kafka::Kafka;
use crate::oracle::{self, Row, Verdict};
use crate::postgres::{Major, Postgres, PostgresBuilder};
use crate::proxy::Proxy;
use crate::walpost::{Walpost, WalpostBuilder};
use crate::writer::{Writer, lsn};

/// For conditions that normally hold at once.
pub const SHORT_TIMEOUT: Duration = Duration::from_secs(30);

/// For slow operations on two busy cores.
pub const LONG_TIMEOUT: Duration = Duration::from_secs(180);

/// What walpost says once it has compared the slot with the state topic.
pub const AGREES: &str = "the slot's position agrees with the state topic";

/// Waits up to a third of a second: for kills at random moments.
pub async fn moment(random: &mut fastrand::Rng) {
    tokio::time::sleep(Duration::from_millis(random.u64(0..300))).await;
}

/// The number behind the words that begin a line of a report.
pub fn counted(report: &str, words: &str) -> usize {
    let line = report.lines().find_map(|line| line.strip_prefix(words));
    let count = line.and_then(|rest| rest.trim_start_matches(':').trim().parse().ok());
    count.unwrap_or_else(|| panic!("no count of {words} in\n{report}"))
}

/// The program under test: the one that was built with the test that runs.
pub fn program() -> PathBuf {
    sibling_program("walpost")
}

/// The program of that name that was built with the test that runs.
pub(crate) fn sibling_program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own file");
    let mut directories = test.ancestors().skip(1).map(|directory| directory.join(name));
    let program = directories.find(|program| program.is_file());
    program.unwrap_or_else(|| panic!("no {name} next to {}", test.display()))
}

/// The default outbox with its servers.
pub struct Fixture {
    /// The database's server.
    pub postgres: Postgres,
    /// The server's address for walpost.
    pub source: String,
    /// The brokers' address.
    pub bootstrap: String,
    prefix: String,
    template: String,
    slot: String,
    options: Vec<String>,
}

impl Fixture {
    /// On Debian's PostgreSQL, with the shared broker, after `walpost init --apply`.
    pub async fn new() -> Self {
        Self::on(Major::V15).await
    }

    /// The same on another major version.
    pub async fn on(major: Major) -> Self {
        Self::with(Postgres::builder(major)).await
    }

    /// The same on a given server.
    pub async fn with(postgres: PostgresBuilder) -> Self {
        Self::with_brokers(postgres, &Kafka::shared().await.bootstrap()).await
    }

    /// The same with given brokers.
    pub async fn with_brokers(postgres: PostgresBuilder, bootstrap: &str) -> Self {
        Self::over_server(postgres.start().await, bootstrap, &[]).await
    }

    /// The same on a server that runs, after `walpost init --apply` with these arguments.
    pub async fn over_server(postgres: Postgres, bootstrap: &str, arguments: &[&str]) -> Self {
        let fixture = Self::bare(postgres, bootstrap);
        fixture.init(arguments).await;
        // The order of commits, for each key that one session writes.
        fixture.postgres.execute("ALTER TABLE public.outbox ADD COLUMN n bigserial").await;
        fixture
    }

    /// Without an outbox yet.
    pub fn bare(postgres: Postgres, bootstrap: &str) -> Self {
        static FIXTURES: AtomicUsize = AtomicUsize::new(0);
        let number = FIXTURES.fetch_add(1, Ordering::Relaxed);
        Self {
            source: postgres.url(),
            postgres,
            bootstrap: bootstrap.to_owned(),
            prefix: format!("e2e-{}-{number}.", std::process::id()),
            template: "{aggregate_type}".to_owned(),
            slot: "walpost".to_owned(),
            options: Vec::new(),
        }
    }

    /// The same on Debian's PostgreSQL with the shared broker.
    pub async fn empty() -> Self {
        Self::bare(Postgres::start(Major::V15).await, &Kafka::shared().await.bootstrap())
    }

    /// An option that every command has from here on.
    #[must_use]
    pub fn option(mut self, name: &str, value: &str) -> Self {
        if name == "--slot" {
            value.clone_into(&mut self.slot);
        }
        self.options.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Another end of the topic's name than the aggregate type.
    #[must_use]
    pub fn template(mut self, template: &str) -> Self {
        template.clone_into(&mut self.template);
        self
    }

    /// Runs statements, then init, which keeps what they create.
    pub async fn over(self, sql: &str) -> Self {
        self.postgres.execute(sql).await;
        self.init(&[]).await;
        self
    }

    /// Runs `walpost init --apply`.
    pub async fn init(&self, arguments: &[&str]) {
        let init = self.command("init").arg("--apply").args(arguments).start();
        let status = init.wait(SHORT_TIMEOUT).await.expect("init ends");
        assert!(status.success(), "init failed: {:?}", init.stderr());
    }

    /// Runs `walpost adopt --apply` with this state topic; returns what it prints.
    pub async fn adopt(&self, state_topic: &str) -> Vec<String> {
        let adopt = self.command("adopt").args(["--apply", "--state-topic", state_topic]).start();
        let status = adopt.wait(LONG_TIMEOUT).await.expect("adopt ends");
        assert!(status.success(), "adopt failed: {:?}", adopt.stderr());
        adopt.stdout()
    }

    /// A command with the fixture's source, topic and brokers.
    pub fn command(&self, name: &str) -> WalpostBuilder {
        Walpost::builder(program())
            .arg(name)
            .args(["--source", &self.source])
            .args(["--bootstrap-servers", &self.bootstrap])
            .args(["--topic", &format!("{}{}", self.prefix, self.template)])
            // Rows name topics as they please, and brokers make them.
            .args(["-X", "allow.auto.create.topics=true"])
            .args(&self.options)
    }

    /// `walpost run`, streaming.
    pub async fn run(&self) -> Walpost {
        self.run_with(&[]).await
    }

    /// The same with further arguments.
    pub async fn run_with(&self, arguments: &[&str]) -> Walpost {
        let walpost = self.command("run").args(arguments).start();
        walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
        walpost
    }

    /// The exit status and the output of `walpost run` with these arguments.
    pub async fn run_to_its_end(&self, arguments: &[&str]) -> (Option<i32>, String) {
        ended(&self.command("run").args(arguments).start()).await
    }

    /// The fixture's topics.
    pub fn topics(&self) -> Topics {
        Topics::starting_with(self.prefix.clone())
    }

    /// The topic of that aggregate type.
    pub fn topic(&self, aggregate_type: &str) -> String {
        format!("{}{aggregate_type}", self.prefix)
    }

    /// From here on, keeps a copy of each row of the outbox, deleted or not.
    pub async fn keep_log(&self) {
        let copy = "CREATE TABLE public.log (id uuid, aggregate_id text, n bigint);
            CREATE FUNCTION public.log() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO public.log VALUES (NEW.id, NEW.aggregate_id, NEW.n); RETURN NULL; END';
            CREATE TRIGGER log AFTER INSERT ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.log()";
        self.postgres.execute(copy).await;
    }

    /// All these rows, in commit order for each key.
    pub async fn logged(&self) -> Vec<Row> {
        self.rows("SELECT id, aggregate_id FROM public.log ORDER BY n").await
    }

    /// Every logged row that is deleted is one of these records; returns how many are.
    pub async fn deleted_ones_are_among(&self, records: &[Consumed]) -> usize {
        let gone = "SELECT id FROM public.log l
                     WHERE NOT EXISTS (SELECT FROM public.outbox o WHERE o.id = l.id)";
        let gone = self.postgres.query_rows(gone).await;
        let published: HashSet<_> = records.iter().filter_map(|one| one.header("id")).collect();
        for row in &gone {
            let id = row[0].as_deref().expect("an id");
            assert!(published.contains(id), "row {id} is deleted, and was never published");
        }
        gone.len()
    }

    /// The slot tells by its `catalog_xmin` that every row is delivered that is there now.
    pub async fn slot_has_all(&self) {
        let postgres = &self.postgres;
        let last = postgres.query_text("SELECT txid_current()").await.expect("a transaction id");
        let last: u64 = last.parse().expect("a number");
        self.confirmed(LONG_TIMEOUT).await;
        let xmin = "SELECT catalog_xmin FROM pg_replication_slots WHERE slot_name = 'walpost'";
        eventually(LONG_TIMEOUT, "the slot has confirmed the last row's transaction", async || {
            // Otherwise the server notes every 15 s which transactions are running.
            postgres.execute("CHECKPOINT").await;
            let xmin: u64 = postgres.query_text(xmin).await?.parse().ok()?;
            (xmin > last).then_some(())
        })
        .await;
        self.confirmed(LONG_TIMEOUT).await;
    }

    /// What the fixture's topics hold now.
    pub async fn records(&self) -> Vec<Consumed> {
        read_all(&self.bootstrap, self.topics()).await
    }

    /// The committed rows, in commit order for each key that one session wrote.
    pub async fn committed(&self) -> Vec<Row> {
        self.rows("SELECT id, aggregate_id FROM public.outbox ORDER BY n").await
    }

    /// The rows of a query for id and key.
    pub async fn rows(&self, query: &str) -> Vec<Row> {
        let rows = self.postgres.query_rows(query).await;
        let text = |value: &Option<String>| value.clone().expect("not null");
        rows.iter().map(|row| Row::new(text(&row[0]), text(&row[1]))).collect()
    }

    /// Awaits that the slot has confirmed everything that is committed now. Later its position may
    /// still move, over WAL without events, until an event is in flight: a case that nothing may be
    /// confirmed in asks for [`Fixture::assert_unconfirmed`], not for the same position.
    pub async fn confirmed(&self, deadline: Duration) {
        self.postgres.confirmed(&self.slot, deadline).await;
    }

    /// Whether the slot has confirmed everything before this position.
    pub async fn has_confirmed(&self, lsn: &str) -> bool {
        self.postgres.has_confirmed(&self.slot, lsn).await
    }

    /// Up to where the slot has confirmed.
    pub async fn confirmed_flush(&self) -> Option<String> {
        let slot = &self.slot;
        let query = format!(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
        );
        self.postgres.query_text(&query).await
    }

    /// The slot has not confirmed the transaction that ends there, as [`Postgres::commit`] has it.
    pub async fn assert_unconfirmed(&self, end: &str) {
        let confirmed = self.confirmed_flush().await.expect("the slot");
        assert!(lsn(&confirmed) < lsn(end), "{confirmed} is confirmed, and {end} may not be");
    }

    /// The server process that streams to walpost.
    pub async fn walsender(&self) -> Option<String> {
        self.postgres.query_text("SELECT pid FROM pg_stat_replication").await
    }

    /// The oracle on everything: the table against the topics.
    pub async fn judge(&self) -> Verdict {
        self.judge_with(&[]).await
    }

    /// The same, with the ids of rows that were rolled back.
    pub async fn judge_with(&self, rolled_back: &[String]) -> Verdict {
        let (committed, records) = (self.committed().await, self.records().await);
        oracle::judge(&committed, rolled_back.iter().map(String::as_str), &records)
    }

    /// Stops the writer; the oracle on everything once that is confirmed.
    pub async fn judge_after(&self, writer: Writer) -> Verdict {
        let rolled_back = writer.stop().await;
        self.confirmed(LONG_TIMEOUT).await;
        self.judge_with(&rolled_back).await
    }

    /// Everything is confirmed, and each row was published once.
    pub async fn assert_exact(&self, deadline: Duration) {
        self.confirmed(deadline).await;
        self.judge().await.assert_exact();
    }

    /// Everything is confirmed, and these rows were published once each, no others.
    pub async fn assert_published(&self, rows: &[Row], deadline: Duration) -> Vec<Consumed> {
        self.confirmed(deadline).await;
        let records = self.records().await;
        oracle::judge(rows, std::iter::empty(), &records).assert_exact();
        records
    }

    /// Everything is confirmed, and each row was published, perhaps again.
    pub async fn assert_ok(&self, deadline: Duration) {
        self.confirmed(deadline).await;
        self.judge().await.assert_ok();
    }
}

/// Stops it; returns its last line.
pub async fn stop(walpost: Walpost) -> serde_json::Value {
    walpost.terminate();
    let status = walpost.wait(SHORT_TIMEOUT).await.expect("walpost stops");
    assert!(status.success(), "{:?}", walpost.stderr());
    let lines = walpost.stderr();
    let last = lines.iter().find(|line| line.contains("walpost stops")).expect("a last line");
    serde_json::from_str(last).expect("a JSON line")
}

/// The only record of that id.
#[track_caller]
pub fn record_of<'a>(records: &'a [Consumed], id: &str) -> &'a Consumed {
    let mut found = records.iter().filter(|record| record.header("id") == Some(id));
    let first = found.next().unwrap_or_else(|| panic!("no record of {id}"));
    assert!(found.next().is_none(), "{id} came twice");
    first
}

/// Within each partition, positions rise from record to record: commits stand
/// in their order, and rows in that of their transaction.
#[track_caller]
pub fn assert_in_log_order(records: &[Consumed]) {
    for pair in records.windows(2) {
        let [one, next] = pair else { continue };
        if (&one.topic, one.partition) == (&next.topic, next.partition) {
            let [before, after] =
                [one, next].map(|record| record.header("walpost.position").expect("a position"));
            assert!(before < after, "{after} follows {before} in {}", one.topic);
        }
    }
}

/// The address for walpost of a server behind a proxy.
pub fn proxied(proxy: &Proxy) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port())
}

/// The exit status of a program that is not stopped, and its lines of standard error.
pub async fn ended(walpost: &Walpost) -> (Option<i32>, String) {
    let status = walpost.wait(SHORT_TIMEOUT).await;
    let text = walpost.stderr().join("\n");
    let status =
        status.unwrap_or_else(|| panic!("it still runs after {SHORT_TIMEOUT:?}; its log:\n{text}"));
    (status.code(), text)
}

/// The command in walpost's messages that creates a topic on these brokers.
pub fn create_command(servers: &str, topic: &str) -> String {
    format!("kafka-topics.sh --bootstrap-server {servers} --create --topic {topic}")
}

/// Inserts `count` rows with keys from `keys`, one transaction in all.
pub fn insert(count: u32, keys: u32) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'order', (i % {keys})::text, 'placed', jsonb_build_object('i', i) \
           FROM generate_series(1, {count}) AS i"
    )
}

/// Copies `count` rows with keys from `keys` into the outbox, by way of a file.
pub fn copy(fixture: &Fixture, count: u32, keys: u32) -> String {
    let file = fixture.postgres.data_dir().join("copied");
    let file = file.display();
    let columns = "id, aggregate_type, aggregate_id, event_type, payload";
    format!(
        "COPY (SELECT gen_random_uuid(), 'order', i % {keys}, 'copied', jsonb_build_object('i', i) \
                 FROM generate_series(1, {count}) AS i) TO '{file}'; \
         COPY public.outbox ({columns}) FROM '{file}'"
    )
}
