//! Facts about a server, for the preflight checks.

use std::collections::BTreeMap;

use super::config::{RedisConfig, owner_key};
use super::connection::{Connection, Greeting};
use super::script::accepts_writes;
use crate::destination::parts::Failure;

/// What a server reports of itself and of the stream. What the user may not read is the reason.
#[derive(Debug, Clone)]
pub(crate) struct Inspection {
    pub(crate) greeting: Greeting,
    info: Result<BTreeMap<String, String>, String>,
    pub(crate) settings: Result<BTreeMap<String, String>, String>,
    /// Whether the state key exists.
    pub(crate) has_state: bool,
    /// The type of the stream's key: `stream`, or `none` if it does not exist.
    pub(crate) kind: Result<String, String>,
    /// The same of the dead letters' key.
    pub(crate) kind_of_letters: Result<String, String>,
    /// Why it refuses writes.
    pub(crate) writes: Result<(), Failure>,
}

impl Inspection {
    /// A line of `INFO`; `Err`: it may not be read.
    pub(crate) fn info(&self, name: &str) -> Result<Option<&str>, &str> {
        let info = self.info.as_ref().map_err(String::as_str)?;
        Ok(info.get(name).map(String::as_str))
    }

    /// A setting, if it may be read.
    pub(crate) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref().ok()?.get(name).map(String::as_str)
    }
}

/// Reads them.
pub(crate) async fn inspect(
    connection: &Connection,
    config: &RedisConfig,
) -> Result<Inspection, Failure> {
    let client = &mut connection.client.clone();
    let text = redis::cmd("INFO").query_async::<String>(client).await;
    let info = permitted(text)?.map(|text| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
    });
    let mut settings = Ok(BTreeMap::new());
    for name in ["maxmemory", "maxmemory-policy", "appendonly", "appendfsync", REWRITE] {
        let mut command = redis::cmd("CONFIG");
        let pair = command.arg("GET").arg(name).query_async::<Vec<String>>(client).await;
        match (permitted(pair)?, &mut settings) {
            (Ok(pair), Ok(found)) => {
                found.extend(pair.get(1).map(|value| (name.to_owned(), value.clone())));
            }
            (Err(reason), _) => settings = Err(reason),
            (Ok(_), Err(_)) => {}
        }
    }
    let kind = redis::cmd("TYPE").arg(&config.stream).query_async::<String>(client).await;
    let kind = permitted(kind)?;
    let letters = redis::cmd("TYPE").arg(&config.dead_letters).query_async::<String>(client).await;
    let kind_of_letters = permitted(letters)?;
    let writes = accepts_writes(client).await;
    // By a command that `run` needs too.
    let mut owner = redis::cmd("HGET");
    owner.arg(owner_key(&config.stream)).arg("owner");
    let owner: Option<String> = owner.query_async(client).await?;
    let greeting = connection.greeting.clone();
    let has_state = owner.is_some();
    Ok(Inspection { greeting, info, settings, has_state, kind, kind_of_letters, writes })
}

/// Whether writes to the log are not synced while it is rewritten.
pub(crate) const REWRITE: &str = "no-appendfsync-on-rewrite";

/// The answer, or why the user may not have it.
fn permitted<T>(answer: redis::RedisResult<T>) -> Result<Result<T, String>, Failure> {
    match answer.map_err(Failure::from) {
        Ok(answer) => Ok(Ok(answer)),
        // Managed servers have no CONFIG at all.
        Err(Failure::Unauthorized(reason) | Failure::Unusable(reason)) => Ok(Err(reason)),
        Err(failure) => Err(failure),
    }
}
