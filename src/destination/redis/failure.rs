//! What Redis replies, by what can be done about it.

use redis::{ErrorKind, RedisError};

use crate::destination::parts::Failure;

/// What to do about a node of a Redis Cluster.
pub(super) const CLUSTER: &str =
    "Redis Cluster is not supported: name a server that is not part of one in redis.url";

/// A part of the reply for a key that does not exist.
pub(super) const NO_SUCH_KEY: &str = "no such key";

impl Failure {
    /// The same as the answer to a batch whose largest value has that many bytes.
    pub(super) fn of_values(self, bytes: u64) -> Self {
        match self {
            // A value is larger than `proto-max-bulk-len`.
            Self::Unusable(reason) if reason.contains("invalid bulk length") => {
                Self::TooLarge { max: bytes.saturating_sub(1), reason }
            }
            other => other,
        }
    }

    /// The failure in the text of an error reply, which begins with its code.
    pub(crate) fn of_reply(text: &str) -> Self {
        let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
        Self::of_code(code, detail)
    }

    /// The failure in the error reply to the entry with this number.
    pub(super) fn of_entry(text: &str, number: usize) -> Self {
        // All errors without a code of their own have this one.
        if !text.starts_with("ERR ") {
            return Self::of_reply(text);
        }
        let is_known = text.contains("too large to be stored");
        Self::Record { number, seq: None, is_known, reason: text.to_owned() }
    }

    fn of_code(code: &str, detail: &str) -> Self {
        let reply = format!("{code} {detail}");
        let with = |fix: &str| format!("{reply} ({fix})");
        match code {
            "WRONGPASS" | "NOAUTH" => Self::Unauthenticated(reply),
            "NOPERM" => Self::Unauthorized(with(
                "docs/redis.md lists what walpost's user needs to be allowed",
            )),
            "OOM" => Self::Unusable(with(
                "raise maxmemory, or trim streams: redis.maxlen does so for this one",
            )),
            "READONLY" => {
                Self::Unusable(with("this server is a replica: name the primary in redis.url"))
            }
            "MOVED" | "ASK" | "CLUSTERDOWN" | "CROSSSLOT" => Self::Unsupported(with(CLUSTER)),
            "NOREPLICAS" => Self::Unusable(with("min-replicas-to-write: see to the replicas")),
            "MISCONF" => {
                Self::Unusable(with("see Redis' log: it cannot write its data to the disk"))
            }
            "WRONGTYPE" => Self::Unsupported(with(
                "the key of redis.stream, or of the dead letters, is not a stream",
            )),
            _ => Self::Unusable(reply),
        }
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Self::Unauthenticated(error.to_string());
        }
        match error.code() {
            Some(code) => Self::of_code(code, error.detail().unwrap_or_default()),
            None => Self::Unreachable(format!("the connection was lost: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_told_apart_by_their_codes() {
        for (reply, part) in [
            ("OOM command not allowed", "raise maxmemory"),
            ("READONLY You can't write against a read only replica.", "name the primary"),
            ("LOADING Redis is loading the dataset in memory", "loading the dataset"),
        ] {
            let failure = Failure::of_reply(reply);
            assert!(matches!(failure, Failure::Unusable(_)), "{reply}: {failure:?}");
            assert!(failure.to_string().contains(part), "{failure}");
        }
        let unauthenticated = Failure::of_reply("NOAUTH Authentication required.");
        assert!(matches!(unauthenticated, Failure::Unauthenticated(_)));
        assert!(matches!(Failure::of_reply("NOPERM x"), Failure::Unauthorized(_)));
        let cluster = Failure::of_reply("MOVED 3999 127.0.0.1:6381");
        assert!(
            matches!(cluster, Failure::Unsupported(reason) if reason.contains("not supported"))
        );
        let entry = Failure::of_entry("ERR Elements are too large to be stored", 3);
        assert!(matches!(entry, Failure::Record { number: 3, is_known: true, .. }), "{entry:?}");
        let unknown = Failure::of_entry("ERR something new", 0);
        assert!(matches!(unknown, Failure::Record { is_known: false, .. }), "{unknown:?}");
        assert!(matches!(Failure::of_entry("OOM x", 0), Failure::Unusable(_)));
        let large = Failure::of_reply("ERR Protocol error: invalid bulk length").of_values(7);
        assert!(matches!(large, Failure::TooLarge { max: 6, .. }), "{large:?}");
    }
}
