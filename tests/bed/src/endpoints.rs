//! The endpoints of a walpost.

use serde_json::Value;

use crate::eventually::eventually;
use crate::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT};
use crate::http;
use crate::walpost::Walpost;

/// The endpoints of a walpost that was started with `--admin-listen`, and logs JSON.
#[derive(Clone, Copy, Debug)]
pub struct Endpoints(u16);

impl Endpoints {
    /// Waits until the log has their address.
    pub async fn of(walpost: &Walpost) -> Self {
        let line = walpost.await_line("walpost starts", SHORT_TIMEOUT).await;
        let line: Value = serde_json::from_str(&line).expect("a JSON line");
        Self::at(line["endpoints"].as_str().expect("an address"))
    }

    /// The endpoints at that address.
    pub fn at(address: &str) -> Self {
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        Self(port.expect("an address with a port"))
    }

    /// For `--admin-listen` of the commands that ask them.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.0)
    }

    /// The status and the text of a page.
    pub async fn page(&self, path: &str) -> (u16, String) {
        http::text(self.0, path).await.expect("it answers")
    }

    pub async fn status(&self) -> Value {
        serde_json::from_str(&self.page("/status").await.1).expect("JSON")
    }

    /// The sum of a metric over its labels that have this text, without what is behind the point.
    pub async fn metric(&self, name: &str, label: &str) -> u64 {
        sum(&self.metrics().await, name, label)
    }

    /// Whether it is ready, and what it says.
    pub async fn readiness(&self) -> (bool, String) {
        let (status, text) = self.page("/readyz").await;
        (status == 200, text)
    }

    pub async fn are_ready(&self) -> bool {
        self.readiness().await.0
    }

    /// Awaits five checks of those that `run` repeats, of a walpost that delivers: none finds an error.
    pub async fn checks_find_no_error(&self) {
        let checked_at = |status: &Value| status["checked_at"].as_f64();
        let mut checks: Vec<_> = checked_at(&self.status().await).into_iter().collect();
        while checks.len() < 7 {
            let status = eventually(LONG_TIMEOUT, "another check", async || {
                let status = self.status().await;
                checked_at(&status).filter(|at| checks.last() < Some(at)).map(|_| status)
            })
            .await;
            checks.extend(checked_at(&status));
            let findings = status["findings"].as_array().expect("a list");
            let is_good = |finding: &&Value| {
                finding["level"] == "warning" && finding["code"] != "check_failed"
            };
            // The first two may have begun before it delivered.
            let bad = findings.iter().find(|finding| !is_good(finding));
            assert!(checks.len() < 3 || bad.is_none(), "{bad:?}");
        }
    }

    pub async fn metrics(&self) -> String {
        self.page("/metrics").await.1
    }
}

/// The sum of a metric over its labels that have this text, without what is behind the point.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "none is negative")]
pub(crate) fn sum(metrics: &str, name: &str, label: &str) -> u64 {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let lines = lines.filter(|rest| rest.starts_with([' ', '{']) && rest.contains(label));
    let values = lines.filter_map(|rest| rest.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum::<f64>() as u64
}
