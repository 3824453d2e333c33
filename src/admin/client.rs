//! Queries a running walpost.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::Status;

/// Timeout for a response.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Maximum length of a response, in bytes.
const LONGEST: usize = 1 << 20;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
#[error("nothing answers on {address}: {reason}")]
pub struct AskError {
    address: String,
    reason: String,
}

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// A request without a response.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The response is not from a walpost.
    #[error("the server on {address} is not walpost: {reason}")]
    Foreign {
        /// The address, as configured.
        address: String,
        /// Why it is not.
        reason: String,
    },
}

/// Requests the status of the walpost that listens on `address`, as configured.
pub async fn status(address: &str) -> Result<Status, StatusError> {
    let (code, body) = ask(address, "/status").await?;
    let foreign = |reason| StatusError::Foreign { address: address.to_owned(), reason };
    if !code.is_success() {
        return Err(foreign(code.to_string()));
    }
    serde_json::from_slice(&body).map_err(|error| foreign(error.to_string()))
}

/// Requests a page from the walpost that listens on `address`, as configured.
pub async fn ask(address: &str, path: &str) -> Result<(StatusCode, Bytes), AskError> {
    let asked = timeout(ANSWER_LIMIT, get(address, path)).await;
    let answer = asked.unwrap_or_else(|_| Err(format!("no answer within {ANSWER_LIMIT:?}")));
    answer.map_err(|reason| AskError { address: address.to_owned(), reason })
}

async fn get(address: &str, path: &str) -> Result<(StatusCode, Bytes), String> {
    let stream = connect(address).await?;
    let said = |error: hyper::Error| error.to_string();
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(said)?;
    let request = Request::get(path).header(HOST, address).body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(said)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LONGEST).collect().await;
        Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
    };
    let mut connection = std::pin::pin!(connection);
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        // The response first: a server may close the connection right after it, and a complete
        // response counts even if the connection then ends with an error.
        biased;
        answer = &mut exchange => answer,
        ended = &mut connection => match ended {
            Err(error) => Err(error.to_string()),
            Ok(()) => exchange.await,
        },
    }
}

async fn connect(address: &str) -> Result<TcpStream, String> {
    let addresses = lookup_host(address).await.map_err(|error| error.to_string())?;
    let mut reason = "its name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect(reachable(address)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

/// A listener on all addresses is queried on loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
