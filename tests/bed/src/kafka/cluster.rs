//! A cluster of three nodes, each broker and controller.
//!
//! Every topic has three replicas. In a cluster for tests a node that stops responding is fenced
//! within three seconds, so that tests need not wait long.

use std::fs;
use std::path::PathBuf;

use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::install::install;
use super::{Admin, Kafka, KafkaBuilder, tools};
use crate::error::BedError;
use crate::eventually::eventually;
use crate::port::Port;
use crate::server::READY;

const NODES: u32 = 3;

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Kafka>,
    installed: PathBuf,
}

impl Cluster {
    /// One for the whole test process, to one test at a time: three brokers are
    /// dear. All its nodes run, whatever the test before has left; each test takes
    /// topics of its own. It ends with the process.
    pub async fn shared() -> MutexGuard<'static, Self> {
        static SHARED: OnceCell<Mutex<Cluster>> = OnceCell::const_new();
        let shared = SHARED.get_or_init(async || Mutex::new(Self::start().await)).await;
        let cluster = shared.lock().await;
        for node in &cluster.nodes {
            node.resume();
            let whole = match node.pid() {
                Some(_) => node.ready().await,
                None => node.try_start_again().await,
            };
            whole.unwrap_or_else(|error| panic!("{error}"));
        }
        cluster
    }

    async fn start() -> Self {
        let quick = |_: usize, node: KafkaBuilder| {
            node.heap_mebibytes(256)
                .property("auto.create.topics.enable", "false")
                .property("broker.session.timeout.ms", "3000")
                .property("broker.heartbeat.interval.ms", "500")
                .property("transaction.state.log.replication.factor", "3")
                .property("transaction.state.log.min.isr", "2")
        };
        Self::try_start(quick).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// One for benches: on the JVM of Kafka's own scripts, with Kafka's own timeouts and with
    /// `min.insync.replicas` = 2. If ports of proxies are given, one for each node, the nodes have
    /// listeners that advertise them ([`KafkaBuilder::behind`]).
    pub async fn for_bench(proxy_ports: &[u16]) -> Self {
        let ports = proxy_ports.to_vec();
        let measured = move |index: usize, node: KafkaBuilder| {
            let node = node.as_shipped().property("min.insync.replicas", "2");
            match ports.get(index) {
                Some(port) => node.behind(*port),
                None => node,
            }
        };
        Self::try_start(measured).await.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn try_start(
        configure: impl Fn(usize, KafkaBuilder) -> KafkaBuilder + Send + 'static,
    ) -> Result<Self, BedError> {
        let nodes = tokio::task::spawn_blocking(move || lay_out(configure))
            .await
            .expect("laying out brokers does not panic")?;
        for node in &nodes {
            node.launch()?;
        }
        for node in &nodes {
            node.ready().await?;
        }
        let installed = nodes[0].installed.clone();
        Ok(Self { nodes, installed })
    }

    /// The addresses for `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(Kafka::bootstrap).collect();
        addresses.join(",")
    }

    /// All nodes, those that are down too.
    pub fn nodes(&self) -> &[Kafka] {
        &self.nodes
    }

    /// The node of this id.
    #[track_caller]
    pub fn node(&self, id: i32) -> &Kafka {
        let found = self.nodes.iter().find(|node| i32::try_from(node.node) == Ok(id));
        found.unwrap_or_else(|| panic!("no node has the id {id}"))
    }

    /// Its topics.
    pub fn administration(&self) -> Admin {
        Admin::of(self.bootstrap(), 3)
    }

    /// The node that leads a partition.
    pub async fn leader(&self, topic: &str, partition: usize) -> i32 {
        let administration = self.administration();
        eventually(READY, "a leader", async || {
            let seen = administration.partitions(topic).await?;
            let leader = seen.get(partition).map(|one| one.leader).filter(|leader| *leader >= 0);
            leader.ok_or_else(|| format!("{seen:?}"))
        })
        .await
    }

    /// Lets another node lead the only partition of a topic, by reassignment and
    /// election, while all nodes run; gives the new leader.
    pub async fn move_leader(&self, topic: &str) -> i32 {
        let before = self.leader(topic, 0).await;
        let next = before % 3 + 1;
        let replicas = format!("[{next},{},{before}]", next % 3 + 1);
        let plan = format!(
            r#"{{"version":1,"partitions":[{{"topic":"{topic}","partition":0,"replicas":{replicas}}}]}}"#
        );
        let path = self.nodes[0].directory().join("plan.json");
        fs::write(&path, plan).expect("a node's directory is writable");
        let plan = path.display().to_string();
        let reassign = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand";
        let arguments = ["--reassignment-json-file", &plan, "--execute"];
        tools::run(&self.installed, &self.bootstrap(), reassign, &arguments).await;
        let elect = "org.apache.kafka.tools.LeaderElectionCommand";
        let arguments = ["--election-type", "PREFERRED", "--topic", topic, "--partition", "0"];
        tools::run(&self.installed, &self.bootstrap(), elect, &arguments).await;
        eventually(READY, "the leader moves", async || {
            let leader = self.leader(topic, 0).await;
            if leader == next { Ok(()) } else { Err(leader) }
        })
        .await;
        next
    }
}

/// The nodes, each with what `configure` adds to it by its index.
fn lay_out(
    configure: impl Fn(usize, KafkaBuilder) -> KafkaBuilder,
) -> Result<Vec<Kafka>, BedError> {
    let installed = install()?;
    let mut seats = Vec::new();
    for id in 1..=NODES {
        seats.push((id, Port::reserve()?));
    }
    let voter = |(id, port): &(u32, Port)| format!("{id}@127.0.0.1:{}", port.number());
    let voters: Vec<_> = seats.iter().map(voter).collect();
    let voters = voters.join(",");
    let node = |(index, (id, controller_port))| {
        let builder = KafkaBuilder { voters: Some(voters.clone()), ..KafkaBuilder::default() };
        configure(index, builder).lay_out(installed.clone(), id, controller_port)
    };
    seats.into_iter().enumerate().map(node).collect()
}
