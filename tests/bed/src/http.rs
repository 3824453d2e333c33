//! A minimal HTTP client for the servers' REST interfaces.
//!
//! It uses HTTP 1.0, so that a response ends with its connection.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a request; its answer, or the error that it was answered with.
pub(crate) async fn request(
    port: u16,
    method: &str,
    path: &str,
    body: &str,
) -> Result<Value, String> {
    let answer = exchange(port, method, path, body).await.map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split_whitespace().nth(1).unwrap_or("no status");
    if !code.starts_with('2') {
        return Err(format!("{method} {path}: {code} {body}"));
    }
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(body).map_err(|error| format!("{method} {path}: {error}: {body}"))
}

/// The status and the body of what is there.
pub(crate) async fn text(port: u16, path: &str) -> Result<(u16, String), String> {
    let answer = exchange(port, "GET", path, "").await.map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| format!("{path}: {head}"))?, body.to_owned()))
}

async fn exchange(port: u16, method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!(
        "{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
