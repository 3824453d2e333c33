//! The interface of the library: walpost inside another program.

use std::sync::Arc;

use crate::assembly::{self, AssemblyError};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::relay::{Relay, RelayError, StopHandle, Summary, Until};
use crate::sink::Reloader;
use crate::source::{SourceConfig, install_crypto_provider};

/// Delivers the events of the configured outbox to the configured destination.
///
/// It reconnects by itself; an error of [`Walpost::run`] needs an operator.
pub struct Walpost {
    relay: Relay<SourceConfig>,
    stop: StopHandle,
}

impl Walpost {
    /// Creates it; nothing connects before [`Walpost::run`]. Call it within a Tokio runtime. Files are
    /// read again at each connect; variables are those with which the configuration was loaded.
    ///
    /// # Errors
    ///
    /// A value of the configuration that cannot be used, with the place where it was set.
    pub fn new(config: &Config) -> Result<Self, AssemblyError> {
        install_crypto_provider();
        let (relay, stop) = assembly::relay(config)?;
        Ok(Self { relay, stop })
    }

    /// Lets [`Walpost::run`] end once everything before this position is delivered and confirmed.
    #[must_use]
    pub fn until(self, until: Until) -> Self {
        Self { relay: self.relay.until(until), ..self }
    }

    /// Lets it block its thread: in a dense stream of changes it then pauses by putting the thread to
    /// sleep, 1 to 2 milliseconds at a time, so that messages accumulate in the socket. That takes less
    /// CPU than a pause during which the runtime continues.
    ///
    /// Call it only if it has a single-threaded runtime to itself, as in the program `walpost`: all other
    /// tasks of that thread are blocked during the pauses.
    #[must_use]
    pub fn on_own_thread(self) -> Self {
        Self { relay: self.relay.on_own_thread(), ..self }
    }

    /// The handle that stops it.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// The metrics of this walpost.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.relay.metrics()
    }

    /// The function that has the destination read its secrets and certificates again; `None`: it does so
    /// with each connection.
    pub fn reload(&self) -> Option<Reloader> {
        self.relay.reload()
    }

    /// Runs until it is stopped, has reached the position of [`Walpost::until`], or needs an operator.
    ///
    /// A single-threaded runtime is the fastest. Other tasks may share it: the thread is not blocked while
    /// events are delivered, unless [`Walpost::on_own_thread`] was called. Closing the producer at the end
    /// blocks it for up to two seconds.
    ///
    /// # Errors
    ///
    /// What an operator has to decide or repair; nothing that passes by itself.
    pub async fn run(self) -> Result<Summary, RelayError> {
        Box::pin(self.relay.run()).await
    }
}
