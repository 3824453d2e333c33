//! A receiver of walpost's HTTP requests: writes each to a file, a line of JSON, and answers 204 then.
//!
//! `http_receiver PORT FILE`. It has no more of HTTP than that needs, and shares none of it with
//! walpost.

use std::fs::File;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::rc::Rc;

use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

/// The headers that are kept of a request.
const KEPT: [&str; 4] = ["webhook-id", "walpost-topic", "walpost-key", "walpost-timestamp"];

// One thread: a request is answered in the order in which it was written.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().and_then(|port| port.parse().ok());
    let (Some(port), Some(path), None) = (port, arguments.next(), arguments.next()) else {
        eprintln!("usage: http_receiver PORT FILE");
        return ExitCode::from(2);
    };
    match LocalSet::new().run_until(receive(port, &path)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("http_receiver: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn receive(port: u16, path: &str) -> io::Result<()> {
    let file = Rc::new(File::options().append(true).create(true).open(path)?);
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let file = Rc::clone(&file);
        // An error is that of a client that is gone.
        spawn_local(async move { serve(stream, &file).await });
    }
}

/// Answers the requests of a connection, one after the other.
async fn serve(mut stream: TcpStream, file: &File) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (from, mut to) = stream.split();
    let mut from = BufReader::new(from);
    while let Some(request) = request(&mut from).await? {
        let line = format!("{}\n", Value::Object(request));
        // One call: a line is in the file as a whole, or not at all.
        (&*file).write_all(line.as_bytes())?;
        to.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await?;
    }
    Ok(())
}

/// The next request, or nothing once the client has closed the connection.
async fn request(
    from: &mut (impl tokio::io::AsyncBufRead + Unpin),
) -> io::Result<Option<Map<String, Value>>> {
    let mut line = String::new();
    if from.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let (mut request, mut length) = (Map::new(), 0);
    loop {
        line.clear();
        if from.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some((name, value)) = line.split_once(':') else { break };
        let (name, value) = (name.to_ascii_lowercase(), value.trim());
        if name == "content-length" {
            length = value.parse().map_err(|_| io::ErrorKind::InvalidData)?;
        }
        if KEPT.contains(&name.as_str()) {
            request.insert(name, value.into());
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    request.insert("body".to_owned(), String::from_utf8_lossy(&body).into());
    Ok(Some(request))
}
