//! A connection to NATS: TCP or TLS, and login.
//!
//! The client library connects again by itself and sends what it has queued. That is harmless (see
//! [`super`]), but nothing would tell which messages were lost: a connection that breaks is given
//! up, with everything in flight.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event};
use secrecy::ExposeSecret as _;
use tokio::sync::Notify;

use super::config::NatsConfig;
use crate::destination::parts::Failure;

/// Timeout for TCP, TLS and login, for each address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the server is asked for a sign of life. Without three, the connection is given up.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// How many messages the library queues: more than the worker has in flight, so that it never waits
/// for room.
const QUEUE: usize = 8192;

/// The first line of a file with a JWT and the seed of its key.
const JWT: &str = "BEGIN NATS USER JWT";

/// An open connection. It is closed on drop.
pub(crate) struct Connection {
    pub(crate) client: Client,
    trouble: Arc<Trouble>,
}

/// What has happened to a connection.
#[derive(Debug, Default)]
struct Trouble {
    failure: Mutex<Option<Failure>>,
    stirred: Notify,
}

impl Trouble {
    fn note(&self, failure: Failure) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.stirred.notify_one();
    }
}

impl Connection {
    /// The outcome of `work`, or why the connection failed meanwhile.
    pub(crate) async fn or_failed<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            failure = self.failed() => Err(failure),
            done = work => done,
        }
    }

    /// Completes when the connection cannot be used any more. Cancel-safe.
    pub(super) async fn failed(&self) -> Failure {
        loop {
            let failure =
                self.trouble.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match failure {
                Some(failure) => return failure,
                None => self.trouble.stirred.notified().await,
            }
        }
    }
}

/// Connects and logs in.
pub(crate) async fn connect(config: &NatsConfig) -> Result<Connection, Failure> {
    let (address, servers) = (config.url.address(), config.url.servers());
    let trouble = Arc::<Trouble>::default();
    let noted = Arc::clone(&trouble);
    let lost = format!("{address}: the connection was lost");
    let options = ConnectOptions::new()
        .name("walpost")
        .connection_timeout(CONNECT_TIMEOUT)
        .request_timeout(Some(REQUEST_TIMEOUT))
        .ping_interval(PING_INTERVAL)
        .client_capacity(QUEUE)
        .ignore_discovered_servers()
        // Each server once. A connection that broke is not used any more, whether it comes back.
        .max_reconnects(servers.len())
        .event_callback(move |event| {
            match event {
                Event::Disconnected | Event::Closed => {
                    noted.note(Failure::Unreachable(lost.clone()));
                }
                Event::ServerError(error) => noted.note(Failure::of_server(&error.to_string())),
                Event::Connected
                | Event::LameDuckMode
                | Event::Draining
                | Event::SlowConsumer(_)
                | Event::ClientError(_) => {}
            }
            async {}
        });
    let options = login(config, options)?;
    let options = if config.url.first.tls {
        options.require_tls(true).tls_client_config(config.tls.client_config()?)
    } else {
        options
    };
    let connected = options.connect(servers.as_slice()).await;
    let client = connected.map_err(|error| Failure::of_connect(&error, &address))?;
    Ok(Connection { client, trouble })
}

fn login(config: &NatsConfig, options: ConnectOptions) -> Result<ConnectOptions, Failure> {
    let login = &config.url.first;
    let options = match (login.user.clone(), &login.password) {
        (Some(user), Some(password)) => {
            options.user_and_password(user, password.expose_secret().to_owned())
        }
        (Some(token), None) => options.token(token),
        (None, _) => options,
    };
    let Some(path) = &config.credentials else { return Ok(options) };
    let unusable = |reason: &dyn std::fmt::Display| {
        Failure::Unusable(format!("nats.credentials_file {}: {reason}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| unusable(&error))?;
    if text.contains(JWT) {
        // The library's reason may contain a part of the file.
        return options
            .credentials(&text)
            .map_err(|_| unusable(&"its JWT or its seed is not readable"));
    }
    let seed = text.trim();
    let is_seed = seed.starts_with('S')
        && seed.len() == SEED_LETTERS
        && seed.bytes().all(|sign| sign.is_ascii_uppercase() || sign.is_ascii_digit());
    if !is_seed {
        return Err(unusable(&"it has neither a JWT with its seed nor the seed of an NKey"));
    }
    Ok(options.nkey(seed.to_owned()))
}

/// Letters of the seed of an NKey, in base 32.
const SEED_LETTERS: usize = 58;
