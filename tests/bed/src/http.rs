//! A minimal HTTP client for the servers' REST interfaces.
//!
//! It uses HTTP 1.0, so that a response ends with its connection.

use std::fmt::Write as _;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The type of what is sent.
const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Sends a request; its answer, or the error that it was answered with.
pub(crate) async fn request(
    port: u16,
    method: &str,
    path: &str,
    body: &str,
) -> Result<Value, String> {
    let answer = exchange(port, (method, path), &[JSON], body).await;
    parsed(&format!("{method} {path}"), &answer.map_err(|error| error.to_string())?)
}

/// Posts JSON with these headers; its answer, or the error that it was answered with.
pub(crate) async fn post(
    port: u16,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<Value, String> {
    let answer = exchange(port, ("POST", path), headers, body).await;
    parsed(&format!("POST {path}"), &answer.map_err(|error| error.to_string())?)
}

fn parsed(request: &str, answer: &str) -> Result<Value, String> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let code = head.split_whitespace().nth(1).unwrap_or("no status");
    if !code.starts_with('2') {
        return Err(format!("{request}: {code} {body}"));
    }
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(body).map_err(|error| format!("{request}: {error}: {body}"))
}

/// The status and the body of what is there.
pub(crate) async fn text(port: u16, path: &str) -> Result<(u16, String), String> {
    let answer = exchange(port, ("GET", path), &[JSON], "").await;
    let answer = answer.map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| format!("{path}: {head}"))?, body.to_owned()))
}

async fn exchange(
    port: u16,
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let mut request = format!("{method} {path} HTTP/1.0\r\n");
    let _ = write!(request, "Host: 127.0.0.1:{port}\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        let _ = write!(request, "{name}: {value}\r\n");
    }
    let _ = write!(request, "\r\n{body}");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
