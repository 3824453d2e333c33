//! Chromium without a window, driven through two pipes, in which a NUL byte ends each message
//! (`--remote-debugging-pipe`; <https://chromedevtools.github.io/devtools-protocol/>).

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe::{OpenOptions, Receiver, Sender};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long it may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Its two pipes are file descriptors 3 (it reads) and 4 (it writes).
const START: &str = "exec chromium --headless --no-sandbox --disable-gpu --no-first-run \
    --disable-background-networking --disable-dev-shm-usage --remote-debugging-pipe \
    --user-data-dir=\"$1\" about:blank 3<\"$1/in\" 4>\"$1/out\" 2>\"$1/log\"";

/// One page of a running Chromium.
pub struct Chromium {
    sender: Sender,
    receiver: BufReader<Receiver>,
    calls: u64,
    session: Option<String>,
    /// The addresses of all requests.
    pub requests: Vec<String>,
    /// What the console has as an error: a script that throws, or content that the policy refuses.
    pub errors: Vec<String>,
    /// The process and its files, which go with it.
    _kept: (Child, TempDir),
}

impl Chromium {
    pub async fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        let pipe = |name: &str| directory.path().join(name);
        for name in ["in", "out"] {
            let made = Command::new("mkfifo").arg(pipe(name)).status().await;
            assert!(made.expect("mkfifo").success());
        }
        // Opened for both ways, neither end waits for the other.
        let open = |name: &str| (OpenOptions::new().read_write(true).clone(), pipe(name));
        let (options, path) = open("in");
        let sender = options.open_sender(path).expect("a pipe");
        let (options, path) = open("out");
        let receiver = BufReader::new(options.open_receiver(path).expect("a pipe"));
        let process = Command::new("sh")
            .args(["-c", START, "sh"])
            .arg(directory.path())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("a shell");
        let (calls, session, requests, errors) = (0, None, Vec::new(), Vec::new());
        let kept = (process, directory);
        let mut page = Self { sender, receiver, calls, session, requests, errors, _kept: kept };
        let target = page.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = page.call("Target.attachToTarget", attach).await;
        page.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Network", "Runtime", "Log"] {
            page.call(&format!("{domain}.enable"), json!({})).await;
        }
        page
    }

    /// The result of a method.
    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut request = json!({"id": self.calls, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        let text = request.to_string() + "\0";
        self.sender.write_all(text.as_bytes()).await.expect("it reads");
        let answered = timeout(ANSWER_LIMIT, async {
            loop {
                let mut answer = self.message().await;
                if answer["id"] == self.calls {
                    assert_eq!(answer["error"], Value::Null, "{method}");
                    return answer["result"].take();
                }
                self.note(&answer);
            }
        });
        answered.await.unwrap_or_else(|_| panic!("no answer to {method}"))
    }

    async fn message(&mut self) -> Value {
        let mut text = Vec::new();
        self.receiver.read_until(0, &mut text).await.expect("it writes");
        serde_json::from_slice(text.strip_suffix(b"\0").unwrap_or(&text)).expect("JSON")
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                let url = params["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.errors.push(params["entry"].to_string());
            }
            Some("Runtime.exceptionThrown") => self.errors.push(params.to_string()),
            _ => {}
        }
    }

    /// Loads the page at that address.
    pub async fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({"url": url})).await;
        assert_eq!(opened["errorText"], Value::Null, "{url}");
    }

    /// The value of an expression in the page.
    pub async fn value(&mut self, expression: &str) -> Value {
        let evaluate =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut result = self.call("Runtime.evaluate", evaluate).await;
        assert_eq!(result["exceptionDetails"], Value::Null, "{expression}");
        result["result"]["value"].take()
    }

    /// The text of the first element; empty without one.
    pub async fn text(&mut self, selector: &str) -> String {
        let text = self.value(&format!("document.querySelector('{selector}')?.textContent")).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Makes the window that wide, with a light or dark page.
    pub async fn look(&mut self, width: u32, scheme: &str) {
        let size =
            json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Writes what the window shows to a file, as PNG.
    pub async fn photograph(&mut self, file: &Path) {
        let image = self.call("Page.captureScreenshot", json!({"format": "png"})).await;
        let image = STANDARD.decode(image["data"].as_str().expect("an image")).expect("base64");
        std::fs::write(file, image).expect("it is written");
    }
}
