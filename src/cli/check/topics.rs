//! The topics that are known before an event comes: the one of a template without a field,
//! and that of the dead letters.

use super::findings::{Findings, Level};
use crate::assembly;
use crate::config::Config;
use crate::relay::poison::Policy;
use crate::sink::{self, KafkaConfig, Reached};

/// Looks for them among those that the brokers told of.
pub(super) fn check(
    config: &Config,
    kafka: &KafkaConfig,
    reached: &Reached,
    findings: &mut Findings,
) {
    if let Some(topic) = assembly::profile(config).ok().and_then(|profile| profile.topic_of_all()) {
        look_for(&topic, kafka, reached, findings);
    }
    if !config.poison.write_letters() {
        return;
    }
    let topic = &config.poison.dead_letter_topic;
    if !look_for(topic, kafka, reached, findings) {
        return;
    }
    if sink::topic_is_compacted(kafka, topic) == Some(true) {
        findings.add(Level::Warning, "topic", compacted(topic, &kafka.bootstrap_servers));
    }
    if config.poison.too_large == Policy::DeadLetter {
        check_size(topic, kafka, findings);
    }
}

fn look_for(topic: &str, kafka: &KafkaConfig, reached: &Reached, findings: &mut Findings) -> bool {
    let is_there = reached.topics.contains(topic);
    if is_there {
        findings.add(Level::Ok, "topic", format!("{topic} is there"));
    } else {
        findings.add(Level::Warning, "topic", missing(topic, &kafka.bootstrap_servers));
    }
    is_there
}

fn compacted(topic: &str, servers: &str) -> String {
    format!(
        "{topic} is compacted: it keeps the last dead letter of a key alone, and the others are lost: \
         kafka-configs.sh --bootstrap-server {servers} --alter --topic {topic} --add-config \
         cleanup.policy=delete"
    )
}

fn missing(topic: &str, servers: &str) -> String {
    format!(
        "there is no {topic}, or walpost's user may not see it: where the brokers do not make topics by \
         themselves, `run` waits until it is there: kafka-topics.sh --bootstrap-server {servers} --create \
         --topic {topic}"
    )
}

/// A letter that the producer takes should not be one that the topic refuses.
fn check_size(topic: &str, kafka: &KafkaConfig, findings: &mut Findings) {
    let most = sink::message_max_bytes(kafka);
    let Some(limit) = sink::topic_max_bytes(kafka, topic).filter(|limit| *limit < most) else {
        return;
    };
    let text = format!(
        "{topic} takes {limit} bytes a record (max.message.bytes), and the producer's message.max.bytes \
         is {most}: a dead letter in between is refused, and halts `run`; raise the topic's: \
         kafka-configs.sh --bootstrap-server {} --alter --topic {topic} --add-config max.message.bytes={most}",
        kafka.bootstrap_servers
    );
    findings.add(Level::Warning, "topic", text);
}
