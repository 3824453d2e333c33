//! Converts settings of Kafka's Java producer to librdkafka properties
//! (<https://kafka.apache.org/documentation/#producerconfigs>,
//! <https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md>).

use super::draft::Draft;
use super::options::{Host, LayerValue, Options};
use super::report::Mapping;
use crate::config::rejection;

/// How a setting of the Java producer is handled.
enum Java {
    /// librdkafka's property of this name, with the same value.
    As(&'static str),
    /// The same, but its value is not printed.
    Secret(&'static str),
    /// A property that is not needed.
    NotNeeded(&'static str),
    /// A property that must be set in another way.
    Refused(&'static str),
}

use Java::{As, NotNeeded, Refused, Secret};

const PROMISE: &str = "walpost sets it itself, since its guarantee rests on it";
const FOREVER: &str = "walpost never gives a record up";
const OPENSSL: &str = "librdkafka uses OpenSSL, which chooses";
const MEMORY: &str = "delivery.in_flight_bytes is the budget";
const MECHANISM: &str =
    "walpost is built with PLAIN and SCRAM only: give walpost's user one of these";
const STORE: &str = "of the key store: see its location";

/// Settings by name, which may end in `*`; the first match applies.
const PROPERTIES: &[(&str, Java)] = &[
    ("client.id", As("client.id")),
    ("client.dns.lookup", As("client.dns.lookup")),
    ("security.protocol", As("security.protocol")),
    ("linger.ms", As("linger.ms")),
    ("batch.size", As("batch.size")),
    ("compression.type", As("compression.type")),
    ("compression.gzip.level", As("compression.level")),
    ("compression.lz4.level", As("compression.level")),
    ("compression.zstd.level", As("compression.level")),
    ("max.request.size", As("message.max.bytes")),
    ("request.timeout.ms", As("request.timeout.ms")),
    ("retry.backoff.ms", As("retry.backoff.ms")),
    ("retry.backoff.max.ms", As("retry.backoff.max.ms")),
    ("reconnect.backoff.ms", As("reconnect.backoff.ms")),
    ("reconnect.backoff.max.ms", As("reconnect.backoff.max.ms")),
    ("connections.max.idle.ms", As("connections.max.idle.ms")),
    ("socket.connection.setup.timeout.ms", As("socket.connection.setup.timeout.ms")),
    ("socket.connection.setup.timeout.max.ms", NotNeeded("librdkafka has one timeout for it")),
    ("send.buffer.bytes", As("socket.send.buffer.bytes")),
    ("receive.buffer.bytes", As("socket.receive.buffer.bytes")),
    ("metadata.max.age.ms", As("topic.metadata.refresh.interval.ms")),
    ("metadata.max.idle.ms", NotNeeded("librdkafka keeps what it needs")),
    ("metadata.recovery.strategy", As("metadata.recovery.strategy")),
    ("enable.metrics.push", As("enable.metrics.push")),
    ("acks", NotNeeded(PROMISE)),
    ("enable.idempotence", NotNeeded(PROMISE)),
    ("max.in.flight.requests.per.connection", As("max.in.flight.requests.per.connection")),
    ("retries", NotNeeded(FOREVER)),
    ("delivery.timeout.ms", NotNeeded(FOREVER)),
    ("max.block.ms", NotNeeded(FOREVER)),
    ("buffer.memory", NotNeeded(MEMORY)),
    ("transaction*", NotNeeded("walpost produces without Kafka's transactions")),
    ("partitioner.adaptive.partitioning.enable", NotNeeded("it concerns records without a key")),
    ("partitioner.availability.timeout.ms", NotNeeded("it concerns records without a key")),
    (
        "partitioner*",
        Refused(
            "walpost puts keys where Java's default partitioner does, or librdkafka's or Sarama's",
        ),
    ),
    ("interceptor.classes", Refused("a Java class")),
    ("key.serializer", NotNeeded("the profile says how keys are written")),
    ("value.serializer", NotNeeded("the profile says how values are written")),
    ("metric*", NotNeeded("walpost reports what it does in its log")),
    ("auto.include.jmx.reporter", NotNeeded("walpost reports what it does in its log")),
    ("ssl.truststore.certificates", As("ssl.ca.pem")),
    ("ssl.truststore.password", NotNeeded("certificates in PEM have no password")),
    ("ssl.keystore.certificate.chain", As("ssl.certificate.pem")),
    ("ssl.keystore.key", Secret("ssl.key.pem")),
    ("ssl.keystore.password", Secret("ssl.keystore.password")),
    ("ssl.key.password", Secret("ssl.key.password")),
    (
        "ssl.cipher.suites",
        Refused(
            "give it as ssl.cipher.suites in [kafka.properties], with OpenSSL's names in place of Java's",
        ),
    ),
    ("ssl.protocol", NotNeeded(OPENSSL)),
    ("ssl.enabled.protocols", NotNeeded(OPENSSL)),
    ("ssl.provider", NotNeeded(OPENSSL)),
    ("ssl.secure.random.implementation", NotNeeded(OPENSSL)),
    ("ssl.trustmanager.algorithm", NotNeeded(OPENSSL)),
    ("ssl.keymanager.algorithm", NotNeeded(OPENSSL)),
    ("ssl.engine.factory.class", Refused("a Java class")),
    ("security.providers", Refused("a Java class")),
    ("sasl.client.callback.handler.class", Refused(MECHANISM)),
    ("sasl.kerberos.*", Refused(MECHANISM)),
    ("sasl.oauthbearer.*", Refused(MECHANISM)),
    ("sasl.login.*", Refused(MECHANISM)),
];

/// Converts the settings of the producer and of the sink.
pub(crate) fn take(options: &mut Options, draft: &mut Draft) {
    sink(options, draft);
    let mut given = options.take_below("producer.override.");
    // The worker's own settings, if the file contains them.
    given.extend(options.take_below("producer."));
    if let Some(servers) = options.take("bootstrap.servers") {
        given.push(("bootstrap.servers".to_owned(), servers));
    }
    stores(draft, &mut given);
    for (name, given) in &given {
        property(draft, name, given);
    }
    if draft.bootstrap_servers.is_none() {
        let text = "left to be filled in, as kafka.bootstrap_servers: the worker's configuration has the brokers";
        draft.report.absent("bootstrap.servers", Mapping::NotNeeded, text);
    }
}

fn sink(options: &mut Options, draft: &mut Draft) {
    match options.take("sink.type") {
        Some(given) if given.value == "kafka" => draft.report.carried(&given, "[kafka]"),
        Some(given) => draft.report.refused(&given, "only configurations for Kafka are converted"),
        None if options.host == Host::Server => {
            draft.report.absent(
                "debezium.sink.type",
                Mapping::Refused,
                "only configurations for Kafka are converted",
            );
        }
        None => {}
    }
}

fn property(draft: &mut Draft, name: &str, given: &LayerValue) {
    match name {
        "bootstrap.servers" => {
            if let Some(servers) = draft.literal(given, "kafka.bootstrap_servers") {
                draft.report.carried(given, "kafka.bootstrap_servers");
                draft.bootstrap_servers = Some(servers);
            }
        }
        "sasl.mechanism" if is_built_in(&given.value) => set(draft, given, "sasl.mechanism"),
        "sasl.mechanism" => draft.report.refused(given, MECHANISM),
        "sasl.jaas.config" => login(draft, given),
        "ssl.endpoint.identification.algorithm" if given.value.is_empty() => {
            put(draft, given, "ssl.endpoint.identification.algorithm", "none".to_owned());
        }
        "ssl.endpoint.identification.algorithm" => {
            set(draft, given, "ssl.endpoint.identification.algorithm");
        }
        _ => match PROPERTIES.iter().find(|(pattern, _)| fits(pattern, name)) {
            Some((_, As(property))) => set(draft, given, property),
            Some((_, Secret(property))) => secret(draft, given, property),
            Some((_, NotNeeded(why))) => draft.report.not_needed(given, *why),
            Some((_, Refused(why))) => draft.report.refused(given, *why),
            None => draft.report.refused(
                given,
                "unknown to walpost, of Kafka's Java producer: nothing is done with it; where librdkafka has \
                 the like, put that into [kafka.properties]",
            ),
        },
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

fn set(draft: &mut Draft, given: &LayerValue, property: &'static str) {
    let Some(value) = draft.literal(given, &format!("{property} in [kafka.properties]")) else {
        return;
    };
    put(draft, given, property, value);
}

fn put(draft: &mut Draft, given: &LayerValue, property: &'static str, value: String) {
    if let Some(reason) = rejection(property, &value) {
        return draft.report.refused(given, reason);
    }
    draft.report.carried(given, format!("kafka.properties.\"{property}\""));
    draft.properties.insert(property.to_owned(), value);
}

fn secret(draft: &mut Draft, given: &LayerValue, property: &'static str) {
    let text = format!("{property}, a secret that is not printed: WALPOST_KAFKA_PROPERTIES_FILE");
    draft.report.carried(given, text);
    if !draft.secret_properties.contains(&property) {
        draft.secret_properties.push(property);
    }
}

fn is_built_in(mechanism: &str) -> bool {
    ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        .iter()
        .any(|known| known.eq_ignore_ascii_case(mechanism.trim()))
}

/// A login module with user and password: the user is converted. A text in an unknown format is not
/// printed, because it may contain a secret.
fn login(draft: &mut Draft, given: &LayerValue) {
    const BY_HAND: &str = "give sasl.username in [kafka.properties] and sasl.password by WALPOST_KAFKA_PROPERTIES_FILE";
    let module = given.value.split_whitespace().next().unwrap_or_default();
    let is_known = ["PlainLoginModule", "ScramLoginModule"].iter().any(|it| module.ends_with(it));
    if !is_known {
        let text = match super::reference::Reference::find(&given.value) {
            Some(reference) => {
                format!("refers to {reference}, which walpost does not read: {BY_HAND}")
            }
            None => MECHANISM.to_owned(),
        };
        return draft.report.refused(given, text);
    }
    let user = quoted(&given.value, "username").filter(|user| !user.contains("${"));
    let Some(user) = user else { return draft.report.refused(given, BY_HAND) };
    draft.properties.insert("sasl.username".to_owned(), user.to_owned());
    draft.secret_properties.push("sasl.password");
    let text = "sasl.username; sasl.password is a secret that is not printed: WALPOST_KAFKA_PROPERTIES_FILE";
    draft.report.carried(given, text);
}

/// The quoted text after `name=`.
fn quoted<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(&format!(" {name}="))?;
    let quote = after.chars().next().filter(|sign| matches!(sign, '"' | '\''))?;
    after[1..].split_once(quote).map(|(value, _)| value).filter(|value| !value.contains('\\'))
}

/// Java's files of certificates and keys. librdkafka reads PEM, and also a key with its certificate
/// from PKCS#12.
fn stores(draft: &mut Draft, given: &mut Vec<(String, LayerValue)>) {
    let mut take = |name: &str| {
        let index = given.iter().position(|(it, _)| it == name)?;
        Some(given.remove(index).1)
    };
    let is = |kind: &Option<LayerValue>, wanted: &str| {
        kind.as_ref().is_some_and(|kind| kind.value.eq_ignore_ascii_case(wanted))
    };
    let (kind, location) = (take("ssl.truststore.type"), take("ssl.truststore.location"));
    match location {
        Some(location) if is(&kind, "PEM") => set(draft, &location, "ssl.ca.location"),
        Some(location) => draft.report.refused(
            &location,
            "librdkafka reads PEM: `keytool -exportcert -rfc -keystore FILE -alias NAME` prints a certificate; \
             name the file of all in ssl.ca.location in [kafka.properties]",
        ),
        None => {}
    }
    if let Some(kind) = kind {
        draft.report.not_needed(&kind, "of the trust store: see its location");
    }
    let (kind, location) = (take("ssl.keystore.type"), take("ssl.keystore.location"));
    match location {
        Some(location) if is(&kind, "PEM") => {
            set(draft, &location, "ssl.certificate.location");
            if let Some(file) = draft.properties.get("ssl.certificate.location").cloned() {
                draft.properties.insert("ssl.key.location".to_owned(), file);
            }
        }
        Some(location) if is(&kind, "PKCS12") => set(draft, &location, "ssl.keystore.location"),
        Some(location) => draft.report.refused(
            &location,
            "librdkafka reads PKCS#12: `keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 \
             -deststoretype PKCS12`; name it in ssl.keystore.location in [kafka.properties]",
        ),
        None => {}
    }
    if let Some(kind) = kind {
        draft.report.not_needed(&kind, STORE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_extracted_from_a_login_module() {
        let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required \
                     username=\"walpost\" password=\"hunter2\";";
        assert_eq!(quoted(scram, "username"), Some("walpost"));
        for other in
            ["", "X required username", "X username=", "X username=\"", "X username=\"a\\\"b\""]
        {
            assert_eq!(quoted(other, "username"), None, "{other}");
        }
    }
}
