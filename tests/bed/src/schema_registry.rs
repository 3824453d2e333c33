//! A schema registry with Confluent's REST interface, as far as walpost asks it: in the test's own process, so
//! that it does what a real one cannot be made to do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::port::Port;

/// A registry, which may be away.
#[derive(Debug)]
pub struct SchemaRegistry {
    port: Port,
    state: Arc<Mutex<State>>,
    serving: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// The ids of each subject's versions.
    subjects: BTreeMap<String, Vec<i64>>,
    schemas: BTreeMap<i64, Value>,
    /// The header that each request has to have.
    authorization: Option<String>,
    /// What it says to everything, and after which time.
    answer: Option<(u16, String, Duration)>,
    /// The paths that were asked for.
    asked: Vec<String>,
}

impl SchemaRegistry {
    /// One that is away.
    pub fn away() -> Self {
        let port = Port::reserve().unwrap_or_else(|error| panic!("{error}"));
        Self { port, state: Arc::default(), serving: None }
    }

    pub async fn start() -> Self {
        let mut registry = Self::away();
        registry.begin().await;
        registry
    }

    /// Begins to serve; what it has is there still.
    pub async fn begin(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port.number())).await;
        let listener = listener.expect("its port is reserved");
        let state = Arc::clone(&self.state);
        self.serving = Some(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&state)));
            }
        }));
    }

    /// Is away from now on.
    pub async fn end(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
        }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }

    /// Registers a version of a subject, with these members beside id and schema; the schema has that id.
    pub fn register(&self, subject: &str, id: i64, more: &Value) {
        let mut schema = json!({"schema": "\"string\""});
        for (name, value) in more.as_object().into_iter().flatten() {
            schema[name] = value.clone();
        }
        let mut state = self.state();
        state.schemas.insert(id, schema);
        state.subjects.entry(subject.to_owned()).or_default().push(id);
    }

    /// Deletes a subject; its schemas can be asked for by their ids still.
    pub fn delete(&self, subject: &str) {
        self.state().subjects.remove(subject);
    }

    /// Takes only requests with this header.
    pub fn require(&self, authorization: &str) {
        self.state().authorization = Some(authorization.to_owned());
    }

    /// Says this to everything, after that time; `None`: what is right.
    pub fn say(&self, answer: Option<(u16, &str, Duration)>) {
        self.state().answer = answer.map(|(code, text, after)| (code, text.to_owned(), after));
    }

    /// How often a path with this text was asked for.
    pub fn asked(&self, part: &str) -> usize {
        self.state().asked.iter().filter(|path| path.contains(part)).count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte).await {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let (code, body, after) = {
        let mut state = lock(&state);
        state.asked.push(path.clone());
        let is_allowed = |needed: &String| {
            let header = format!("authorization: {needed}\r\n");
            head.to_lowercase().contains(&header.to_lowercase())
        };
        match &state.answer {
            Some(answer) => answer.clone(),
            None if !state.authorization.as_ref().is_none_or(is_allowed) => {
                (401, json!({"error_code": 401, "message": "no"}).to_string(), Duration::ZERO)
            }
            None => {
                let (code, body) = state.found(&path);
                (code, body.to_string(), Duration::ZERO)
            }
        }
    };
    tokio::time::sleep(after).await;
    let mut response = format!("HTTP/1.1 {code} X\r\nConnection: close\r\n");
    let _ = write!(response, "Content-Length: {}\r\n\r\n{body}", body.len());
    let _ = stream.write_all(response.as_bytes()).await;
}

impl State {
    fn found(&self, path: &str) -> (u16, Value) {
        let missing = |code: u32, what: &str| {
            (404, json!({"error_code": code, "message": format!("{what} not found.")}))
        };
        let segments: Vec<_> = path.split('/').skip(1).collect();
        match segments.as_slice() {
            ["schemas", "types"] => (200, json!(["AVRO", "JSON", "PROTOBUF"])),
            ["schemas", "ids", id] => {
                let schema = id.parse().ok().and_then(|id: i64| self.schemas.get(&id));
                schema.map_or_else(|| missing(40403, "Schema"), |schema| (200, schema.clone()))
            }
            ["subjects", subject, "versions", version] => {
                let Some(ids) = self.subjects.get(*subject) else {
                    return missing(40401, "Subject");
                };
                let number = match *version {
                    "latest" => ids.len(),
                    number => number.parse().unwrap_or_default(),
                };
                let Some(id) = number.checked_sub(1).and_then(|index| ids.get(index)) else {
                    return missing(40402, "Version");
                };
                let mut found = self.schemas[id].clone();
                found["subject"] = json!(subject);
                found["version"] = json!(number);
                found["id"] = json!(id);
                (200, found)
            }
            _ => missing(404, "Path"),
        }
    }
}
