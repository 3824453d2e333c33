//! The destination, and which settings have no effect with it: those of another one are errors, so
//! that none is ignored silently.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::load::Values;
use super::{
    ConfigError, Http, Nats, Origin, RabbitMq, Redis, Setting, SinkKind, Sqs, units, values,
};

/// Destinations that tell that there is no place for a record.
const MISS_TOPICS: [SinkKind; 4] =
    [SinkKind::Http, SinkKind::Kafka, SinkKind::Nats, SinkKind::RabbitMq];

/// Settings of Kafka alone, outside of `[kafka]`.
const KAFKAS: [Setting; 5] = [
    Setting::DeliveryStateTopic,
    Setting::DeliveryMode,
    Setting::DeliveryCommitInterval,
    Setting::DeliveryTransactionBytes,
    Setting::PoisonRetries,
];

/// A duration that is not zero.
fn duration(text: &str) -> Result<Duration, String> {
    let duration = units::parse_duration(text).map_err(|error| error.to_string())?;
    if duration.is_zero() { Err("it is 0".to_owned()) } else { Ok(duration) }
}

impl Values {
    /// The destination.
    pub(super) fn sink(&self) -> Result<SinkKind, ConfigError> {
        let kind = self.parsed(Setting::SinkKind, values::sink_kind)?;
        let name = kind.name();
        if !kind.is_built_in() {
            let reason = format!(
                "this walpost was built without the feature `{name}`: use a released program, or \
                 build it with `cargo build --release --features {name}`"
            );
            return Err(self.invalid(Setting::SinkKind, reason));
        }
        let is_others = |setting: &Setting| {
            let table = setting.key().split('.').next();
            let is_of_a_sink = SinkKind::NAMES.iter().any(|(name, _)| table == Some(name));
            is_of_a_sink && table != Some(name)
                || kind != SinkKind::Kafka && KAFKAS.contains(setting)
                || *setting == Setting::PoisonMissingTopic && !MISS_TOPICS.contains(&kind)
        };
        let is_given = |setting: &Setting| match self.origin(*setting) {
            Origin::Default => false,
            // Other programs read it too.
            Origin::Variable(name) => setting.ambient() != Some(name.as_str()),
            _ => true,
        };
        match Setting::ALL.into_iter().filter(is_others).find(is_given) {
            None => Ok(kind),
            Some(setting) => {
                let reason = format!("has no effect with sink.kind = \"{name}\": remove it");
                Err(self.invalid(setting, reason))
            }
        }
    }

    /// The NATS servers.
    pub(super) fn nats(&self) -> Result<Nats, ConfigError> {
        let url = self.text(Setting::NatsUrl).unwrap_or_default();
        Ok(Nats {
            url: SecretString::from(url),
            stream: self.parsed(Setting::NatsStream, values::nats_stream)?,
            subject: self.text(Setting::NatsSubject).unwrap_or_default().to_owned(),
            sync_interval: self.parsed(Setting::NatsSyncInterval, |text| {
                units::parse_duration(text).map_err(|error| error.to_string())
            })?,
            credentials_file: self.text(Setting::NatsCredentialsFile).map(PathBuf::from),
            ca_file: self.text(Setting::NatsCaFile).map(PathBuf::from),
            cert_file: self.text(Setting::NatsCertFile).map(PathBuf::from),
            key_file: self.text(Setting::NatsKeyFile).map(PathBuf::from),
        })
    }

    /// RabbitMQ.
    pub(super) fn rabbitmq(&self) -> Result<RabbitMq, ConfigError> {
        let url = self.text(Setting::RabbitmqUrl).unwrap_or_default();
        let path = |setting| self.text(setting).map(PathBuf::from);
        Ok(RabbitMq {
            url: SecretString::from(url),
            exchange: self.parsed(Setting::RabbitmqExchange, values::exchange)?,
            routing_key: self.text(Setting::RabbitmqRoutingKey).unwrap_or_default().to_owned(),
            ca_file: path(Setting::RabbitmqCaFile),
            cert_file: path(Setting::RabbitmqCertFile),
            key_file: path(Setting::RabbitmqKeyFile),
        })
    }

    /// The Redis server.
    pub(super) fn redis(&self) -> Result<Redis, ConfigError> {
        let url = self.text(Setting::RedisUrl).unwrap_or_default();
        Ok(Redis {
            url: SecretString::from(url),
            stream: self.parsed(Setting::RedisStream, values::stream)?,
            maxlen: self.optional(Setting::RedisMaxlen, values::maxlen)?,
            wait_replicas: self.parsed(Setting::RedisWaitReplicas, values::wait_replicas)?,
            ca_file: self.text(Setting::RedisCaFile).map(PathBuf::from),
            cert_file: self.text(Setting::RedisCertFile).map(PathBuf::from),
            key_file: self.text(Setting::RedisKeyFile).map(PathBuf::from),
        })
    }

    /// The HTTP endpoint.
    pub(super) fn http(&self) -> Result<Http, ConfigError> {
        let secret = |setting| self.text(setting).map(SecretString::from);
        let path = |setting| self.text(setting).map(PathBuf::from);
        Ok(Http {
            url: secret(Setting::HttpUrl),
            secret: secret(Setting::HttpSecret),
            authorization: secret(Setting::HttpAuthorization),
            lanes: self.parsed(Setting::HttpLanes, values::lanes)?,
            timeout: self.parsed(Setting::HttpTimeout, duration)?,
            give_up_after: self.optional(Setting::HttpGiveUpAfter, duration)?,
            ca_file: path(Setting::HttpCaFile),
            cert_file: path(Setting::HttpCertFile),
            key_file: path(Setting::HttpKeyFile),
        })
    }

    /// The queues of Amazon SQS.
    pub(super) fn sqs(&self) -> Result<Sqs, ConfigError> {
        let text = |setting| self.text(setting).map(str::to_owned);
        Ok(Sqs {
            queue_url: text(Setting::SqsQueueUrl),
            dead_letter_queue_url: text(Setting::SqsDeadLetterQueueUrl),
            endpoint: text(Setting::SqsEndpoint),
            region: self.optional(Setting::SqsRegion, values::region)?,
            ca_file: self.text(Setting::SqsCaFile).map(PathBuf::from),
        })
    }
}
