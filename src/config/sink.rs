//! The destination, and which settings have no effect with it: those of another one are errors, so
//! that none is ignored silently.

use std::path::PathBuf;

use secrecy::SecretString;

use super::load::Values;
use super::{ConfigError, Nats, Origin, Redis, Setting, SinkKind, values};

/// Settings of Kafka alone, outside of `[kafka]`.
const KAFKAS: [Setting; 7] = [
    Setting::DeliveryStateTopic,
    Setting::DeliveryStateRequired,
    Setting::DeliveryMode,
    Setting::DeliveryCommitInterval,
    Setting::DeliveryTransactionBytes,
    Setting::PoisonMissingTopic,
    Setting::PoisonRetries,
];

impl Values {
    /// The destination.
    pub(super) fn sink(&self) -> Result<SinkKind, ConfigError> {
        let kind = self.parsed(Setting::SinkKind, values::sink_kind)?;
        let is_built = match kind {
            SinkKind::Kafka => true,
            SinkKind::Nats => cfg!(feature = "nats"),
            SinkKind::Redis => cfg!(feature = "redis"),
        };
        let name = kind.name();
        if !is_built {
            let reason = format!(
                "this walpost was built without the feature `{name}`: build it with `cargo build \
                 --release --features {name}`"
            );
            return Err(self.invalid(Setting::SinkKind, reason));
        }
        let is_others = |setting: &Setting| {
            let mut others = SinkKind::NAMES.iter().filter(|(_, one)| *one != kind);
            let table = setting.key().split('.').next();
            others.any(|(name, _)| table == Some(name))
                || kind != SinkKind::Kafka && KAFKAS.contains(setting)
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
            credentials_file: self.text(Setting::NatsCredentialsFile).map(PathBuf::from),
            ca_file: self.text(Setting::NatsCaFile).map(PathBuf::from),
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
        })
    }
}
