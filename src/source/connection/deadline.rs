//! Time limits for what is asked of a server, so that a server that accepts the login and then is
//! silent blocks nothing for ever.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::connect::Control;
use crate::conninfo::ConnInfo;
use crate::source::error::SourceError;

/// How long all that is asked of the server after connecting may take beyond
/// `connect_timeout`: a handful of small queries and the stream's beginning,
/// which waits for no log to be read. More where the server is far: so many times as long as it
/// takes to answer, though not for ever.
pub(in crate::source) const OPENING_LIMIT: Duration = Duration::from_secs(30);
const OPENING_ANSWERS: u32 = 60;
const OPENING_LIMIT_FAR: Duration = Duration::from_secs(300);

/// See [`OPENING_LIMIT`], of a server that took so long to answer.
pub(in crate::source) fn opening_limit(answer: Duration) -> Duration {
    (answer * OPENING_ANSWERS).clamp(OPENING_LIMIT, OPENING_LIMIT_FAR)
}

/// After how long is said what is waited for, where that may take as long as others like.
const LOG_AFTER: Duration = Duration::from_secs(5);

/// Limits what is asked of a server.
#[derive(Debug)]
pub(crate) struct Limit {
    host: String,
    within: Duration,
}

/// The server has not answered in time.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}; {}", self.what(), Self::ADVICE)]
pub struct Silent {
    host: String,
    within: Duration,
}

impl Limit {
    /// Of the server that `control` reached: its first answer has to come within
    /// `connect_timeout`.
    pub(crate) fn new(conninfo: &ConnInfo, control: &Control) -> Self {
        Self { host: control.endpoint.host.to_string(), within: conninfo.connect_timeout }
    }

    /// Asks for the first time. What is asked after that may take longer, and as much more as the
    /// server is far.
    pub(crate) async fn first<T>(&mut self, asked: impl Future<Output = T>) -> Result<T, Silent> {
        let began = Instant::now();
        let answer = self.on(asked).await;
        self.within += opening_limit(began.elapsed());
        answer
    }

    /// An error where the answer does not come in time.
    pub(crate) async fn on<T>(&self, asked: impl Future<Output = T>) -> Result<T, Silent> {
        self.at_most(self.within, asked).await
    }

    /// The same, with another limit.
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
    /// What to do about it.
    pub(crate) const ADVICE: &str = "see in pg_stat_activity (wait_event, pg_blocking_pids) what the \
         session waits for, then the server's log and what lies between";

    /// What happened.
    pub(crate) fn what(&self) -> String {
        format!("{}: no answer within {:.1?}", self.host, self.within)
    }
}

/// How long a small query of a session may take before its connection counts as dead.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The answer to a small query on `connection`; an error if it takes longer than
/// [`ANSWER_LIMIT`].
pub(in crate::source) async fn answered<T>(
    connection: &str,
    answer: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    timeout(ANSWER_LIMIT, answer).await.unwrap_or_else(|_| {
        Err(SourceError::Lost(format!("{connection} did not answer for {ANSWER_LIMIT:?}")))
    })
}

/// Waits for as long as it takes, and says so where it takes long.
pub(crate) async fn log_if_slow<T>(say: impl FnOnce(), awaited: impl Future<Output = T>) -> T {
    let mut awaited = std::pin::pin!(awaited);
    if let Ok(done) = timeout(LOG_AFTER, &mut awaited).await {
        return done;
    }
    say();
    awaited.await
}
