//! Timeouts for requests to a server, so that a server that accepts the login and then stays silent
//! cannot block walpost forever.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::connect::Control;
use crate::conninfo::ConnInfo;
use crate::source::error::SourceError;

/// How long all requests after connecting may take, in addition to `connect_timeout`: a few small
/// queries, and the start of the stream, which reads no WAL. A server with a long round trip gets
/// more: [`OPENING_ROUND_TRIPS`] round trips, at most [`OPENING_LIMIT_FAR`].
pub(in crate::source) const OPENING_LIMIT: Duration = Duration::from_secs(30);
const OPENING_ROUND_TRIPS: u32 = 60;
const OPENING_LIMIT_FAR: Duration = Duration::from_secs(300);

/// [`OPENING_LIMIT`], adjusted to a server with this round-trip time.
pub(in crate::source) fn opening_limit(answer: Duration) -> Duration {
    (answer * OPENING_ROUND_TRIPS).clamp(OPENING_LIMIT, OPENING_LIMIT_FAR)
}

/// After how long to log what is waited for, if the wait has no limit.
const LOG_AFTER: Duration = Duration::from_secs(5);

/// A timeout for requests to a server.
#[derive(Debug)]
pub(crate) struct Limit {
    host: String,
    within: Duration,
}

/// The server did not respond in time.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}; {}", self.what(), Self::ADVICE)]
pub struct Silent {
    host: String,
    within: Duration,
}

impl Limit {
    /// The limit for the server that `control` reached: its first response must arrive within
    /// `connect_timeout`.
    pub(crate) fn new(conninfo: &ConnInfo, control: &Control) -> Self {
        Self { host: control.endpoint.host.to_string(), within: conninfo.connect_timeout }
    }

    /// Runs the first request. Its duration then extends the limit of later requests, which is
    /// longer.
    pub(crate) async fn first<T>(&mut self, asked: impl Future<Output = T>) -> Result<T, Silent> {
        let began = Instant::now();
        let answer = self.on(asked).await;
        self.within += opening_limit(began.elapsed());
        answer
    }

    /// Runs a request; fails if the response does not arrive in time.
    pub(crate) async fn on<T>(&self, asked: impl Future<Output = T>) -> Result<T, Silent> {
        self.at_most(self.within, asked).await
    }

    /// The same with another limit.
    pub(crate) async fn at_most<T>(
        &self,
        within: Duration,
        asked: impl Future<Output = T>,
    ) -> Result<T, Silent> {
        let silent = |_| Silent { host: self.host.clone(), within };
        timeout(within, asked).await.map_err(silent)
    }
}

impl Silent {
    /// The remedy.
    pub(crate) const ADVICE: &str = "see in pg_stat_activity (wait_event, pg_blocking_pids) what the \
         session waits for, then the server's log and the network";

    /// What happened.
    pub(crate) fn what(&self) -> String {
        format!("{}: no answer within {:.1?}", self.host, self.within)
    }
}

/// How long a small query may take before its connection counts as dead.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The response to a small query on `connection`; an error if it takes longer than
/// [`ANSWER_LIMIT`].
pub(in crate::source) async fn answered<T>(
    connection: &str,
    answer: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    timeout(ANSWER_LIMIT, answer).await.unwrap_or_else(|_| {
        Err(SourceError::Lost(format!("{connection} did not answer for {ANSWER_LIMIT:?}")))
    })
}

/// Waits without a limit, and calls `say` if the wait takes long.
pub(crate) async fn log_if_slow<T>(say: impl FnOnce(), awaited: impl Future<Output = T>) -> T {
    let mut awaited = std::pin::pin!(awaited);
    if let Ok(done) = timeout(LOG_AFTER, &mut awaited).await {
        return done;
    }
    say();
    awaited.await
}
