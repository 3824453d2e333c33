//! Reloads Kafka's properties and the files that they name: on request, every few seconds while
//! Kafka cannot be used, and for each new producer.
//!
//! This module only reads, and decides whether something changed. The sink replaces the producer.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use super::oauth_token;
use crate::destination::kafka::KafkaConfig;
use crate::destination::parts::Reread;
use crate::sink::Condition;

/// How often the properties are read while Kafka cannot be used.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// How long until rejected properties are tried again while the current ones do not work: an ACL
/// may have been granted in the meantime.
const REJECTED_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The Kafka properties, which can be read again.
pub type KafkaSource = Reread<KafkaConfig>;

/// The properties that were read last, and when to read them again.
pub(crate) struct Reload {
    source: Option<KafkaSource>,
    hashes: RandomState,
    /// The properties of the current producer, and their fingerprint.
    config: KafkaConfig,
    fingerprint: u64,
    /// The fingerprint of the properties that a new producer is tried with.
    trying: Option<u64>,
    /// The fingerprint of rejected properties, or of an error: each is logged once.
    rejected: Option<u64>,
    /// When they were rejected.
    rejected_at: Option<Instant>,
    /// Whether Kafka was unavailable, and nothing was delivered since.
    unhealthy: bool,
    read_at: Option<Instant>,
}

/// The result of reading the properties again.
pub(crate) enum ReadResult {
    /// The current properties.
    InForce,
    /// Properties that are being tried, or were rejected: nothing to do.
    Nothing,
    /// New properties.
    Changed(Changed),
}

/// New properties.
#[derive(Clone)]
pub(crate) struct Changed {
    pub(crate) config: KafkaConfig,
    fingerprint: u64,
}

impl Reload {
    /// The reload of a producer that was created with `config` now.
    pub(crate) fn new(config: &KafkaConfig) -> Self {
        let hashes = RandomState::new();
        let fingerprint = fingerprint(config, &hashes);
        Self {
            source: None,
            hashes,
            config: config.clone(),
            fingerprint,
            trying: None,
            rejected: None,
            rejected_at: None,
            unhealthy: false,
            read_at: None,
        }
    }

    pub(crate) fn set_source(&mut self, source: KafkaSource) {
        self.source = Some(source);
    }

    /// Records that Kafka is unavailable. Properties that were rejected before may work now.
    pub(crate) fn set_unhealthy(&mut self) {
        if !std::mem::replace(&mut self.unhealthy, true) {
            self.rejected = None;
        }
    }

    /// Records that Kafka is unavailable, if one of these conditions says so.
    pub(crate) fn note_conditions(&mut self, conditions: &[Condition]) {
        if conditions.iter().any(|condition| {
            matches!(condition, Condition::Unreachable(_) | Condition::Unauthenticated(_))
        }) {
            self.set_unhealthy();
        }
    }

    /// Records that Kafka is available.
    pub(crate) fn set_healthy(&mut self) {
        self.unhealthy = false;
    }

    pub(crate) fn is_unhealthy(&self) -> bool {
        self.unhealthy
    }

    /// Whether it is time to read the properties without a request.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let long_ago = |then| now.saturating_duration_since(then) >= RETRY_INTERVAL;
        self.unhealthy && self.read_at.is_none_or(long_ago)
    }

    /// Reads the properties again. With `asked`, an operator requested it, and the result is logged.
    pub(crate) fn read(&mut self, asked: bool, now: Instant) -> ReadResult {
        let Some(source) = &self.source else { return ReadResult::Nothing };
        self.read_at = Some(now);
        if asked {
            self.rejected = None;
        }
        let config = match source.read() {
            Ok(config) => config,
            Err(error) => {
                let fingerprint = self.hashes.hash_one(&error);
                self.note_rejected(fingerprint, &error);
                return ReadResult::Nothing;
            }
        };
        let fingerprint = fingerprint(&config, &self.hashes);
        if self.trying == Some(fingerprint) {
            if asked {
                tracing::info!("still trying the reloaded Kafka properties");
            }
            return ReadResult::Nothing;
        }
        let long_ago =
            |then: Instant| now.saturating_duration_since(then) >= REJECTED_RETRY_INTERVAL;
        if self.rejected == Some(fingerprint)
            && !(self.unhealthy && self.rejected_at.is_some_and(long_ago))
        {
            return ReadResult::Nothing;
        }
        if fingerprint != self.fingerprint {
            return ReadResult::Changed(Changed { config, fingerprint });
        }
        self.trying = None;
        if asked {
            tracing::info!("reloaded the Kafka properties and their files: unchanged");
        }
        ReadResult::InForce
    }

    /// The current producer's properties.
    pub(crate) fn in_force(&self) -> Changed {
        Changed { config: self.config.clone(), fingerprint: self.fingerprint }
    }

    /// Records that a new producer is tried with these properties.
    pub(crate) fn trying(&mut self, changed: &Changed) {
        self.trying = Some(changed.fingerprint);
    }

    /// Makes these properties the current ones, whoever read them: a producer was opened with them.
    /// Returns whether others were current.
    pub(crate) fn opened(&mut self, config: &KafkaConfig) -> bool {
        let fingerprint = fingerprint(config, &self.hashes);
        self.trying = self.trying.filter(|trying| *trying != fingerprint);
        self.config = config.clone();
        std::mem::replace(&mut self.fingerprint, fingerprint) != fingerprint
    }

    /// Makes the tried properties the current ones.
    pub(crate) fn applied(&mut self, changed: &Changed) {
        (self.fingerprint, self.trying, self.rejected) = (changed.fingerprint, None, None);
        self.config = changed.config.clone();
    }

    /// Records that another producer is created with the current properties, and reads their files
    /// as they are now. Returns whether the files may still change.
    pub(crate) fn reread_files(&mut self) -> bool {
        self.fingerprint = fingerprint(&self.config, &self.hashes);
        self.source.is_some()
    }

    /// Rejects the tried properties for this reason: no producer can be created with them, or the
    /// brokers do not accept it. They are tried again on request, or if Kafka is unavailable.
    pub(crate) fn reject(&mut self, changed: &Changed, reason: &str) {
        self.trying = None;
        self.note_rejected(changed.fingerprint, reason);
    }

    fn note_rejected(&mut self, fingerprint: u64, reason: &str) {
        self.rejected_at = Some(Instant::now());
        if self.rejected.replace(fingerprint) != Some(fingerprint) {
            tracing::error!(
                reason,
                "cannot use the reloaded Kafka properties; keeping the current ones"
            );
        }
    }
}

/// Fingerprint of the properties and of the content of the files that they name.
fn fingerprint(config: &KafkaConfig, state: &RandomState) -> u64 {
    let mut hasher = state.build_hasher();
    for (name, value) in &config.properties {
        (name, value).hash(&mut hasher);
        let file = match name.as_str() {
            oauth_token::PROPERTY => oauth_token::file(value),
            name => name.ends_with(".location").then_some(value.as_str()),
        };
        // librdkafka reads a directory of root certificates on demand.
        file.map(|file| fs::read(file).ok()).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::kafka::MissingTopics;
    use std::sync::{Arc, Mutex};

    fn config(properties: &[(&str, &str)]) -> KafkaConfig {
        let pairs = properties.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        KafkaConfig {
            bootstrap_servers: "h:1".into(),
            properties: pairs.collect(),
            in_flight_bytes: 1 << 20,
            max_producers: 1,
            missing_topics: MissingTopics::default(),
        }
    }

    /// A reload whose source returns the cell's content.
    fn reload(first: &KafkaConfig) -> (Reload, Arc<Mutex<Result<KafkaConfig, String>>>) {
        let cell = Arc::new(Mutex::new(Ok(first.clone())));
        let shared = Arc::clone(&cell);
        let mut reload = Reload::new(first);
        reload.set_source(KafkaSource::new(move || shared.lock().expect("whole").clone()));
        (reload, cell)
    }

    /// The new properties.
    fn changed(found: ReadResult) -> Option<Changed> {
        match found {
            ReadResult::Changed(changed) => Some(changed),
            ReadResult::InForce | ReadResult::Nothing => None,
        }
    }

    #[test]
    fn only_new_properties_that_were_not_rejected_are_returned() {
        let (one, two) = (config(&[("a", "1")]), config(&[("a", "2")]));
        let (mut reload, cell) = reload(&one);
        let now = Instant::now();
        assert!(changed(reload.read(true, now)).is_none(), "as before");
        *cell.lock().expect("whole") = Ok(two.clone());
        let found = changed(reload.read(false, now)).expect("new");
        reload.reject(&found, "why");
        assert!(changed(reload.read(false, now)).is_none(), "refused");
        let found = changed(reload.read(true, now)).expect("tried again on request");
        reload.reject(&found, "why");
        reload.set_unhealthy();
        let found =
            changed(reload.read(false, now)).expect("tried again while Kafka is unavailable");
        reload.trying(&found);
        assert!(changed(reload.read(true, now)).is_none(), "it is being tried");
        *cell.lock().expect("whole") = Ok(one.clone());
        assert!(matches!(reload.read(false, now), ReadResult::InForce), "put back in the meantime");
        *cell.lock().expect("whole") = Ok(two);
        let found = changed(reload.read(false, now)).expect("and forth");
        reload.applied(&found);
        assert!(matches!(reload.read(false, now), ReadResult::InForce), "taken");
        *cell.lock().expect("whole") = Err("unreadable".into());
        assert!(changed(reload.read(true, now)).is_none());
        *cell.lock().expect("whole") = Ok(one);
        assert!(changed(reload.read(false, now)).is_some(), "an error is not permanent");
    }

    #[test]
    fn file_with_changed_content_is_new() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key.pem");
        fs::write(&path, "one").expect("written");
        let config = config(&[("ssl.key.location", path.to_str().expect("UTF-8"))]);
        let (mut reload, _cell) = reload(&config);
        assert!(changed(reload.read(false, Instant::now())).is_none());
        fs::write(&path, "two").expect("written");
        assert!(changed(reload.read(false, Instant::now())).is_some());
    }

    #[test]
    fn files_are_read_again_only_while_kafka_is_unavailable() {
        let (mut reload, _cell) = reload(&config(&[]));
        let now = Instant::now();
        assert!(!reload.is_due(now));
        reload.set_unhealthy();
        assert!(reload.is_due(now));
        reload.read(false, now);
        assert!(!reload.is_due(now + RETRY_INTERVAL / 2));
        assert!(reload.is_due(now + RETRY_INTERVAL));
        reload.set_healthy();
        assert!(!reload.is_due(now + RETRY_INTERVAL));
    }
}
