//! What the destinations other than Kafka have in common.

#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq", feature = "redis"))]
use std::path::PathBuf;
#[cfg(any(feature = "nats", feature = "redis"))]
use std::time::Duration;

#[cfg(any(feature = "nats", feature = "redis"))]
use super::layout;
use super::option_error;
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq", feature = "redis"))]
use crate::config::Environment;
use crate::config::{Config, ConfigError, Setting, SinkKind};
#[cfg(any(feature = "nats", feature = "redis"))]
use crate::record::Policy;
use crate::record::{Names, Profile, Router, TopicsAllowed};
#[cfg(any(feature = "nats", feature = "redis"))]
use crate::relay::{CommitLimits, StateSettings};
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq", feature = "redis"))]
use crate::source;

/// Debezium's option that names headers.
const PLACEMENT: &str = "table.fields.additional.placement";

/// The header names of a destination.
fn names(kind: SinkKind) -> Names {
    match kind {
        #[cfg(feature = "http")]
        SinkKind::Http => crate::sink::http::NAMES,
        #[cfg(feature = "nats")]
        SinkKind::Nats => crate::sink::nats::NAMES,
        #[cfg(feature = "rabbitmq")]
        SinkKind::RabbitMq => crate::sink::rabbitmq::NAMES,
        #[cfg(feature = "redis")]
        SinkKind::Redis => crate::sink::redis::NAMES,
        #[cfg(feature = "sqs")]
        SinkKind::Sqs => crate::sink::sqs::NAMES,
        _ => Names::KAFKA,
    }
}

/// Builds records for the allowed topics, with headers as the destination has them. Dead letters are told from events by their topic: no event
/// may name it.
pub(super) fn router(
    config: &Config,
    profile: Profile,
    allowed: TopicsAllowed,
) -> Result<Router, ConfigError> {
    let reserved = config.poison.dead_letter_topic.clone();
    if profile.topic_of_all().is_some_and(|topic| topic == reserved) {
        let reason = "events go to this topic: name another one";
        return Err(config.invalid(Setting::PoisonDeadLetterTopic, &reason));
    }
    let names = names(config.sink);
    if let Err(conflict) = profile.check_names(&names, config.sink.name()) {
        return Err(match &profile {
            Profile::Walpost(_) => config.invalid(Setting::RecordPlace, &conflict),
            Profile::Debezium(_) => option_error(config, PLACEMENT, conflict.to_string()),
        });
    }
    Ok(Router::new(profile).allowing(allowed.without(Some(reserved))).naming(names))
}

/// A dead letter is no smaller than its event.
#[cfg(any(
    feature = "http",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis",
    feature = "sqs"
))]
pub(super) fn check_too_large(config: &Config) -> Result<(), ConfigError> {
    if config.poison.too_large != crate::record::Policy::DeadLetter {
        return Ok(());
    }
    let reason = "a dead letter has the payload of its event, and the destination does not accept that \
                  either: set `halt` or `skip`";
    Err(config.invalid(Setting::PoisonTooLarge, &reason))
}

/// The authorities to trust, and the client's certificate with its private key.
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq", feature = "redis"))]
type TlsFiles = (Option<PathBuf>, Option<(PathBuf, PathBuf)>);

/// The files of TLS to a destination: authorities, certificate and private key, each with its setting. They
/// are errors if the URL asks for no TLS, which `how` says how to do.
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq", feature = "redis"))]
pub(super) fn tls_files(
    config: &Config,
    environment: &Environment,
    files: [(Setting, &Option<PathBuf>); 3],
    (is_tls, how): (bool, &str),
) -> Result<TlsFiles, ConfigError> {
    if let Some((setting, _)) = files.iter().find(|(_, file)| file.is_some() && !is_tls) {
        let reason = format!("has no effect without TLS: {how}");
        return Err(config.invalid(*setting, &reason));
    }
    let own = |path: &PathBuf| environment.path(path);
    let [(_, roots), (cert_setting, certificate), (key_setting, key)] = files;
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((own(certificate), own(key))),
        (None, None) => None,
        (Some(_), None) => {
            let reason = format!("needs its private key: set {}", key_setting.key());
            return Err(config.invalid(cert_setting, &reason));
        }
        (None, Some(_)) => {
            let reason = format!("needs its certificate: set {}", cert_setting.key());
            return Err(config.invalid(key_setting, &reason));
        }
    };
    Ok((roots.as_ref().map(own).or_else(source::system_bundle), identity))
}

/// Of a store that is at the destination beside the stream: the state key that `topic` names.
#[cfg(any(feature = "nats", feature = "redis"))]
pub(super) fn stored_beside(
    config: &Config,
    (topic, place): (String, String),
    (store, timeout): (&'static str, Duration),
) -> StateSettings {
    StateSettings {
        delivery_id: config.delivery.id.clone(),
        topic,
        place,
        layout: layout(config),
        skips: config.poison.include(Policy::Skip),
        lossy_store: Some(store),
        rows: None,
        commits: CommitLimits {
            interval: config.delivery.commit_interval,
            bytes: config.delivery.transaction_bytes,
            timeout,
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Environment, Flags};

    fn core_of(toml: &str) -> Result<(), String> {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("walpost.toml"), toml).expect("it is written");
        let environment = Environment::new([], directory.path());
        let config = Config::load(&Flags::default(), &environment).expect("it is read");
        crate::assembly::core(&config).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn headers_that_the_destination_cannot_have_are_errors() {
        let place = |kind: &str, place: &str| {
            core_of(&format!("sink.kind = '{kind}'\nrecord.place = ['{place}']\n"))
        };
        assert_eq!(place("kafka", "a:header:event_type"), Ok(()));
        for (kind, refused, accepted) in [
            #[cfg(feature = "http")]
            ("http", "a:header:Host", "a:header:X-Tenant"),
            #[cfg(feature = "http")]
            ("http", "a:header:event-type", "a:header:content-type"),
            #[cfg(feature = "nats")]
            ("nats", "status:header", "status:header:state"),
            #[cfg(feature = "rabbitmq")]
            ("rabbitmq", "a:header:CC", "a:header:x-tenant"),
            #[cfg(feature = "redis")]
            ("redis", "a:header:Event_Type", "a:header:event-type"),
            #[cfg(feature = "sqs")]
            ("sqs", "a:header:JMS_SQSMessageType", "a:header:AWS.x"),
        ] {
            let error = place(kind, refused).expect_err(refused);
            assert!(error.contains("`record.place`") && error.contains(kind), "{error}");
            assert_eq!(place(kind, accepted), Ok(()), "{kind}");
        }
    }

    #[cfg(feature = "nats")]
    #[test]
    fn headers_of_a_debezium_profile_are_checked_too() {
        let toml = "sink.kind = 'nats'\nrecord.profile = 'debezium'\n[debezium]\n\
                    table.fields.additional.placement = 'state:header:Status'\n";
        let error = core_of(toml).expect_err("refused");
        assert!(error.contains(super::PLACEMENT) && error.contains("`Status`"), "{error}");
    }
}
