//! A real Prometheus (Debian's) that scrapes the test's targets every second, with the test's
//! rules.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::error::{BedError, Doing};
use crate::http;
use crate::port::Port;
use crate::server::Server;

/// A running Prometheus. It is removed with its data on drop.
#[derive(Debug)]
pub struct Prometheus {
    server: Server,
    port: Port,
    targets: Mutex<Vec<Value>>,
}

/// One series' value at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Prometheus {
    /// One with these rules, and nothing to scrape yet.
    pub async fn start(rules: &str) -> Self {
        Self::try_start(rules).await.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn try_start(rules: &str) -> Result<Self, BedError> {
        let server = Server::new("prometheus", Signal::TERM)?;
        let prometheus = Self { server, port: Port::reserve()?, targets: Mutex::default() };
        let directory = prometheus.server.directory().to_owned();
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            fs::write(&path, text).doing(|| format!("writing {}", path.display()))
        };
        write("rules.yml", rules)?;
        write("targets.json", "[]")?;
        // A refresh next to the notice of a change, which may be missed.
        write(
            "prometheus.yml",
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n\
             rule_files: [rules.yml]\n\
             scrape_configs:\n  \
             - job_name: files\n    \
               file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]\n",
        )?;
        let mut command = prometheus.server.cleanup().launcher(Path::new("prometheus"));
        command
            .arg(format!("--web.listen-address=127.0.0.1:{}", prometheus.port.number()))
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .current_dir(&directory)
            .stdin(Stdio::null())
            .stdout(prometheus.server.log()?)
            .stderr(prometheus.server.log()?);
        prometheus.server.launch(&mut command, |_| {})?;
        let ask = async || prometheus.ask("/api/v1/status/buildinfo").await.map(drop);
        prometheus.server.ready("Prometheus", ask).await?;
        Ok(prometheus)
    }

    /// Scrapes this address too from now on, as a target of that job.
    pub fn scrape(&self, job: &str, address: &str) {
        let mut targets = self.targets.lock().expect("nobody panics with it");
        targets.push(json!({ "targets": [address], "labels": { "job": job } }));
        let path = self.path("targets.json");
        let partial = self.path("targets.partial");
        fs::write(&partial, Value::from(targets.clone()).to_string()).expect("it can be written");
        fs::rename(partial, path).expect("it can be put in its place");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.server.directory().join(name)
    }

    async fn ask(&self, path: &str) -> Result<Value, String> {
        http::request(self.port.number(), "GET", path, "").await
    }

    /// What an instant query yields now, or why it cannot be answered.
    pub async fn query(&self, expression: &str) -> Result<Vec<Sample>, String> {
        let answer = self.ask(&format!("/api/v1/query?query={}", escaped(expression))).await?;
        let data = &answer["data"];
        if data["resultType"] == "scalar" {
            let value = number(&data["result"][1]);
            return Ok(vec![Sample { labels: BTreeMap::new(), value }]);
        }
        let series = data["result"].as_array().ok_or_else(|| format!("no result: {answer}"))?;
        Ok(series.iter().map(sample).collect())
    }

    /// The value of a query that yields one series.
    pub async fn value(&self, expression: &str) -> Option<f64> {
        match self.query(expression).await.unwrap_or_else(|error| panic!("{error}")).as_slice() {
            [] => None,
            [one] => Some(one.value),
            more => panic!("{expression}: {more:?}"),
        }
    }

    /// The alerts that fire now, each once.
    pub async fn firing(&self) -> Vec<String> {
        let answer = self.ask("/api/v1/alerts").await.unwrap_or_else(|error| panic!("{error}"));
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        let names = firing.filter_map(|alert| alert["labels"]["alertname"].as_str());
        let mut names: Vec<_> = names.map(ToOwned::to_owned).collect();
        names.sort();
        names.dedup();
        names
    }
}

fn sample(series: &Value) -> Sample {
    let labels = series["metric"].as_object().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Sample {
        labels: labels.map(|(name, value)| (name.clone(), text(value))).collect(),
        value: number(&series["value"][1]),
    }
}

fn number(value: &Value) -> f64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

/// For a part of an URL's query.
fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}
