//! Checks the topics that are known in advance: the topic of a template without a field, the
//! dead-letter topic and the state topic.

use std::collections::BTreeMap;

use crate::config::{self, Config};
use crate::destination::kafka::{
    self, Brokers, KafkaConfig, MetadataClient, NotCreated, TopicAt, TopicState, message_max_bytes,
    read_newest,
};
use crate::destination::parts::stored::{self, SlotAt};
use crate::findings::{Finding, Findings, Name};
use crate::record::{Policy, Profile};
use crate::state::{KeptState, StoredPosition};

const SUBJECT: &str = "topic";

/// Below this retention, an outage over a weekend outlasts a topic's retention. The brokers'
/// default is a week.
const RETENTION_SHORT_MS: i64 = 3 * 24 * 3_600_000;

/// Checks them; `makes_topics` tells whether the brokers create topics automatically.
pub(crate) fn check(
    config: &Config,
    (kafka, client, brokers): (&KafkaConfig, &MetadataClient, &Brokers),
    makes_topics: Option<bool>,
    slot: Option<&SlotAt>,
    findings: &mut Findings,
) {
    let profile = config::profile(config).ok();
    let is_untimed = profile.as_ref().is_some_and(Profile::is_untimed);
    let mut topics = TopicCheck { kafka, client, brokers, makes_topics, is_untimed, findings };
    if let Some(topic) = profile.and_then(|profile| profile.topic_of_all()) {
        topics.check(&topic, Purpose::Events);
    }
    if config.poison.write_letters() {
        let takes_large = config.poison.too_large == Policy::DeadLetter;
        topics.check(&config.poison.dead_letter_topic, Purpose::DeadLetters { takes_large });
    }
    if let Some(topic) = &config.delivery.state_topic {
        let is_there = topics.check(topic, Purpose::State);
        topics.transactions(&config.delivery.id, topic);
        if let Some(slot) = slot.filter(|_| is_there) {
            topics.position(topic, slot);
        }
    }
}

/// The use of a topic.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Events,
    DeadLetters {
        /// Whether it receives dead letters of records that are too large for other topics.
        takes_large: bool,
    },
    State,
}

struct TopicCheck<'a> {
    kafka: &'a KafkaConfig,
    client: &'a MetadataClient,
    brokers: &'a Brokers,
    makes_topics: Option<bool>,
    /// Whether a record's timestamp is the time of production.
    is_untimed: bool,
    findings: &'a mut Findings,
}

impl TopicCheck<'_> {
    /// Whether the topic is there, for walpost's user.
    fn check(&mut self, name: &str, purpose: Purpose) -> bool {
        let found = self.client.topic(name);
        let is_there = found.is_ok();
        match found {
            Ok(topic) => {
                self.findings.add(Finding::ok((SUBJECT, "topic"), format!("{name} is there")));
                self.partitions(name, &topic);
                if let Some(settings) = self.client.topic_settings(name) {
                    self.settings(name, &topic, purpose, &settings);
                } else {
                    let text = format!(
                        "walpost's user may not see the settings of {name} (DESCRIBE_CONFIGS)"
                    );
                    self.findings.add(Finding::skipped((SUBJECT, "topic_settings"), text));
                }
            }
            Err(error) if error.is_missing() => match purpose {
                Purpose::State => self.no_state(name),
                Purpose::Events | Purpose::DeadLetters { .. } => self.missing(name),
            },
            Err(error) if error.is_unauthorized() => self.unauthorized(name, purpose),
            Err(error) => self.findings.add(
                Finding::error(
                    (SUBJECT, "topic_unknown"),
                    format!("the brokers say of topic {name}: {error}"),
                )
                .why("`run` would wait for it")
                .advice("see the brokers' logs"),
            ),
        }
        is_there
    }

    fn unauthorized(&mut self, name: &str, purpose: Purpose) {
        let code = (SUBJECT, "topic_unauthorized");
        let text = format!("walpost's user may not see topic {name}, if there is one");
        let finding = match purpose {
            Purpose::State => unusable_state(code, text)
                .command(grant(&format!("--operation Read --topic {name}"), self.kafka)),
            Purpose::Events | Purpose::DeadLetters { .. } => Finding::error(code, text)
                .why("`run` waits until it may write to it")
                .command(grant(&format!("--topic {name}"), self.kafka)),
        };
        self.findings.add(finding);
    }

    fn missing(&mut self, name: &str) {
        let text = format!("there is no topic {name}");
        let servers = &self.kafka.bootstrap_servers;
        if let Some(new) = self.kafka.missing_topics.creates {
            let finding = match self.client.may_create_topic(&new.topic(name)) {
                Ok(()) => {
                    let text = format!("{text}: `run` creates it for its first event");
                    Finding::ok((SUBJECT, "topic_missing"), text)
                }
                Err(NotCreated { reason, .. }) => {
                    let text = format!("{text}, and walpost could not create it: {reason}");
                    Finding::error((SUBJECT, "topic_missing"), text)
                        .why("kafka.create_topics is set, but the brokers would not create this topic")
                        .command(TopicAt { topic: name, servers }.create())
                }
            };
            return self.findings.add(finding);
        }
        let create = TopicAt { topic: name, servers }.create();
        let replicas = self.brokers.ids.len().min(3);
        let command = format!("{create} --partitions 6 --replication-factor {replicas}");
        let finding = match self.makes_topics {
            Some(false) => Finding::error((SUBJECT, "topic_missing"), text).why(
                "it is not created automatically (that needs auto.create.topics.enable on the \
                 brokers and allow.auto.create.topics in walpost's producer): `run` waits until it \
                 exists",
            ),
            Some(true) => Finding::warning((SUBJECT, "topic_missing"), text).why(
                "the brokers create it at its first use, with their default number of partitions \
                 and replicas",
            ),
            None => Finding::warning((SUBJECT, "topic_missing"), text).why(
                "where the brokers do not create topics automatically, `run` waits until it \
                 exists",
            ),
        };
        self.findings.add(finding.command(command));
    }

    fn no_state(&mut self, name: &str) {
        let (code, text) = ((SUBJECT, "state_topic_missing"), format!("there is no topic {name}"));
        let finding = unusable_state(code, text);
        self.findings.add(finding.command("walpost adopt --apply"));
    }

    /// Whether the state topic has a position of the slot from which `run` would start.
    fn position(&mut self, topic: &str, slot: &SlotAt) {
        const NAME: Name = (SUBJECT, "state_position");
        let found = match read_newest(self.kafka, topic, &slot.key) {
            Ok(KeptState::Record { state, .. }) => {
                Ok(Some(StoredPosition { state, published: None }))
            }
            Ok(KeptState::NoPlace | KeptState::NoRecord) => Ok(None),
            Err(failure) => Err(failure),
        };
        let place = kafka::state_topic(topic);
        let names =
            stored::FindingNames { state: NAME, position: NAME, stream: NAME, store: None, place };
        let text = format!("{topic} has the position of slot {}", slot.key.slot);
        stored::check(&names, text, Some((slot, found)), self.findings);
    }

    /// Whether walpost's user may write the state topic in transactions.
    fn transactions(&mut self, delivery_id: &str, topic: &str) {
        const NAME: (&str, &str) = (SUBJECT, "transactional_id");
        // Nobody else uses this id, so it fences nobody.
        match kafka::begins_transactions(self.kafka, &format!("{delivery_id}-check"), topic) {
            Ok(()) => {
                let text = "walpost's user may use transactions, for the state topic";
                self.findings.add(Finding::ok(NAME, text));
            }
            Err(reason) if reason.is_unauthorized => {
                let pattern =
                    format!("--transactional-id {delivery_id}- --resource-pattern-type prefixed");
                let code = (SUBJECT, "transactional_id_unauthorized");
                let text = format!("walpost's user may not use transactional ids {delivery_id}-…");
                let finding = unusable_state(code, text);
                self.findings.add(finding.command(grant(&pattern, self.kafka)));
            }
            Err(error) => {
                let text = format!("the brokers did not begin a transaction: {}", error.reason);
                self.findings.add(Finding::skipped(NAME, text));
            }
        }
    }

    fn partitions(&mut self, name: &str, topic: &TopicState) {
        let leaderless = topic.leaderless().len();
        if leaderless > 0 {
            let text = format!("no broker leads {leaderless} partition(s) of {name}");
            self.findings.add(
                Finding::error((SUBJECT, "topic_leaderless"), text)
                    .why("what goes there is not acknowledged, and all behind it waits")
                    .advice("bring back the brokers that have them"),
            );
        }
        if topic.replicas() < 3 {
            let text = format!("{name} has a replication factor of {}", topic.replicas());
            self.findings.add(
                Finding::warning((SUBJECT, "topic_replication_factor"), text)
                    .why(
                        "with fewer than three a broker that is lost or repaired takes delivery \
                          or records with it",
                    )
                    .advice(
                        "give it three replicas by kafka-reassign-partitions.sh, or make it \
                             anew with --replication-factor 3 while it is empty",
                    ),
            );
        }
    }

    fn settings(
        &mut self,
        name: &str,
        topic: &TopicState,
        purpose: Purpose,
        settings: &BTreeMap<String, String>,
    ) {
        self.min_insync(name, topic, number(settings, "min.insync.replicas"));
        self.record_size(name, purpose, number(settings, "max.message.bytes"));
        self.retention(name, settings);
        if let Some(policy) = settings.get("cleanup.policy") {
            self.cleanup(name, purpose, policy);
        }
    }

    fn cleanup(&mut self, name: &str, purpose: Purpose, policy: &str) {
        match purpose {
            Purpose::DeadLetters { .. } if policy.contains("compact") => self.findings.add(
                Finding::warning((SUBJECT, "topic_compacted"), format!("{name} is compacted"))
                    .why("it keeps the last dead letter of a key alone, and the others are lost")
                    .command(self.set(name, "cleanup.policy", "delete")),
            ),
            Purpose::State if policy != "compact" => self.findings.add(
                Finding::error(
                    (SUBJECT, "state_topic_not_compacted"),
                    format!("{name} deletes old records"),
                )
                .why(
                    "the position of a walpost that has nothing to deliver for long is deleted, and \
                     its next start ends with exit code 3",
                )
                .command(self.set(name, "cleanup.policy", "compact")),
            ),
            Purpose::Events | Purpose::DeadLetters { .. } | Purpose::State => {}
        }
    }

    fn min_insync(&mut self, name: &str, topic: &TopicState, setting: Option<u64>) {
        let replicas = topic.replicas() as u64;
        match setting {
            Some(least) if least > replicas => {
                let text = format!(
                    "{name} has {replicas} replica(s), and min.insync.replicas asks for {least}"
                );
                self.findings.add(
                    Finding::error((SUBJECT, "topic_min_insync_above_replicas"), text)
                        .why("no record is ever acknowledged")
                        .command(self.set(
                            name,
                            "min.insync.replicas",
                            &replicas.min(2).to_string(),
                        )),
                );
            }
            Some(least) if least > topic.in_sync() as u64 => {
                let text = format!(
                    "{name} has {} replica(s) in sync, and min.insync.replicas asks for {least}",
                    topic.in_sync()
                );
                self.findings.add(
                    Finding::error((SUBJECT, "topic_not_in_sync"), text)
                        .why("no record is acknowledged until there are more")
                        .advice("bring back the brokers that have the other replicas"),
                );
            }
            Some(least) if least < 2 && replicas > 1 => {
                let text = format!("min.insync.replicas of {name} is {least}");
                self.findings.add(
                    Finding::warning((SUBJECT, "topic_min_insync_replicas"), text)
                        .why(
                            "a record that one broker alone has counts as delivered, and is lost \
                              with it",
                        )
                        .command(self.set(name, "min.insync.replicas", "2")),
                );
            }
            _ => {}
        }
    }

    fn record_size(&mut self, name: &str, purpose: Purpose, setting: Option<u64>) {
        let most = message_max_bytes(self.kafka);
        let limit = setting.filter(|limit| *limit < most);
        if let Some(limit) =
            limit.filter(|_| purpose != Purpose::DeadLetters { takes_large: false })
        {
            let why = match purpose {
                // A position takes a few hundred bytes.
                Purpose::State => return,
                Purpose::Events => "a record of a size in between is rejected, and is poison",
                Purpose::DeadLetters { .. } => {
                    "a dead letter of a size in between is rejected, and halts `run`"
                }
            };
            let text = format!(
                "{name} takes {limit} bytes a record (max.message.bytes), and the producer's \
                 message.max.bytes is {most}"
            );
            self.findings.add(
                Finding::warning((SUBJECT, "topic_max_message_bytes"), text)
                    .why(why)
                    .command(self.set(name, "max.message.bytes", &most.to_string())),
            );
        }
    }

    /// A record with the commit time as its timestamp expires by that time.
    fn retention(&mut self, name: &str, settings: &BTreeMap<String, String>) {
        let is = |setting: &str, part: &str| {
            settings.get(setting).is_some_and(|value| value.contains(part))
        };
        let retention_ms = settings.get("retention.ms").and_then(|value| value.parse().ok());
        let Some(retention_ms @ 0..RETENTION_SHORT_MS) = retention_ms else { return };
        if self.is_untimed
            || !is("message.timestamp.type", "CreateTime")
            || !is("cleanup.policy", "delete")
        {
            return;
        }
        let hours = retention_ms / 3_600_000;
        let text = format!(
            "{name} keeps records for {hours} hours (retention.ms {retention_ms}), by their \
             timestamps, which are those of the events"
        );
        self.findings.add(
            Finding::warning((SUBJECT, "topic_retention_short"), text)
                .why(
                    "an event that is older when it is delivered, after an outage or as a dead letter \
                     that is put back, is deleted before anybody reads it",
                )
                .command(self.set(name, "message.timestamp.type", "LogAppendTime")),
        );
    }

    /// The command that sets a topic's configuration.
    fn set(&self, topic: &str, setting: &str, value: &str) -> String {
        format!(
            "kafka-configs.sh --bootstrap-server {} --alter --topic {topic} --add-config \
             {setting}={value}",
            self.kafka.bootstrap_servers
        )
    }
}

/// `run` cannot use the state topic.
fn unusable_state(code: Name, text: String) -> Finding {
    Finding::error(code, text).why(
        "`run` does not start without its state topic, or delivery.state_topic = \"off\": then a slot \
         that is created again or advanced while walpost is not running is not noticed",
    )
}

/// The command that permits walpost's user to write to the topics.
pub(crate) fn grant(pattern: &str, kafka: &KafkaConfig) -> String {
    let user = kafka.properties.get("sasl.username").map_or("walpost", String::as_str);
    format!(
        "kafka-acls.sh --bootstrap-server {} --add --force --allow-principal User:{user} \
         --operation Write --operation Describe {pattern}",
        kafka.bootstrap_servers
    )
}

/// The value of a topic's setting that is a number.
fn number(settings: &BTreeMap<String, String>, name: &str) -> Option<u64> {
    settings.get(name).and_then(|value| value.parse().ok())
}
