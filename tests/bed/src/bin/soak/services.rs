//! The servers, the proxies between them and walpost, and how walpost is started.

use std::time::Duration;

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, proxied};
use walpost_bed::{Major, Postgres, Proxy, Walpost, within};

use crate::Broken;
use crate::rng::Rng;
use crate::target::{Target, Wanted};

/// How soon the server gives a session up: within what a dead link may last.
const SESSION_LIMIT: Duration = Duration::from_secs(3);

pub(crate) struct Services {
    pub(crate) target: Target,
    pub(crate) postgres_link: Proxy,
    pub(crate) target_link: Proxy,
    pub(crate) walpost: Walpost,
    /// Starts of walpost after the first.
    pub(crate) restarts: u64,
    /// How often it was killed while something else was away.
    pub(crate) killed_meanwhile: u64,
}

impl Services {
    pub(crate) async fn set(wanted: Wanted) -> Self {
        let target_link = Proxy::start().await;
        let postgres = Postgres::builder(Major::V15).wal_sender_timeout(SESSION_LIMIT);
        let mut target = Target::set(wanted, postgres.start().await, &target_link).await;
        let postgres_link = Proxy::to(target.fixture().postgres.port()).await;
        target.read_from(proxied(&postgres_link));
        let walpost = target.command(None).start();
        Self { target, postgres_link, target_link, walpost, restarts: 0, killed_meanwhile: 0 }
    }

    pub(crate) fn fixture(&self) -> &Fixture {
        self.target.fixture()
    }

    /// With a point armed at which it is to die, if any.
    pub(crate) fn start_walpost(&mut self, armed: Option<&str>) {
        self.walpost = self.target.command(armed).start();
        self.restarts += 1;
    }

    /// Lets time pass while something is away; now and then walpost dies as well.
    pub(crate) async fn meanwhile(&mut self, time: Duration, rng: &mut Rng) {
        tokio::time::sleep(time / 2).await;
        if rng.of(0..3) == 0 {
            self.walpost.kill9().await;
            self.start_walpost(None);
            self.killed_meanwhile += 1;
        }
        tokio::time::sleep(time / 2).await;
    }

    /// The first value of a query's first row, asked again while the server recovers.
    pub(crate) async fn ask(&self, query: &str) -> Result<String, Broken> {
        let postgres = &self.fixture().postgres;
        let asked = within(LONG_TIMEOUT, async || postgres.try_query_text(query).await);
        // No row is an answer as well.
        Ok(asked.await.map_err(|seen| format!("{query}: {seen}"))?.unwrap_or_default())
    }

    /// Why something is wrong, with the last lines of walpost's log.
    pub(crate) fn said(&self, why: &str) -> Broken {
        let lines = self.walpost.stderr();
        let last = lines[lines.len().saturating_sub(15)..].join("\n");
        format!("{why}; walpost said last:\n{last}")
    }
}
