//! How long a write may still be lost when the machine of Redis crashes.

use std::time::{Duration, Instant};

use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::destination::parts::Failure;

/// How long Redis waits for its log to be synced before it answers: longer than a sync once a second
/// takes.
const SYNC_TIMEOUT: Duration = Duration::from_secs(3);

/// The time to a sync with `appendfsync everysec`: one second, and a write that was postponed for
/// two.
const EVERY_SECOND: Duration = Duration::from_secs(3);

/// The time to a sync with `appendfsync no`: until Linux has written everything back
/// (`vm.dirty_expire_centisecs`, half a minute, and the time that it takes).
const WRITTEN_BACK: Duration = Duration::from_secs(60);

/// How long the log is not waited for again once that was in vain: a user without the right would fill
/// Redis' log of denied commands.
const ASKED: Duration = Duration::from_secs(60);

/// How the log of a server is synced, as far as known.
#[derive(Debug, Default)]
pub(crate) struct LogSync {
    /// When it was waited for in vain, and for how long a write may be lost.
    unsynced: Option<(Instant, Duration)>,
}

impl LogSync {
    /// Waits until Redis has synced its log behind what this connection has written, and returns for
    /// how long that may still be lost: not at all, once it is synced.
    ///
    /// Without a log, only a snapshot of an unknown time has it, and nothing is waited for.
    pub(crate) async fn wait(
        &mut self,
        client: &mut MultiplexedConnection,
    ) -> Result<Duration, Failure> {
        if let Some((at, time)) = self.unsynced
            && at.elapsed() < ASKED
        {
            return Ok(time);
        }
        let mut command = redis::cmd("WAITAOF");
        command.arg(1).arg(0).arg(SYNC_TIMEOUT.as_millis().to_string());
        let answer = command.query_async::<Vec<Value>>(client).await;
        match answer.map_err(Failure::from) {
            Ok(synced) if matches!(synced.first(), Some(Value::Int(1..))) => Ok(Duration::ZERO),
            // It is not synced by Redis at all, or the disk is slow.
            Ok(_) => Ok(self.remembered(WRITTEN_BACK)),
            // A Redis before 7.2, a user that may not, or no log.
            Err(Failure::Unusable(_) | Failure::Unauthorized(_)) => {
                let time = by_settings(client).await?;
                Ok(self.remembered(time))
            }
            Err(failure) => Err(failure),
        }
    }

    fn remembered(&mut self, time: Duration) -> Duration {
        self.unsynced = Some((Instant::now(), time));
        time
    }
}

/// The time for which a write may be lost, by the server's settings; without the right to see them,
/// by the usual ones.
async fn by_settings(client: &mut MultiplexedConnection) -> Result<Duration, Failure> {
    let mut values = [None, None];
    for (value, name) in values.iter_mut().zip(["appendonly", "appendfsync"]) {
        let mut command = redis::cmd("CONFIG");
        let pair = command.arg("GET").arg(name).query_async::<Vec<String>>(client).await;
        *value = match pair.map_err(Failure::from) {
            Ok(pair) => pair.into_iter().nth(1),
            Err(Failure::Unusable(_) | Failure::Unauthorized(_)) => None,
            Err(failure) => return Err(failure),
        };
    }
    let [appendonly, appendfsync] = values.each_ref().map(Option::as_deref);
    Ok(may_lose(appendonly, appendfsync))
}

fn may_lose(appendonly: Option<&str>, appendfsync: Option<&str>) -> Duration {
    match (appendonly, appendfsync) {
        (Some("no"), _) | (_, Some("always")) => Duration::ZERO,
        (_, Some("no")) => WRITTEN_BACK,
        _ => EVERY_SECOND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_a_write_may_be_lost_follows_from_the_settings() {
        for (appendonly, appendfsync, expected) in [
            (Some("yes"), Some("always"), Duration::ZERO),
            (Some("yes"), Some("everysec"), EVERY_SECOND),
            (Some("yes"), Some("no"), WRITTEN_BACK),
            (Some("no"), Some("everysec"), Duration::ZERO),
            (None, None, EVERY_SECOND),
        ] {
            assert_eq!(may_lose(appendonly, appendfsync), expected, "{appendfsync:?}");
        }
    }
}
