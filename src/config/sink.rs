//! The destination, and which settings have no effect with it: those of another one are errors, so
//! that none is ignored silently.

use std::path::PathBuf;

use secrecy::SecretString;

use super::load::Values;
use super::{ConfigError, Origin, Redis, Setting, SinkKind, values};

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
        if kind == SinkKind::Redis && !cfg!(feature = "redis") {
            let reason = "this walpost was built without the feature `redis`: build it with \
                          `cargo build --release --features redis`";
            return Err(self.invalid(Setting::SinkKind, reason));
        }
        let is_others = |setting: &Setting| match kind {
            SinkKind::Kafka => setting.key().starts_with("redis."),
            SinkKind::Redis => setting.key().starts_with("kafka.") || KAFKAS.contains(setting),
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
                let name = SinkKind::NAMES.iter().find(|(_, one)| *one == kind);
                let name = name.map_or("", |(name, _)| name);
                let reason = format!("has no effect with sink.kind = \"{name}\": remove it");
                Err(self.invalid(setting, reason))
            }
        }
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
