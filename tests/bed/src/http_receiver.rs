//! A receiver of walpost's HTTP requests that can be killed: a process of its own, the program
//! `http_receiver` of the bed, and what it has accepted.
//!
//! It writes a request to its file before it answers, so what it has accepted survives a kill.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::consumer::Consumed;
use crate::error::{BedError, Doing};
use crate::fixture::sibling_program;
use crate::port::Port;
use crate::server::Server;

/// How often a follower looks for new requests.
const LOOK: Duration = Duration::from_millis(1);

/// A running (or stopped) receiver. It is removed with its file on drop.
#[derive(Debug)]
pub struct HttpReceiver {
    pub(crate) server: Server,
    port: Port,
}

impl HttpReceiver {
    pub async fn start() -> Self {
        Self::try_start().await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_start() -> Result<Self, BedError> {
        let server = Server::new("receiver", Signal::KILL)?;
        let receiver = Self { server, port: Port::reserve()? };
        let path = receiver.accepted();
        File::create(&path).doing(|| format!("making {}", path.display()))?;
        receiver.launch()?;
        receiver.ready().await?;
        Ok(receiver)
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Kills it, and returns once it has exited.
    pub async fn kill9(&self) {
        self.server.kill_all().await;
    }

    /// Asks it to stop (SIGTERM); whether it had stopped within the deadline.
    pub async fn stop(&self, deadline: Duration) -> bool {
        self.server.stop(deadline).await
    }

    /// Freezes it (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        self.server.signal(Signal::STOP);
    }

    /// Thaws it.
    pub fn resume(&self) {
        self.server.signal(Signal::CONT);
    }

    /// Starts it again on its port with its file, and awaits that it listens.
    pub async fn start_again(&self) {
        self.launch().unwrap_or_else(|error| panic!("{error}"));
        self.ready().await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// The file of what it has accepted, a line for each request.
    fn accepted(&self) -> PathBuf {
        self.server.directory().join("accepted")
    }

    fn launch(&self) -> Result<(), BedError> {
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let mut command = self.server.cleanup().launcher(&sibling_program("http_receiver"));
        command.arg(self.port.number().to_string()).arg(self.accepted());
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.server.launch(&mut command, |_| ())
    }

    async fn ready(&self) -> Result<(), BedError> {
        let address = ("127.0.0.1", self.port.number());
        let ask = async || TcpStream::connect(address).await.map(drop);
        self.server.ready("the receiver", ask).await
    }

    /// How many bytes of its file are written.
    pub fn end(&self) -> u64 {
        std::fs::metadata(self.accepted()).expect("it is there").len()
    }

    /// The accepted requests behind so many bytes of its file, in the order of the answers. The
    /// header `id` of each is its `webhook-id`.
    pub fn records_after(&self, bytes: u64) -> Vec<Consumed> {
        read(&self.accepted(), bytes).0
    }

    /// The accepted requests from the first one on, as they come.
    pub fn follow(&self) -> mpsc::UnboundedReceiver<Consumed> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let path = self.accepted();
        tokio::spawn(async move {
            let (mut end, mut count) = (0, 0);
            while !sender.is_closed() {
                let (records, next) = read(&path, end);
                end = next;
                for record in records {
                    // A closed channel is seen above.
                    let _ = sender.send(Consumed { offset: count, ..record });
                    count += 1;
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        receiver
    }
}

/// The requests of the complete lines behind so many bytes, and the bytes before the next one.
/// Nothing when the file is gone.
fn read(path: &PathBuf, bytes: u64) -> (Vec<Consumed>, u64) {
    let mut text = String::new();
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(bytes))?;
        file.read_to_string(&mut text)
    });
    let complete = text.rfind('\n').map_or(0, |at| at + 1);
    if read.is_err() || complete == 0 {
        return (Vec::new(), bytes);
    }
    let lines = text[..complete].lines();
    let records = (0..).zip(lines).map(|(offset, line)| record(offset, line)).collect();
    (records, bytes + complete as u64)
}

fn record(offset: i64, line: &str) -> Consumed {
    let request: Value = serde_json::from_str(line).expect("a request in JSON");
    let text = |name: &str| request[name].as_str().map(str::to_owned);
    Consumed {
        topic: text("walpost-topic").unwrap_or_default(),
        partition: 0,
        offset,
        key: text("walpost-key").map(String::into_bytes),
        value: text("body").map(String::into_bytes),
        headers: text("webhook-id")
            .map(|id| ("id".to_owned(), Some(id.into_bytes())))
            .into_iter()
            .collect(),
        timestamp_ms: text("walpost-timestamp").and_then(|text| text.parse().ok()),
    }
}
