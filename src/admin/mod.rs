//! The HTTP endpoints of a running walpost: liveness, readiness, metrics and status. Also the
//! notifications to systemd.
//!
//! Everything runs on its own thread, so a scrape delays no record, and a relay whose loop is stuck
//! is still reported. It only reads [`Metrics`], and decides nothing.

mod checks;
mod client;
mod health;
mod history;
mod host;
mod page;
mod process;
mod server;
mod status;
mod systemd;
pub(crate) mod words;

use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::thread;

use prometheus_client::registry::Registry;
use tokio::net::TcpSocket;

pub use self::checks::FindingStatus;
pub use self::client::{AskError, StatusError, ask, status};
pub use self::health::{Health, ReasonKind, live, ready};
pub use self::history::{Latency, TopicRate};
use self::host::Hosts;
pub use self::page::ShownSetting;
pub use self::status::{
    EventStatus, LastError, PoisonStatus, Position, SlotStatus, Status, TroubleStatus,
};
pub use self::systemd::{reloaded, reloading, stopping};
use crate::metrics::Metrics;

/// What the endpoints show in addition to the metrics.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The database.
    pub database: String,
    /// The replication slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// Where walpost's own position is kept; `None`: nowhere.
    pub place_of_position: Option<String>,
    /// The options with which `walpost check` is repeated; `None`: it is not.
    pub check: Option<Vec<OsString>>,
    /// Whether the address is not a loopback one, so that whoever reaches it may be anybody: it shows no
    /// setting, no event's id, and of a finding only its code.
    pub is_open: bool,
    /// The settings for the page at `/`, which shows them on a loopback address; `None`: there is no page.
    pub settings: Option<Vec<ShownSetting>>,
}

/// Why the endpoints cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Listening on the address failed.
    #[error(
        "cannot listen on {address} for the endpoints: {error}; where another walpost has it, give \
         this one another admin.listen, or `off`"
    )]
    Listen {
        /// The address, as configured.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// The thread cannot be created.
    #[error("cannot start a thread for the endpoints: {0}")]
    Thread(io::Error),
}

/// Starts to serve on `address`, if set, and to notify systemd, if it requests that, until the
/// process ends; returns the address on which it listens.
pub fn start(
    address: Option<&str>,
    metrics: &Arc<Metrics>,
    about: About,
) -> Result<Option<SocketAddr>, AdminError> {
    let listener = address.map(listen).transpose()?;
    let bound = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    if listener.is_none() && !systemd::is_requested() {
        return Ok(None);
    }
    let mut about = about;
    about.is_open = bound.is_none_or(|bound| !bound.ip().is_loopback());
    if about.is_open {
        about.settings.iter_mut().for_each(Vec::clear);
    }
    let hosts = match (address, bound) {
        (Some(configured), Some(bound)) => Hosts::of(configured, bound),
        _ => Hosts::Any,
    };
    let metrics = Arc::clone(metrics);
    let serve = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        // This fails only without epoll; then no other part of the process would run either.
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let notified = systemd::notify(Arc::clone(&metrics));
            match listener {
                Some(listener) => {
                    let served = server::serve(listener, metrics, about, hosts);
                    let ((), ()) = tokio::join!(notified, served);
                }
                None => notified.await,
            }
        });
    };
    thread::Builder::new().name("endpoints".to_owned()).spawn(serve).map_err(AdminError::Thread)?;
    Ok(bound)
}

fn listen(address: &str) -> Result<TcpListener, AdminError> {
    let bind = || {
        let addresses: Vec<_> = address.to_socket_addrs()?.collect();
        let listener = TcpListener::bind(addresses.as_slice())?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|error| AdminError::Listen { address: address.to_owned(), error })
}

/// Whether [`start`] could listen on that address now. The address is bound and released without
/// listening, so neither another check nor a walpost that starts meanwhile is affected.
pub async fn could_listen(address: &str) -> io::Result<()> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "its name has no address");
    for address in tokio::net::lookup_host(address).await? {
        let taken = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        };
        let taken = taken.and_then(|socket| {
            socket.set_reuseaddr(true)?;
            socket.bind(address)
        });
        match taken {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// All metrics of the relay and of the process.
fn registry(metrics: &Arc<Metrics>, about: &About) -> Registry {
    let mut registry = Registry::default();
    metrics.register(&mut registry, &about.database, &about.slot);
    registry.register_collector(Box::new(process::Process { started: metrics.started_at() }));
    registry
}
