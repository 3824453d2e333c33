//! Kafka's properties and the files that they name, read again: when somebody asks,
//! every few seconds while Kafka cannot be used, and for each new producer.
//!
//! Here is only what is read and whether it is new. What becomes of the producer is
//! its owner's affair.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::fs;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::oauth_token;
use crate::sink::KafkaConfig;

/// How often is looked while Kafka cannot be used.
const AGAIN: Duration = Duration::from_secs(2);

/// How long after what was refused is tried again while nothing else can be used: a right may
/// have been granted meanwhile.
const REFUSED_AGAIN: Duration = Duration::from_secs(60);

/// Says how to come to Kafka, anew each time, so that what was changed in a file is
/// taken up without a restart.
#[derive(Clone)]
pub struct KafkaSource(Arc<dyn Fn() -> Result<KafkaConfig, String> + Send + Sync>);

impl KafkaSource {
    /// From a function that reads everything again; its error is for people.
    pub fn new(read: impl Fn() -> Result<KafkaConfig, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    fn read(&self) -> Result<KafkaConfig, String> {
        (self.0)()
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KafkaSource")
    }
}

/// What was read last, and when to read again.
pub(crate) struct Reload {
    source: Option<KafkaSource>,
    hashes: RandomState,
    /// What the producer was made with, and what stands for it.
    config: KafkaConfig,
    mark: u64,
    /// Of what another is tried with.
    trying: Option<u64>,
    /// Of what could not be used, and of an error: not to be told twice.
    refused: Option<u64>,
    /// When that was.
    refused_at: Option<Instant>,
    /// Kafka could not be used, and nothing was delivered since.
    trouble: bool,
    looked: Option<Instant>,
}

/// What was found when it was read again.
pub(crate) enum Found {
    /// What is in force.
    InForce,
    /// Nothing to do anything about: it is being tried, or cannot be used.
    Nothing,
    /// Something else.
    Fresh(Fresh),
}

/// What was read, where it is another than before.
#[derive(Clone)]
pub(crate) struct Fresh {
    pub(crate) config: KafkaConfig,
    mark: u64,
}

impl Reload {
    /// For a producer that was made with `config`, now.
    pub(crate) fn new(config: &KafkaConfig) -> Self {
        let hashes = RandomState::new();
        let mark = mark(config, &hashes);
        Self {
            source: None,
            hashes,
            config: config.clone(),
            mark,
            trying: None,
            refused: None,
            refused_at: None,
            trouble: false,
            looked: None,
        }
    }

    pub(crate) fn set_source(&mut self, source: KafkaSource) {
        self.source = Some(source);
    }

    /// Kafka cannot be used. What could not be used either may be what can be now.
    pub(crate) fn trouble(&mut self) {
        if !std::mem::replace(&mut self.trouble, true) {
            self.refused = None;
        }
    }

    /// Kafka can be used.
    pub(crate) fn is_well(&mut self) {
        self.trouble = false;
    }

    pub(crate) fn is_in_trouble(&self) -> bool {
        self.trouble
    }

    /// Whether it is time to look by itself.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let long_ago = |then| now.saturating_duration_since(then) >= AGAIN;
        self.trouble && self.looked.is_none_or(long_ago)
    }

    /// Reads again. `asked`: somebody waits for an answer in the log.
    pub(crate) fn look(&mut self, asked: bool, now: Instant) -> Found {
        let Some(source) = &self.source else { return Found::Nothing };
        self.looked = Some(now);
        if asked {
            self.refused = None;
        }
        let config = match source.read() {
            Ok(config) => config,
            Err(error) => {
                let mark = self.hashes.hash_one(&error);
                self.refuse(mark, &error);
                return Found::Nothing;
            }
        };
        let mark = mark(&config, &self.hashes);
        if self.trying == Some(mark) {
            if asked {
                tracing::info!("still trying the reloaded Kafka properties");
            }
            return Found::Nothing;
        }
        let long_ago = |then: Instant| now.saturating_duration_since(then) >= REFUSED_AGAIN;
        if self.refused == Some(mark) && !(self.trouble && self.refused_at.is_some_and(long_ago)) {
            return Found::Nothing;
        }
        if mark != self.mark {
            return Found::Fresh(Fresh { config, mark });
        }
        self.trying = None;
        if asked {
            tracing::info!("reloaded the Kafka properties and their files: unchanged");
        }
        Found::InForce
    }

    /// What the producer was made with.
    pub(crate) fn in_force(&self) -> Fresh {
        Fresh { config: self.config.clone(), mark: self.mark }
    }

    /// Another producer is tried with it.
    pub(crate) fn tries(&mut self, fresh: &Fresh) {
        self.trying = Some(fresh.mark);
    }

    /// It is in force.
    pub(crate) fn took(&mut self, fresh: &Fresh) {
        (self.mark, self.trying, self.refused) = (fresh.mark, None, None);
        self.config = fresh.config.clone();
    }

    /// Another producer is made with what is in force, and reads its files as they are now.
    /// Whether somebody may fix them meanwhile.
    pub(crate) fn loads(&mut self) -> bool {
        self.mark = mark(&self.config, &self.hashes);
        self.source.is_some()
    }

    /// No producer can be made with it, or none that the brokers take, for that reason: it is
    /// not tried again before somebody asks or Kafka cannot be used.
    pub(crate) fn cannot_take(&mut self, fresh: &Fresh, reason: &str) {
        self.trying = None;
        self.refuse(fresh.mark, reason);
    }

    fn refuse(&mut self, mark: u64, reason: &str) {
        self.refused_at = Some(Instant::now());
        if self.refused.replace(mark) != Some(mark) {
            tracing::error!(
                reason,
                "cannot use the reloaded Kafka properties; keeping the current ones"
            );
        }
    }
}

/// Stands for the properties and for what is in the files that they name.
fn mark(config: &KafkaConfig, state: &RandomState) -> u64 {
    let mut hasher = state.build_hasher();
    for (name, value) in &config.properties {
        (name, value).hash(&mut hasher);
        let file = match name.as_str() {
            oauth_token::PROPERTY => oauth_token::file(value),
            name => name.ends_with(".location").then_some(value.as_str()),
        };
        // A directory of roots is read by the library as it goes.
        file.map(|file| fs::read(file).ok()).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::WaitsFor;
    use std::sync::Mutex;

    fn config(properties: &[(&str, &str)]) -> KafkaConfig {
        let pairs = properties.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        KafkaConfig {
            bootstrap_servers: "h:1".into(),
            properties: pairs.collect(),
            in_flight_bytes: 1 << 20,
            waits_for: WaitsFor::AnyTopic,
        }
    }

    /// A renewal whose source gives what is in the cell.
    fn renewal(first: &KafkaConfig) -> (Reload, Arc<Mutex<Result<KafkaConfig, String>>>) {
        let cell = Arc::new(Mutex::new(Ok(first.clone())));
        let shared = Arc::clone(&cell);
        let mut renewal = Reload::new(first);
        renewal.set_source(KafkaSource::new(move || shared.lock().expect("whole").clone()));
        (renewal, cell)
    }

    /// What is new.
    fn fresh(found: Found) -> Option<Fresh> {
        match found {
            Found::Fresh(fresh) => Some(fresh),
            Found::InForce | Found::Nothing => None,
        }
    }

    #[test]
    fn only_what_is_new_and_was_not_refused_is_handed_out() {
        let (one, two) = (config(&[("a", "1")]), config(&[("a", "2")]));
        let (mut renewal, cell) = renewal(&one);
        let now = Instant::now();
        assert!(fresh(renewal.look(true, now)).is_none(), "as before");
        *cell.lock().expect("whole") = Ok(two.clone());
        let found = fresh(renewal.look(false, now)).expect("new");
        renewal.cannot_take(&found, "why");
        assert!(fresh(renewal.look(false, now)).is_none(), "refused");
        let found = fresh(renewal.look(true, now)).expect("tried again where somebody asks");
        renewal.cannot_take(&found, "why");
        renewal.trouble();
        let found = fresh(renewal.look(false, now)).expect("tried again where nothing else works");
        renewal.tries(&found);
        assert!(fresh(renewal.look(true, now)).is_none(), "it is being tried");
        *cell.lock().expect("whole") = Ok(one.clone());
        assert!(matches!(renewal.look(false, now), Found::InForce), "put back in the meantime");
        *cell.lock().expect("whole") = Ok(two);
        let found = fresh(renewal.look(false, now)).expect("and forth");
        renewal.took(&found);
        assert!(matches!(renewal.look(false, now), Found::InForce), "taken");
        *cell.lock().expect("whole") = Err("unreadable".into());
        assert!(fresh(renewal.look(true, now)).is_none());
        *cell.lock().expect("whole") = Ok(one);
        assert!(fresh(renewal.look(false, now)).is_some(), "an error is not for ever");
    }

    #[test]
    fn a_file_with_other_content_is_new_under_the_same_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key.pem");
        fs::write(&path, "one").expect("written");
        let config = config(&[("ssl.key.location", path.to_str().expect("UTF-8"))]);
        let (mut renewal, _cell) = renewal(&config);
        assert!(fresh(renewal.look(false, Instant::now())).is_none());
        fs::write(&path, "two").expect("written");
        assert!(fresh(renewal.look(false, Instant::now())).is_some());
    }

    #[test]
    fn files_are_looked_at_again_only_while_kafka_cannot_be_used() {
        let (mut renewal, _cell) = renewal(&config(&[]));
        let now = Instant::now();
        assert!(!renewal.is_due(now));
        renewal.trouble();
        assert!(renewal.is_due(now));
        renewal.look(false, now);
        assert!(!renewal.is_due(now + AGAIN / 2));
        assert!(renewal.is_due(now + AGAIN));
        renewal.is_well();
        assert!(!renewal.is_due(now + AGAIN));
    }
}
