//! A connection to Redis: login and database.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, Value};
use secrecy::ExposeSecret as _;
use tokio::task::JoinHandle;

use super::config::RedisConfig;
use super::failure::CLUSTER;
use crate::destination::parts::Failure;
use crate::destination::parts::dial::Stream;

/// An open connection. It is closed on drop, whatever is in flight.
pub(crate) struct Connection {
    pub(crate) client: MultiplexedConnection,
    pub(crate) greeting: Greeting,
    driver: JoinHandle<()>,
}

/// What a server says of itself (<https://redis.io/docs/latest/commands/hello/>); empty if the user
/// may not ask.
#[derive(Debug, Clone, Default)]
pub(crate) struct Greeting {
    pub(crate) version: String,
    /// `standalone`, `sentinel` or `cluster`.
    pub(crate) mode: String,
    /// `master` or `replica`.
    pub(crate) role: String,
}

impl Connection {
    /// Completes when the server has closed the connection. Cancel-safe; not to be called again then.
    pub(super) async fn closed(&mut self) {
        // It ends with an error, or is not needed any more.
        let _ = (&mut self.driver).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Connects and logs in. Refuses a node of a Redis Cluster: streams move from node to node there.
pub(crate) async fn connect(config: &RedisConfig) -> Result<Connection, Failure> {
    let connection = log_in(config).await?;
    if connection.greeting.mode == "cluster" {
        let address = config.url.address();
        return Err(Failure::Unsupported(format!("{address} is a node of a cluster: {CLUSTER}")));
    }
    Ok(connection)
}

async fn log_in(config: &RedisConfig) -> Result<Connection, Failure> {
    let url = &config.url;
    let stream = url.dial().await?;
    url.answers(async { open(config, url.secured(stream, &config.tls).await?).await }).await
}

async fn open(config: &RedisConfig, stream: Box<dyn Stream>) -> Result<Connection, Failure> {
    let url = &config.url;
    let mut info = RedisConnectionInfo::default().set_db(config.database).set_skip_set_lib_name();
    if let Some(user) = &url.user {
        info = info.set_username(user);
    }
    if let Some(password) = &url.password {
        info = info.set_password(password.expose_secret());
    }
    // The worker has timeouts of its own.
    let settings = AsyncConnectionConfig::new().set_response_timeout(None);
    let (client, driver) = MultiplexedConnection::new_with_config(&info, stream, settings).await?;
    let greeting = Greeting::default();
    let mut connection = Connection { client, greeting, driver: tokio::spawn(driver) };
    let answer = redis::cmd("HELLO").query_async::<Vec<Value>>(&mut connection.client).await;
    match answer.map_err(Failure::from) {
        Ok(answer) => connection.greeting = greeting_of(&answer),
        Err(failure @ (Failure::Unreachable(_) | Failure::Unauthenticated(_))) => {
            return Err(failure);
        }
        Err(_) => {}
    }
    Ok(connection)
}

fn greeting_of(answer: &[Value]) -> Greeting {
    let of = |name: &str| {
        let mut pairs = answer.chunks_exact(2);
        let pair =
            pairs.find(|pair| matches!(&pair[0], Value::BulkString(one) if one == name.as_bytes()));
        match pair.map(|pair| &pair[1]) {
            Some(Value::BulkString(text)) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        }
    };
    Greeting { version: of("version"), mode: of("mode"), role: of("role") }
}
