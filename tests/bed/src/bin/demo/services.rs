//! The services of the demo: PostgreSQL, Kafka or a mock of it or another destination, walpost and
//! the consumer.

use std::path::PathBuf;
use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use walpost_bed::{
    BedError, Consumed, Destination, Kafka, Major, Port, Postgres, ReadPosition, Walpost,
    WalpostBuilder, read_all, url_variable,
};

use crate::DemoError;
use crate::consumer::Consumer;
use crate::shop::SCHEMA;
use crate::terminal::Terminal;

/// The topic that the orders' events go to, by walpost's default template.
const TOPIC: &str = "outbox.event.order";
const PARTITIONS: i32 = 3;
/// For what takes a moment on a busy machine.
const SHORT_TIMEOUT: Duration = Duration::from_secs(20);

/// Brokers, real or not, or another destination.
enum Brokers {
    Real(Kafka),
    /// librdkafka's own, in this process.
    Mock(MockCluster<'static, DefaultProducerContext>),
    Other(Destination),
}

/// All running services.
pub(crate) struct Services {
    pub(crate) postgres: Postgres,
    brokers: Brokers,
    program: PathBuf,
    /// Of walpost's endpoints, with each start.
    port: Port,
    walpost: Walpost,
    pub(crate) consumer: Consumer,
}

impl Services {
    /// Starts all services, and prints that. The destination is Kafka unless another kind is named.
    pub(crate) async fn set(
        terminal: &Terminal,
        sink: Option<&'static str>,
    ) -> Result<Self, DemoError> {
        let program = std::env::current_exe()?.with_file_name("walpost");
        if !program.exists() {
            return Err(format!("{} is missing: run `make demo`", program.display()).into());
        }
        terminal.heading("Starting the services on free ports of 127.0.0.1");
        let major = Major::of_the_system().unwrap_or(Major::V17);
        // As in production: a commit is on disk before it is one.
        let postgres = Postgres::builder(major).setting("fsync", "on").try_start().await?;
        terminal.say(&format!("PostgreSQL {} is up: {}", major.number(), postgres.url()));
        let brokers = match sink {
            None => brokers(terminal).await?,
            Some(kind) => other(kind, terminal).await?,
        };
        postgres.execute(SCHEMA).await;
        terminal.say("created the shop's tables: orders, order_items");
        terminal.say("walpost init --apply:");
        let command = Walpost::builder(&program).args(["init", "--apply"]);
        let command = brokers.arguments(command.args(["--source", &postgres.url()]));
        applied("init", &command.try_start()?, terminal).await?;
        let consumer = match &brokers {
            Brokers::Other(destination) => Consumer::of(destination).await,
            _ => Consumer::start(&brokers.address(), TOPIC),
        };
        let port = Port::reserve()?;
        let walpost = run(&program, &port, &postgres, &brokers)?;
        let services = Self { postgres, brokers, program, port, walpost, consumer };
        services.streaming().await;
        let pid = services.walpost.pid().unwrap_or_default();
        terminal.say(&format!("walpost run streams (process {pid}), a consumer reads {TOPIC}"));
        Ok(services)
    }

    /// walpost's page.
    pub(crate) fn page(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port.number())
    }

    /// What a consumer needs to know.
    pub(crate) fn for_consumers(&self) -> String {
        let address = self.brokers.address();
        match &self.brokers {
            Brokers::Other(Destination::Http(_)) => "your HTTP server, at http.url".to_owned(),
            Brokers::Other(Destination::RabbitMq(queues)) => {
                format!("{address}, queues {}, {} and others", queues.queue(0), queues.queue(1))
            }
            Brokers::Other(Destination::Sqs(_)) => format!("queue {address}"),
            Brokers::Other(_) => format!("{address}, stream outbox"),
            _ => format!("bootstrap servers {address}, topic {TOPIC}"),
        }
    }

    /// Everything that was delivered, as a consumer reads it.
    pub(crate) async fn records(&self) -> Vec<Consumed> {
        match &self.brokers {
            Brokers::Other(destination) => {
                destination.records_after(&ReadPosition::default()).await
            }
            _ => read_all(&self.brokers.address(), TOPIC).await,
        }
    }

    /// Whether nothing may be there twice.
    pub(crate) fn is_exact(&self) -> bool {
        self.brokers.have_position()
    }

    /// The running walpost, or the one that ended last.
    pub(crate) fn walpost(&self) -> &Walpost {
        &self.walpost
    }

    /// Starts walpost again after its end; it streams a moment later.
    pub(crate) fn start_walpost(&mut self) -> Result<(), DemoError> {
        self.walpost = run(&self.program, &self.port, &self.postgres, &self.brokers)?;
        Ok(())
    }

    /// Awaits that walpost streams.
    pub(crate) async fn streaming(&self) {
        self.walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
    }

    /// Log that is written and not confirmed as delivered, as PostgreSQL puts it.
    pub(crate) async fn lag(&self) -> String {
        let query = "SELECT pg_size_pretty(pg_current_wal_lsn() - confirmed_flush_lsn) \
                       FROM pg_replication_slots WHERE slot_name = 'walpost'";
        self.postgres.query_text(query).await.unwrap_or_else(|| "unknown".to_owned())
    }

    /// Stops everything, walpost first, which has to end well.
    pub(crate) async fn clear(self) -> Result<(), DemoError> {
        self.walpost.terminate();
        let status = self.walpost.wait(SHORT_TIMEOUT).await.ok_or("walpost does not stop")?;
        if status.success() { Ok(()) } else { Err(format!("walpost ended with {status}").into()) }
    }
}

impl Brokers {
    fn address(&self) -> String {
        match self {
            Self::Real(kafka) => kafka.bootstrap(),
            Self::Mock(cluster) => cluster.bootstrap_servers(),
            Self::Other(destination) => destination.url_at(destination.port()),
        }
    }

    /// Whether walpost's position is kept beside the events.
    fn have_position(&self) -> bool {
        matches!(self, Self::Other(destination) if destination.has_position())
    }

    /// The command, for this destination.
    fn arguments(&self, command: WalpostBuilder) -> WalpostBuilder {
        match self {
            Self::Other(destination) => {
                let command = command.args(["--sink", destination.kind()]);
                let variables = destination.variables().iter();
                let command =
                    variables.fold(command, |command, (name, value)| command.env(name, value));
                command.env(url_variable(destination.kind()), self.address()).keeps_position()
            }
            Self::Real(_) => {
                command.args(["--bootstrap-servers", &self.address()]).keeps_position()
            }
            Self::Mock(_) => command.args(["--bootstrap-servers", &self.address()]),
        }
    }
}

/// Awaits that a command has done its work, and prints what it says.
async fn applied(name: &str, command: &Walpost, terminal: &Terminal) -> Result<(), DemoError> {
    let status = command.wait(SHORT_TIMEOUT).await;
    let status = status.ok_or_else(|| format!("walpost {name} does not exit"))?;
    if !status.success() {
        return Err(format!("walpost {name} failed: {}", command.stderr().join(" ")).into());
    }
    for line in command.stdout() {
        terminal.note(&format!("  {line}"));
    }
    Ok(())
}

fn run(
    program: &PathBuf,
    port: &Port,
    postgres: &Postgres,
    brokers: &Brokers,
) -> Result<Walpost, BedError> {
    let command = Walpost::builder(program)
        .args(["run", "--source", &postgres.url_for("walpost")])
        .args(["--log-format", "text", "--admin-listen", &format!("127.0.0.1:{}", port.number())]);
    brokers.arguments(command).try_start()
}

/// Another destination than Kafka.
async fn other(kind: &'static str, terminal: &Terminal) -> Result<Brokers, DemoError> {
    let destination = Destination::try_start(kind).await?;
    let address = destination.url_at(destination.port());
    terminal.say(&format!("{} is up: {address}", destination.name()));
    Ok(Brokers::Other(destination))
}

/// Kafka; where it cannot be had, librdkafka's in-process broker.
async fn brokers(terminal: &Terminal) -> Result<Brokers, DemoError> {
    let asked = std::env::var_os("WALPOST_DEMO_MOCK").is_some_and(|it| !it.is_empty() && it != "0");
    let reason = if asked {
        "WALPOST_DEMO_MOCK is set".to_owned()
    } else {
        terminal.note(
            "Kafka starts (the first time Maven fetches its jars, some 60 MB, into the cache) …",
        );
        match Kafka::builder().try_start().await {
            Ok(kafka) => {
                kafka.create_topic(TOPIC, PARTITIONS).await;
                terminal.say(&format!("Apache Kafka is up: {}", kafka.bootstrap()));
                return Ok(Brokers::Real(kafka));
            }
            // It cannot be installed here: no JDK, no Maven, no network.
            Err(error @ (BedError::Missing { .. } | BedError::Command { .. })) => error.to_string(),
            Err(error) => return Err(error.into()),
        }
    };
    let cluster = MockCluster::new(1)?;
    cluster.create_topic(TOPIC, PARTITIONS, 1)?;
    terminal.say(&format!(
        "no Apache Kafka ({reason}): using librdkafka's in-process mock broker, {}",
        cluster.bootstrap_servers()
    ));
    terminal.note(
        "it delays consumers by up to half a second, which accounts for most of the delays below",
    );
    Ok(Brokers::Mock(cluster))
}
