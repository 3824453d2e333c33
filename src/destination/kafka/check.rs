//! Preflight checks of Kafka. They only read, and publish nothing.

use std::time::Duration;

use super::check_topics as topics;
use super::features::ClientError;
use crate::config::{self, Config};
use crate::destination::kafka::{
    self, Brokers, CORRECT_ADVERTISED, ConnectionFailure, KafkaConfig, MetadataClient, TlsFailure,
    asks_for_topics, message_max_bytes,
};
use crate::destination::parts::stored::SlotAt;
use crate::findings::{Finding, Findings};

/// Timeout for a broker's response.
const TIMEOUT: Duration = Duration::from_secs(10);

const SUBJECT: &str = "Kafka";

/// Size of a request in addition to the record: its own fields, the topic name, the batch header.
const REQUEST_OVERHEAD: u64 = 64 << 10;

/// The consequence of unreachable addresses, and the remedy.
const ADVERTISED: (&str, &str) = (
    "records go to the brokers by the addresses that they advertise, and nothing accepts \
     connections there",
    CORRECT_ADVERTISED,
);

/// Checks the client library's configuration and, unless `offline`, brokers and topics.
pub(crate) fn check(
    config: &Config,
    (offline, slot): (bool, Option<&SlotAt>),
    findings: &mut Findings,
) {
    let kafka = kafka::kafka(config);
    if let Err(error) = kafka::accepts(&kafka) {
        return findings.add(client_finding(&error));
    }
    if offline {
        let text = "brokers, credentials and topics were not looked at";
        return findings.add(Finding::skipped((SUBJECT, "kafka"), text));
    }
    match MetadataClient::open_idempotent(&kafka) {
        Ok(client) => check_online(config, (&kafka, &client), slot, findings),
        Err(error) => findings.add(client_finding(&error)),
    }
}

fn check_online(
    config: &Config,
    (kafka, client): (&KafkaConfig, &MetadataClient),
    slot: Option<&SlotAt>,
    findings: &mut Findings,
) {
    let servers = &kafka.bootstrap_servers;
    let brokers = match client.brokers(TIMEOUT) {
        Ok(brokers) => brokers,
        Err(failure) => return findings.add(no_broker(&failure, servers)),
    };
    let text = format!("{servers} answers for {} broker(s)", brokers.ids.len());
    findings.add(Finding::ok((SUBJECT, "brokers"), text));
    let unreachable: Vec<&str> = brokers.addresses.iter().map(String::as_str).collect();
    let unreachable: Vec<&str> =
        unreachable.into_iter().filter(|one| !kafka::accepts_connections(one)).collect();
    if !unreachable.is_empty() {
        let text =
            format!("{servers} answers, and its brokers advertise {}", unreachable.join(", "));
        return findings.add(
            Finding::error((SUBJECT, "kafka_advertised_address"), text)
                .why(ADVERTISED.0)
                .advice(ADVERTISED.1),
        );
    }
    match client.producer_id() {
        Some(Ok(())) => {
            findings.add(Finding::ok((SUBJECT, "kafka_write"), "a producer gets its id"));
        }
        Some(Err(reason)) => findings.add(no_producer(&reason, config, kafka)),
        None => {
            let text = "the brokers have not said whether a producer gets its id";
            findings.add(Finding::skipped((SUBJECT, "kafka_write"), text));
        }
    }
    let makes_topics = check_settings(config, kafka, client, &brokers, findings);
    let makes_topics = if asks_for_topics(kafka) { makes_topics } else { Some(false) };
    topics::check(config, (kafka, client, &brokers), makes_topics, slot, findings);
}

/// Checks size limits that the brokers set for all topics; returns whether the brokers create
/// topics automatically, if they report it.
fn check_settings(
    config: &Config,
    kafka: &KafkaConfig,
    client: &MetadataClient,
    brokers: &Brokers,
    findings: &mut Findings,
) -> Option<bool> {
    let settings: Vec<_> =
        brokers.ids.iter().filter_map(|id| client.broker_settings(*id)).collect();
    if settings.is_empty() {
        let text =
            "walpost's user may not see the brokers' settings (DESCRIBE_CONFIGS on the cluster)";
        findings.add(Finding::skipped((SUBJECT, "broker_settings"), text));
        return None;
    }
    let lowest =
        |name: &str| settings.iter().filter_map(|one| one.get(name)?.parse::<u64>().ok()).min();
    let max = message_max_bytes(kafka);
    if let Some(limit) = lowest("socket.request.max.bytes")
        && max.saturating_add(REQUEST_OVERHEAD) > limit
    {
        findings.add(request_too_large(max, limit));
    }
    let profile = config::profile(config);
    let rows_choose_topics = profile.is_ok_and(|profile| profile.topic_of_all().is_none());
    if let Some(limit) =
        lowest("message.max.bytes").filter(|limit| rows_choose_topics && *limit < max)
    {
        findings.add(record_too_large(max, limit, &kafka.bootstrap_servers));
    }
    settings.first()?.get("auto.create.topics.enable").map(|value| value == "true")
}

/// A request that the broker would not accept.
fn request_too_large(max: u64, limit: u64) -> Finding {
    let text = format!(
        "the brokers accept requests of up to {limit} bytes (socket.request.max.bytes), and \
         message.max.bytes is {max}"
    );
    Finding::error((SUBJECT, "socket_request_max_bytes"), text)
        .why(
            "the broker closes the connection on a record of a size in between, and walpost \
             retries it forever: delivery stalls, and no error names the cause",
        )
        .advice(format!(
            "set message.max.bytes in [kafka.properties] to {} or less",
            limit.saturating_sub(REQUEST_OVERHEAD)
        ))
}

/// A record that topics without their own limit would reject.
fn record_too_large(max: u64, limit: u64, servers: &str) -> Finding {
    let text = format!(
        "topics without their own setting accept {limit} bytes per record (message.max.bytes of \
         the brokers), and the producer's message.max.bytes is {max}"
    );
    Finding::warning((SUBJECT, "broker_message_max_bytes"), text)
        .why("a record of a size in between is rejected, and is poison")
        .command(format!(
            "kafka-configs.sh --bootstrap-server {servers} --alter --entity-type brokers \
             --entity-default --add-config message.max.bytes={max}"
        ))
}

/// The client library rejects the configuration.
fn client_finding(error: &ClientError) -> Finding {
    let code = match error {
        ClientError::Mechanism { .. } => "sasl_mechanism",
        ClientError::Property { .. } => "kafka_property",
        ClientError::Token { .. } => "sasl_token",
        ClientError::Other(_) => "kafka_client",
    };
    let finding =
        Finding::error(("Kafka client", code), error.to_string()).why("`run` would not start");
    match error {
        ClientError::Mechanism { .. } => finding.advice(
            "set sasl.mechanisms to one that this build has (PLAIN, SCRAM-SHA-256, \
             SCRAM-SHA-512), and let the brokers offer it",
        ),
        _ => finding.advice("correct it in [kafka.properties] or -X"),
    }
}

fn no_broker(failure: &ConnectionFailure, servers: &str) -> Finding {
    let (code, text, reason) = match failure {
        ConnectionFailure::Credentials(reason) => {
            ("kafka_credentials", "refuses walpost's credentials", reason)
        }
        ConnectionFailure::Mechanism(reason) => {
            ("kafka_mechanism", "does not offer the SASL mechanism", reason)
        }
        ConnectionFailure::Protocol(reason) => {
            ("kafka_security_protocol", "speaks another protocol", reason)
        }
        ConnectionFailure::Tls(tls, reason) => {
            let (code, text) = match tls {
                TlsFailure::Certificate => {
                    ("kafka_certificate", "shows a certificate that cannot be trusted")
                }
                TlsFailure::Other => ("kafka_tls", "and walpost do not agree on TLS"),
            };
            (code, text, reason)
        }
        ConnectionFailure::Advertised(reason) => (
            "kafka_advertised_address",
            "responds, but the addresses that it advertises do not",
            reason,
        ),
        ConnectionFailure::Unreachable(reason) => {
            ("kafka_unreachable", "cannot be reached", reason)
        }
    };
    let (why, advice) = consequence_and_fix(failure);
    Finding::error((SUBJECT, code), format!("{servers} {text}: {reason}")).why(why).advice(advice)
}

/// The consequence of the failure, and the remedy.
fn consequence_and_fix(failure: &ConnectionFailure) -> (&'static str, &'static str) {
    match failure {
        ConnectionFailure::Credentials(_) => (
            "without them the brokers accept no records",
            "correct sasl.username, sasl.password and sasl.mechanisms",
        ),
        ConnectionFailure::Mechanism(_) => (
            "walpost and the brokers have no SASL mechanism in common",
            "set sasl.mechanisms to one that the brokers offer, or add it to \
             sasl.enabled.mechanisms of their listener",
        ),
        ConnectionFailure::Protocol(_) => (
            "only one of the listener and walpost uses TLS, or only one of them uses a password",
            "set security.protocol as the listener has it (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL), \
             or name another port in --bootstrap-servers",
        ),
        ConnectionFailure::Tls(TlsFailure::Certificate, _) => (
            "it has expired, is for other names than the broker advertises, or is not signed by a \
             trusted authority: librdkafka does not distinguish these",
            "name the file of the authority that signed the brokers' certificates by \
             ssl.ca.location; else renew the broker's certificate, with its names in \
             subjectAltName (openssl s_client -connect HOST:PORT shows it)",
        ),
        ConnectionFailure::Advertised(_) => ADVERTISED,
        ConnectionFailure::Tls(TlsFailure::Other, _) => (
            "without TLS there is no session",
            "see ssl.ca.location, ssl.certificate.location and ssl.key.location, and the broker's \
             log: it may require a client certificate",
        ),
        ConnectionFailure::Unreachable(_) => (
            "nothing can be delivered, and PostgreSQL retains WAL meanwhile",
            "correct --bootstrap-servers, and see that the addresses which the brokers advertise can \
             be reached from here",
        ),
    }
}

/// The user may not write to any topic.
fn no_producer(reason: &str, config: &Config, kafka: &KafkaConfig) -> Finding {
    let text = format!("the brokers refuse a producer its id: {reason}");
    Finding::error((SUBJECT, "kafka_write"), text)
        .why(
            "walpost's user may write to no topic (before Kafka 2.8: lacks IDEMPOTENT_WRITE on \
              the cluster); the brokers report a missing right on a single topic only when a record is written",
        )
        .command(topics::grant(&topic_pattern(config), kafka))
}

/// walpost's topics, as a pattern for `kafka-acls.sh`.
fn topic_pattern(config: &Config) -> String {
    let given = config.debezium.get("route.topic.replacement").map(|(value, _)| value.as_str());
    let template = match config.record.profile {
        None => config.record.topic.as_str(),
        Some(_) => given.unwrap_or("outbox.event."),
    };
    let is_own = config.record.topic_rewrite.is_none();
    let fixed = template.split(['{', '$']).next().filter(|fixed| is_own && !fixed.is_empty());
    match fixed {
        Some(topic) if topic.len() == template.len() && config.record.profile.is_none() => {
            format!("--topic {topic}")
        }
        Some(prefix) => format!("--topic {prefix} --resource-pattern-type prefixed"),
        None => "--topic '*'".to_owned(),
    }
}
