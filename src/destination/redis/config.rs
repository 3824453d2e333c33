//! The configuration of the sink, and where it is read again.

use crate::destination::parts::Reread;
use crate::destination::parts::dial::Tls;
use crate::destination::parts::server_url::ServerUrl;

/// The server, and the streams on it.
#[derive(Debug, Clone)]
pub(crate) struct RedisConfig {
    /// The server.
    pub url: ServerUrl,
    /// The database on it.
    pub database: i64,
    /// How TLS is set up, if the URL asks for it.
    pub tls: Tls,
    /// The stream.
    pub stream: String,
    /// The stream of dead letters.
    pub dead_letters: String,
    /// About how many entries the stream keeps; `None`: all.
    pub maxlen: Option<u64>,
    /// How many replicas have to have an entry before it counts as delivered.
    pub wait_replicas: u32,
}

/// The configuration of server and streams, which can be read again.
pub(crate) type RedisSource = Reread<RedisConfig>;

/// The key beside the stream that has walpost's position and the last event: in the same hash slot,
/// so that a script may use both
/// (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags>).
pub(crate) fn owner_key(stream: &str) -> String {
    let tag = stream.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    if tag.is_some_and(|(tag, _)| !tag.is_empty()) {
        format!("walpost:{stream}")
    } else {
        format!("walpost:{{{stream}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_key_has_the_hash_tag_of_its_stream() {
        assert_eq!(owner_key("orders"), "walpost:{orders}");
        assert_eq!(owner_key("{eu}.orders"), "walpost:{eu}.orders");
        assert_eq!(owner_key("a{}b"), "walpost:{a{}b}");
    }
}
