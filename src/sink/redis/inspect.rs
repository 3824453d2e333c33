//! Facts about a server, for the preflight checks.

use std::collections::BTreeMap;

use redis::aio::MultiplexedConnection;

use super::config::{RedisConfig, owner_key};
use super::failure::Failure;

/// What a server reports of itself and of the stream.
#[derive(Debug, Clone)]
pub(crate) struct ServerFacts {
    info: BTreeMap<String, String>,
    /// Why the user may not read them.
    pub(crate) settings: Result<BTreeMap<String, String>, String>,
    /// Whether the state key exists.
    pub(crate) has_state: bool,
    /// The type of the stream's key: `stream`, or `none` if it does not exist.
    pub(crate) kind: String,
}

impl ServerFacts {
    /// A line of `INFO`.
    pub(crate) fn info(&self, name: &str) -> Option<&str> {
        self.info.get(name).map(String::as_str)
    }

    /// A setting, if it may be read.
    pub(crate) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref().ok()?.get(name).map(String::as_str)
    }
}

/// Reads them.
pub(crate) async fn inspect(
    client: &mut MultiplexedConnection,
    config: &RedisConfig,
) -> Result<ServerFacts, Failure> {
    let text: String = redis::cmd("INFO").query_async(client).await?;
    let info = text.lines().filter_map(|line| line.split_once(':'));
    let info = info.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
    let mut settings = Ok(BTreeMap::new());
    for name in ["maxmemory", "maxmemory-policy", "appendonly", "appendfsync"] {
        let mut command = redis::cmd("CONFIG");
        let pair: Result<Vec<String>, _> = command.arg("GET").arg(name).query_async(client).await;
        match (pair, &mut settings) {
            (Ok(pair), Ok(found)) => {
                found.extend(pair.get(1).map(|value| (name.to_owned(), value.clone())));
            }
            (Err(error), _) => settings = Err(Failure::from(error).to_string()),
            (Ok(_), Err(_)) => {}
        }
    }
    let kind: String = redis::cmd("TYPE").arg(&config.stream).query_async(client).await?;
    let exists: u32 =
        redis::cmd("EXISTS").arg(owner_key(&config.stream)).query_async(client).await?;
    Ok(ServerFacts { info, settings, has_state: exists > 0, kind })
}
