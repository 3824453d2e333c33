//! Creates, changes, describes and deletes topics.

use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::in_background;
use crate::eventually::eventually;
use crate::server::READY;

/// Brokers, by their addresses.
#[derive(Clone, Debug)]
pub struct Admin {
    bootstrap: String,
    replicas: i32,
}

impl Admin {
    /// Topics that it makes have so many replicas.
    pub fn of(bootstrap: String, replicas: i32) -> Self {
        Self { bootstrap, replicas }
    }

    /// Topics that it makes have as many replicas as the brokers give of themselves.
    pub fn by_default(bootstrap: String) -> Self {
        Self { bootstrap, replicas: -1 }
    }

    /// Makes a topic with settings of its own, such as `max.message.bytes`; it
    /// has leaders and all its replicas when this returns.
    pub async fn create(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(self.replicas));
        for (setting, value) in settings {
            topic = topic.set(setting, value);
        }
        let done = self.client().create_topics([&topic], &AdminOptions::new()).await;
        let results = done.unwrap_or_else(|error| panic!("creating {name}: {error}"));
        for result in results {
            result.unwrap_or_else(|(_, code)| panic!("creating {name}: {code}"));
        }
        self.made(name, usize::try_from(partitions).unwrap_or(0)).await;
    }

    /// Awaits that the topic has so many partitions, each led and with its replicas in sync.
    async fn made(&self, name: &str, partitions: usize) {
        match usize::try_from(self.replicas) {
            Ok(replicas) => self.in_sync(name, partitions, replicas).await,
            // The brokers know how many they gave.
            Err(_) => self.are_such(name, partitions, |one| !one.in_sync.is_empty()).await,
        }
    }

    /// Awaits that the topic has so many partitions, each led and with so many
    /// replicas in sync.
    pub async fn in_sync(&self, name: &str, partitions: usize, replicas: usize) {
        self.are_such(name, partitions, |one| one.in_sync.len() == replicas).await;
    }

    async fn are_such(&self, name: &str, partitions: usize, such: impl Fn(&Partition) -> bool) {
        eventually(READY, "leaders and replicas in sync", async || {
            let seen = self.partitions(name).await?;
            let whole = seen.iter().all(|one| one.leader >= 0 && such(one));
            if whole && seen.len() == partitions { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    }

    pub async fn delete(&self, name: &str) {
        let done = self.client().delete_topics(&[name], &AdminOptions::new()).await;
        let results = done.unwrap_or_else(|error| panic!("deleting {name}: {error}"));
        for result in results {
            result.unwrap_or_else(|(_, code)| panic!("deleting {name}: {code}"));
        }
    }

    /// Gives a topic more partitions, so many in all; they have leaders on return.
    pub async fn grow(&self, name: &str, partitions: usize) {
        let more = [NewPartitions::new(name, partitions)];
        let done = self.client().create_partitions(&more, &AdminOptions::new()).await;
        let results = done.unwrap_or_else(|error| panic!("adding to {name}: {error}"));
        for result in results {
            result.unwrap_or_else(|(_, code)| panic!("adding to {name}: {code}"));
        }
        self.made(name, partitions).await;
    }

    /// Gives a topic this setting, and its defaults for all others.
    pub async fn set(&self, name: &str, setting: &str, value: &str) {
        let change = AlterConfig::new(ResourceSpecifier::Topic(name)).set(setting, value);
        let done = self.client().alter_configs([&change], &AdminOptions::new()).await;
        let results = done.unwrap_or_else(|error| panic!("changing {name}: {error}"));
        for result in results {
            result.unwrap_or_else(|(_, code)| panic!("changing {name}: {code}"));
        }
    }

    /// The partitions of a topic in their order; none where there is no such topic.
    pub async fn partitions(&self, name: &str) -> Result<Vec<Partition>, String> {
        let (config, name) = (self.config(), name.to_owned());
        in_background(move || {
            let client: BaseConsumer = config.create().map_err(|error| error.to_string())?;
            // All topics are asked for: to ask for one by its name could make it.
            let seen = client.fetch_metadata(None, Duration::from_secs(5));
            let seen = seen.map_err(|error| error.to_string())?;
            let found = seen.topics().iter().find(|one| one.name() == name);
            let found = found.map_or(&[][..], |one| one.partitions());
            let partition = |one: &rdkafka::metadata::MetadataPartition| Partition {
                leader: one.leader(),
                in_sync: one.isr().to_vec(),
            };
            Ok(found.iter().map(partition).collect())
        })
        .await
    }

    /// How many records were appended to each of these partitions, by their leaders.
    pub async fn ends(&self, name: &str, partitions: &[i32]) -> Result<Vec<i64>, String> {
        let (config, name, partitions) = (self.config(), name.to_owned(), partitions.to_vec());
        in_background(move || {
            let client: BaseConsumer = config.create().map_err(|error| error.to_string())?;
            let end = |partition: &i32| {
                client.fetch_watermarks(&name, *partition, Duration::from_secs(5))
            };
            let ends = partitions.iter().map(end).map(|found| found.map(|(_, end)| end));
            ends.collect::<Result<_, _>>().map_err(|error| error.to_string())
        })
        .await
    }

    fn client(&self) -> AdminClient<DefaultClientContext> {
        self.config().create().expect("a plain configuration makes a client")
    }

    fn config(&self) -> ClientConfig {
        super::client_config(&self.bootstrap)
    }
}

/// Who has a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The node that leads it; negative where none does.
    pub leader: i32,
    /// The nodes whose replicas are in sync.
    pub in_sync: Vec<i32>,
}
