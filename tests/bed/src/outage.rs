//! A destination that is away for long, under load: walpost keeps its session with PostgreSQL and its
//! memory, reports that it does not deliver and how far it is behind, and then delivers everything.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::endpoints::{Endpoints, sum};
use crate::eventually::eventually;
use crate::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use crate::sink_fixture::SinkFixture;
use crate::writer::{Writer, lsn};

/// Ten minutes, unless the variable `WALPOST_OUTAGE_SECONDS` says otherwise.
const AWAY: Duration = Duration::from_secs(600);

/// How long PostgreSQL waits for a client that does not answer.
const SESSION_LIMIT: &str = "10s";

/// What memory may grow by once the outage was noticed, in bytes: more than the in-flight limit.
const GROWTH: u64 = 16 * 1024 * 1024;

/// How old the lag metric may be: walpost asks PostgreSQL every 5 s.
const METRIC_AGE: Duration = Duration::from_secs(10);

/// What was seen of an outage.
#[derive(Debug)]
pub struct Outage {
    /// The rows that the writer has rolled back.
    pub rolled_back: Vec<String>,
    /// Resident memory once the outage was noticed, and the most until it ended.
    pub rss_bytes: [u64; 2],
    /// The lag when it ended, as the metric had it.
    pub lag_bytes: u64,
    /// From its end until everything was confirmed, with the load still on for a part of it.
    pub caught_up: Duration,
}

/// Runs walpost under a load of so many transactions a second, of three rows on average, while the
/// destination is away: `begin` takes it away, and `end` brings it back. Afterwards everything that was
/// committed is confirmed, and walpost has stopped.
pub async fn long_outage(
    fixture: &SinkFixture,
    load: u32,
    begin: impl AsyncFnOnce(),
    end: impl AsyncFnOnce(),
) -> Outage {
    let seconds = std::env::var("WALPOST_OUTAGE_SECONDS").ok();
    let away = seconds.map_or(AWAY, |text| Duration::from_secs(text.parse().expect("seconds")));
    let postgres = &fixture.inner.postgres;
    let limit = format!("ALTER SYSTEM SET wal_sender_timeout = '{SESSION_LIMIT}'");
    postgres.execute(&limit).await;
    postgres.execute("SELECT pg_reload_conf()").await;
    let walpost = fixture
        .command("run")
        .args(["--in-flight-bytes", "1MiB", "--admin-listen", "127.0.0.1:0"])
        .start();
    let endpoints = Endpoints::of(&walpost).await;
    let writer = Writer::start(postgres, load);
    writer.commits(100).await;
    eventually(SHORT_TIMEOUT, "walpost is ready", async || endpoints.are_ready().await).await;

    begin().await;
    let unconfirmed = postgres.commit(&insert(1, 1)).await;
    let first = settled(fixture, &endpoints).await;
    let (mut rss, mut lag) = ([walpost.rss_bytes().expect("it runs"); 2], 0);
    let mut lags = VecDeque::new();
    let since = Instant::now();
    while since.elapsed() < away {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (ready, reasons) = endpoints.readiness().await;
        assert!(!ready, "{reasons}");
        let now = Now::read(fixture, &endpoints).await;
        assert_eq!((&now.walsender, now.reconnects), (&first.walsender, first.reconnects));
        assert!((now.source_connected, now.sink_connected) == (1, 0), "{now:?}");
        assert_eq!(now.oldest, first.oldest, "it is still the same event");
        fixture.inner.assert_unconfirmed(&unconfirmed).await;
        // As PostgreSQL has it now, or had it when walpost asked.
        lags.push_back((Instant::now(), now.lag_bytes));
        while lags.get(1).is_some_and(|(at, _)| at.elapsed() > METRIC_AGE) {
            lags.pop_front();
        }
        lag = now.lag_metric;
        if since.elapsed() > METRIC_AGE {
            let (least, most) = (lags[0].1, now.lag_bytes);
            assert!((least..=most).contains(&lag), "{lag}, PostgreSQL: {least} to {most}");
        }
        let resident = walpost.rss_bytes().expect("it runs");
        rss[1] = rss[1].max(resident);
        assert!(resident < rss[0] + GROWTH, "memory grows: {rss:?}");
    }
    end().await;
    let ended = Instant::now();
    writer.commits(u64::from(load)).await;
    let rolled_back = writer.stop().await;
    fixture.confirmed(away.max(LONG_TIMEOUT)).await;
    let caught_up = ended.elapsed();
    eventually(SHORT_TIMEOUT, "walpost is ready again", async || endpoints.are_ready().await).await;
    eventually(SHORT_TIMEOUT, "nothing is late", async || {
        endpoints.metric("walpost_oldest_unconfirmed_commit_timestamp_seconds", "").await == 0
    })
    .await;
    stop(walpost).await;
    let outage = Outage { rolled_back, rss_bytes: rss, lag_bytes: lag, caught_up };
    println!(
        "away for {away:?}: memory {} KiB, at most {} KiB; lag {} KiB; {:.1} s until all was \
         confirmed; walsender {:?} throughout; oldest event of {}",
        rss[0] / 1024,
        rss[1] / 1024,
        lag / 1024,
        outage.caught_up.as_secs_f64(),
        first.walsender,
        first.oldest
    );
    outage
}

/// Awaits that walpost has noticed the outage, and has a session that it keeps: what was in flight is
/// read again over another one.
async fn settled(fixture: &SinkFixture, endpoints: &Endpoints) -> Now {
    let mut before = Now::read(fixture, endpoints).await;
    eventually(LONG_TIMEOUT, "the outage is noticed, and the session stays", async || {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (now, ready) = (Now::read(fixture, endpoints).await, endpoints.are_ready().await);
        let same = now.walsender == before.walsender && now.reconnects == before.reconnects;
        let is_settled = !ready && same && now.walsender.is_some() && now.oldest == before.oldest;
        before = now;
        is_settled.then_some(()).ok_or_else(|| format!("{before:?}"))
    })
    .await;
    before
}

/// What walpost and PostgreSQL say of the session at a moment.
#[derive(Debug)]
struct Now {
    walsender: Option<String>,
    reconnects: u64,
    source_connected: u64,
    sink_connected: u64,
    /// When the oldest event that is not delivered was committed, in seconds since 1970.
    oldest: u64,
    /// What PostgreSQL retains: the metric, and PostgreSQL itself after that was read.
    lag_metric: u64,
    lag_bytes: u64,
}

impl Now {
    async fn read(fixture: &SinkFixture, endpoints: &Endpoints) -> Self {
        let metrics = endpoints.metrics().await;
        let of = |name: &str| sum(&metrics, name, "");
        let lag = "SELECT pg_current_wal_lsn() || ' ' || confirmed_flush_lsn \
                     FROM pg_replication_slots WHERE slot_name = 'walpost'";
        let lag = fixture.inner.postgres.query_text(lag).await.expect("the slot");
        let (end, confirmed) = lag.split_once(' ').expect("two positions");
        Self {
            walsender: fixture.inner.walsender().await,
            reconnects: sum(&metrics, "walpost_reconnects_total", "peer=\"postgresql\""),
            source_connected: of("walpost_source_connected"),
            sink_connected: of("walpost_sink_connected"),
            oldest: of("walpost_oldest_unconfirmed_commit_timestamp_seconds"),
            lag_metric: of("walpost_slot_lag_bytes"),
            lag_bytes: lsn(end) - lsn(confirmed),
        }
    }
}
