//! A database with an outbox and a Kafka, the report of `walpost check` on them, and helpers that
//! apply its fixes.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::sync::OnceCell;
use walpost_bed::fixture::{SHORT_TIMEOUT, ended, program};
use walpost_bed::{Kafka, Major, Postgres, PostgresBuilder, Walpost, WalpostBuilder};

/// What is checked: a database of its own, perhaps on a server that others use.
pub struct Fixture {
    pub postgres: Server,
    pub database: String,
    /// The address for walpost.
    pub source: String,
    pub bootstrap: String,
    /// The brokers' address for administration.
    pub administrator: String,
    /// Options for each command.
    pub options: Vec<String>,
    /// What `walpost check` has in its environment.
    pub environment: Vec<(String, String)>,
}

/// The test's own server, or the shared one.
pub enum Server {
    Own(Box<Postgres>),
    Shared(&'static Postgres),
}

impl std::ops::Deref for Server {
    type Target = Postgres;

    fn deref(&self) -> &Postgres {
        match self {
            Self::Own(postgres) => postgres,
            Self::Shared(postgres) => postgres,
        }
    }
}

/// A correctly configured server. It speaks German if it has translations: no finding and no fix may
/// depend on its texts.
pub fn sound(major: Major) -> PostgresBuilder {
    let builder = Postgres::builder(major).setting("max_slot_wal_keep_size", "20GB");
    if Major::of_the_system() == Some(major) { builder.language("de_DE") } else { builder }
}

async fn shared() -> &'static Postgres {
    static SHARED: OnceCell<Postgres> = OnceCell::const_new();
    let start = async || {
        let builder = sound(Major::V15).setting("max_replication_slots", "100");
        let postgres = builder.start().await;
        // Roles are the server's, and of several that make one at a time all but one fail.
        postgres.execute("CREATE ROLE walpost LOGIN REPLICATION").await;
        postgres
    };
    SHARED.get_or_init(start).await
}

impl Fixture {
    /// A new database on the shared server, after `walpost init --apply`.
    pub async fn new() -> Self {
        let fixture = Self::empty().await;
        fixture.init().await;
        fixture
    }

    /// A new, empty database on the shared server.
    pub async fn empty() -> Self {
        static DATABASES: AtomicUsize = AtomicUsize::new(0);
        let number = DATABASES.fetch_add(1, Ordering::Relaxed);
        let postgres = shared().await;
        let database = format!("shop{number}");
        postgres.execute(&format!("CREATE DATABASE {database}")).await;
        let mut fixture = Self::of(Server::Shared(postgres), &database).await;
        // Slots belong to the server, so each needs a name of its own.
        fixture.option("--slot", &format!("walpost_{database}"));
        fixture
    }

    /// On a server of its own, after `walpost init --apply`.
    pub async fn on(builder: PostgresBuilder) -> Self {
        let fixture = Self::bare(builder).await;
        fixture.init().await;
        fixture
    }

    /// On a server of its own, before it.
    pub async fn bare(builder: PostgresBuilder) -> Self {
        Self::of(Server::Own(Box::new(builder.start().await)), "postgres").await
    }

    async fn of(postgres: Server, database: &str) -> Self {
        let source = format!("postgres://postgres@127.0.0.1:{}/{database}", postgres.port());
        let bootstrap = Kafka::shared().await.bootstrap();
        Self {
            postgres,
            database: database.to_owned(),
            source,
            administrator: bootstrap.clone(),
            bootstrap,
            options: Vec::new(),
            // Rows may choose any topic, intentionally; and there is no position in Kafka.
            environment: [("RECORD_TOPICS_ALLOWED", "*"), ("DELIVERY_STATE_TOPIC", "off")]
                .map(|(name, value)| (format!("WALPOST_{name}"), value.to_owned()))
                .into(),
        }
    }

    /// Adds an option to each command; a later one overrides an earlier one of the same name.
    pub fn option(&mut self, name: &str, value: &str) {
        if let Some(at) = self.options.iter().position(|option| option == name) {
            value.clone_into(&mut self.options[at + 1]);
        } else {
            self.options.extend([name.to_owned(), value.to_owned()]);
        }
    }

    /// `walpost run`, without a position in Kafka.
    pub fn run(&self) -> WalpostBuilder {
        let source = ["run", "--source", &self.source, "--bootstrap-servers", &self.bootstrap];
        Walpost::builder(program()).args(source).args(["--slot", self.slot()])
    }

    /// Sets one of librdkafka's properties, replacing its value.
    pub fn property(&mut self, name: &str, value: &str) {
        let property = format!("{name}={value}");
        let is_it = |option: &String| option.starts_with(&format!("{name}="));
        match self.options.iter().position(is_it) {
            Some(at) => self.options[at] = property,
            None => self.options.extend(["-X".to_owned(), property]),
        }
    }

    /// The slot's name.
    pub fn slot(&self) -> &str {
        let at = self.options.iter().position(|option| option == "--slot");
        at.map_or("walpost", |at| &self.options[at + 1])
    }

    /// The address of this user at this server.
    pub fn log_in_as(&mut self, user: &str) {
        self.source =
            format!("postgres://{user}@127.0.0.1:{}/{}", self.postgres.port(), self.database);
    }

    /// Runs statements as the superuser, in a transaction.
    pub async fn execute(&self, sql: &str) {
        let client = self.postgres.client_of(&self.database).await;
        let done = client.batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Runs `walpost init --apply` as the superuser.
    pub async fn init(&self) {
        self.walpost(&["init", "--apply"]).await;
    }

    /// Runs a command as the superuser, whoever it names; it must succeed.
    pub async fn walpost(&self, command: &[&str]) {
        let source =
            format!("postgres://postgres@127.0.0.1:{}/{}", self.postgres.port(), self.database);
        let mut words = self.options.clone();
        words.extend(command[1..].iter().map(|&word| word.to_owned()));
        // The command's own environment takes precedence.
        let is_twice = |words: &[String], at: usize| {
            words[at].starts_with("--") && words[at + 1..].contains(&words[at])
        };
        while let Some(at) =
            (0..words.len()).find(|at| is_twice(&words, *at) || words[*at] == "--source")
        {
            words.drain(at..at + 2);
        }
        let run = Walpost::builder(program()).arg(command[0]).args(["--source", &source]);
        let brokers = ("WALPOST_KAFKA_BOOTSTRAP_SERVERS", &self.bootstrap);
        let run = run.args(words).env(brokers.0, brokers.1).start();
        let (code, said) = ended(&run).await;
        assert_eq!(code, Some(0), "{command:?}: {said}");
    }

    /// The report of `walpost check`.
    pub async fn check(&self) -> Report {
        self.check_with(&[]).await
    }

    /// The same with further arguments.
    pub async fn check_with(&self, arguments: &[&str]) -> Report {
        let check = Walpost::builder(program())
            .args(["check", "--json", "--source", &self.source])
            .args(["--bootstrap-servers", &self.bootstrap])
            .args(&self.options)
            .args(arguments)
            .envs(&self.environment)
            .start();
        let status = check.wait(SHORT_TIMEOUT).await.expect("check ends");
        let text = check.stdout().join("\n");
        let found: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}\n{}", check.stderr().join("\n")));
        assert_eq!(check.stderr(), [""; 0], "nothing on standard error");
        let is_ok = found["ok"].as_bool().expect("a verdict");
        assert_eq!(status.code(), Some(i32::from(!is_ok)), "{text}");
        Report(found["findings"].as_array().expect("findings").clone())
    }

    /// There is a finding of this level; its fix is executed as printed, and the finding is gone.
    /// Returns the report from before.
    pub async fn finding_is_fixed(&self, level: &str, code: &str) -> Report {
        let report = self.check().await;
        let finding = report.finding(level, code);
        let fix = finding["fix"].as_str().expect("a fix").to_owned();
        match finding["fix_kind"].as_str() {
            Some("sql") => self.psql(&fix),
            Some("command") => self.shell(&fix).await,
            other => panic!("{code}: not to be done by itself: {other:?}: {fix}"),
        }
        self.check().await.has_no(code);
        report
    }

    /// There is a finding of this level with advice in these words; `follow` does it, and the
    /// finding is gone. Returns the report from before.
    pub async fn finding_with_advice(
        &mut self,
        level: &str,
        code: &str,
        words: &[&str],
        follow: impl AsyncFnOnce(&mut Self, &str),
    ) -> Report {
        let report = self.check().await;
        let finding = report.finding(level, code);
        assert_eq!(finding["fix_kind"], "advice", "{finding:#}");
        let advice = finding["fix"].as_str().expect("a fix").to_owned();
        for word in words {
            assert!(advice.contains(word), "{word:?} in {finding:#}");
        }
        follow(self, &advice).await;
        self.check().await.has_no(code);
        report
    }

    /// Runs statements in psql, as a superuser who pastes them.
    pub fn psql(&self, sql: &str) {
        let mut command = Command::new("psql");
        command.args(["-X", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", &self.database]);
        command.arg("-h").arg(self.postgres.socket_dir());
        command.args(["-p", &self.postgres.port().to_string(), "-f", "-"]);
        succeed(command, sql);
    }

    /// Runs a command of the report.
    pub async fn shell(&self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.split_first() {
            Some((&"walpost", rest)) => self.walpost(rest).await,
            Some((script, rest)) if script.starts_with("kafka-") => {
                // The user of the report has no privilege to change anything.
                let rest = rest.iter().map(|&word| {
                    if word == self.bootstrap {
                        &self.administrator
                    } else {
                        word.trim_matches('\'')
                    }
                });
                kafka_tool(script, rest).await;
            }
            _ => {
                let mut shell = Command::new("sh");
                let place = format!(
                    "host={} port={} user=postgres dbname={}",
                    self.postgres.socket_dir().display(),
                    self.postgres.port(),
                    self.database
                );
                shell.args(["-c", &command.replace("$SOURCE_URL", &place)]);
                succeed(shell, "");
            }
        }
    }
}

/// Runs one of Kafka's scripts by its class.
async fn kafka_tool<'a>(script: &str, arguments: impl Iterator<Item = &'a str>) {
    let class = match script {
        "kafka-topics.sh" => "org.apache.kafka.tools.TopicCommand",
        "kafka-configs.sh" => "kafka.admin.ConfigCommand",
        "kafka-acls.sh" => "org.apache.kafka.tools.AclCommand",
        other => panic!("no such script: {other}"),
    };
    let mut command = Kafka::shared().await.java();
    command.arg(class).args(arguments);
    succeed(command, "");
}

/// Runs it with that text on its standard input.
pub fn succeed(mut command: Command, input: &str) -> Output {
    let name = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = [&output.stdout[..], &output.stderr].concat();
    assert!(output.status.success(), "{name}\n{input}\n{}", String::from_utf8_lossy(&said));
    output
}

/// The findings of one check.
#[derive(Debug)]
pub struct Report(Vec<Value>);

impl Report {
    /// The finding of this level for this check, with what it reports.
    #[track_caller]
    pub fn finding(&self, level: &str, code: &str) -> &Value {
        let found = self.0.iter().find(|finding| finding["code"] == code);
        let found =
            found.unwrap_or_else(|| panic!("no {code} in {:#}", Value::from(self.0.clone())));
        assert_eq!(found["level"], level, "{found:#}");
        if level != "ok" {
            for part in ["what", "why", "fix"] {
                let said = found[part].as_str().is_some_and(|text| text.len() > 3);
                assert!(said, "{part} in {found:#}");
            }
        }
        found
    }

    /// The check was not made.
    #[track_caller]
    pub fn skipped(&self, code: &str) {
        let found = self.0.iter().any(|one| one["code"] == code && one["level"] == "skipped");
        assert!(found, "{:#}", Value::from(self.0.clone()));
    }

    /// The check has no finding.
    #[track_caller]
    pub fn has_no(&self, code: &str) {
        let found = self.0.iter().find(|one| one["code"] == code && one["level"] != "ok");
        assert_eq!(found, None);
    }

    /// Neither a warning nor an error.
    #[track_caller]
    pub fn is_clean(&self) {
        let amiss = |one: &&Value| one["level"] == "warning" || one["level"] == "error";
        let amiss: Vec<_> = self.0.iter().filter(amiss).collect();
        assert!(amiss.is_empty(), "{amiss:#?}");
    }
}

/// The fix is `walpost init --apply`, with the flags that `check` had.
pub fn assert_init(fix: &Value) {
    let fix = fix.as_str().expect("a fix");
    assert!(fix.starts_with("walpost init --apply --source "), "{fix}");
}
