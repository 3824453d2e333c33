//! The page at `/` in a real Chromium: what an operator sees while things happen.
//!
//! Run by `make browser`, since it needs Debian's `chromium`. Screenshots are left in `target/page`; with
//! `WALPOST_DOCS=write` one of them becomes the picture of README.

mod chromium;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, insert};
use walpost_bed::{Endpoints, Kafka, Major, Postgres, Walpost, eventually, repository};

use self::chromium::Chromium;

/// In what time the page shows what `/status` has.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

/// A running walpost and where its page is.
struct Shown {
    walpost: Walpost,
    endpoints: Endpoints,
}

impl Shown {
    async fn run(fixture: &Fixture, arguments: &[&str]) -> Self {
        let run = fixture.command("run").args(["--admin-listen", "127.0.0.1:0"]).args(arguments);
        let walpost = run.env("FAILPOINTS", "frequent_checks=return").start();
        let endpoints = Endpoints::of(&walpost).await;
        Self { walpost, endpoints }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.endpoints.address())
    }

    /// Awaits that `/status` has it; then the page shows it in time, in the element `selector`.
    async fn shows(
        &self,
        page: &mut Chromium,
        has: impl Fn(&serde_json::Value) -> bool,
        (selector, text): (&str, &str),
    ) {
        eventually(SHORT_TIMEOUT, text, async || has(&self.endpoints.status().await)).await;
        let since = Instant::now();
        let mut shown = page.text(selector).await;
        while !shown.contains(text) {
            assert!(since.elapsed() < SHOWN_WITHIN, "{text:?} is not in {shown:?}");
            shown = page.text(selector).await;
        }
        println!("{text:?} was shown {:?} after /status had it", since.elapsed());
    }
}

/// Where screenshots are left.
fn pictures() -> PathBuf {
    let directory = repository().join("target/page");
    std::fs::create_dir_all(&directory).expect("it is created");
    directory
}

fn is_ready(status: &serde_json::Value) -> bool {
    status["ready"] == true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "Chromium: make browser"]
async fn page_shows_what_happens_within_two_seconds() {
    const EVIL: &str = "<img src=x onerror=\"hacked=1\"><script>hacked=1</script>";
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let toml = "outbox.columns.id = 'event_type'\npoison.invalid_topic = 'skip'\n";
    std::fs::write(&file, toml).expect("it is written");
    let rows_choose = ["--config", file.to_str().expect("UTF-8")];
    let first = Shown::run(&fixture, &rows_choose).await;
    let mut page = Chromium::start().await;
    page.open(&first.url()).await;
    first.shows(&mut page, is_ready, ("h1", "Delivering")).await;

    let evil = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES \
         ('order', '{EVIL}', '{EVIL}', '{{}}'), ('{EVIL}', 'k', 'placed', '{{}}')"
    );
    fixture.postgres.execute(&evil).await;
    let is_poisoned = |status: &serde_json::Value| status["poison"][0]["count"] == 1;
    first.shows(&mut page, is_poisoned, ("main", "invalid_topic, skip: 1")).await;
    first.shows(&mut page, |status| status["events"][0]["id"] == EVIL, (".wide", EVIL)).await;
    assert_eq!(page.value("document.querySelectorAll('main img, main script').length").await, 0);
    assert_eq!(page.value("typeof hacked").await, "undefined");
    first.shows(&mut page, |status| !status["checked_at"].is_null(), ("main", "Checks")).await;

    kafka.kill9().await;
    let waits = "Waiting for the destination";
    first.shows(&mut page, |status| !is_ready(status), ("h1", waits)).await;
    kafka.start_again().await;
    first.shows(&mut page, is_ready, ("h1", "Delivering")).await;

    let second = Shown::run(&fixture, &rows_choose).await;
    let is_standby = |status: &serde_json::Value| status["phase"] == "standby";
    page.open(&second.url()).await;
    second.shows(&mut page, is_standby, ("h1", "Standing by")).await;
    first.walpost.kill9().await;
    second.shows(&mut page, is_ready, ("h1", "Delivering")).await;
    let is_elsewhere =
        |url: &&String| ![first.url(), second.url()].iter().any(|own| url.starts_with(own));
    let elsewhere = page.requests.iter().find(is_elsewhere);
    assert_eq!((elsewhere, page.requests.is_empty()), (None, false));
    assert_eq!(page.errors, Vec::<String>::new());
}

/// How it looks under load: nothing jumps, nothing is wider than the window, and it does not grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "Chromium: make browser"]
async fn page_keeps_its_shape_under_load() {
    /// The sum of the layout shifts that no input has caused (<https://web.dev/articles/cls>).
    const SHIFTS: &str = "new Promise(done => new PerformanceObserver(list => done(list.getEntries()
        .reduce((sum, shift) => sum + shift.value, 0))).observe({type: 'layout-shift', buffered: true}))";
    let fixture = Fixture::new().await;
    let shown = Shown::run(&fixture, &[]).await;
    let mut page = Chromium::start().await;
    page.look(1280, "light").await;
    page.open(&shown.url()).await;
    shown.shows(&mut page, is_ready, ("h1", "Delivering")).await;
    let rows = "document.querySelectorAll('tr').length";
    let mut sizes = Vec::new();
    for _ in 0..8 {
        fixture.postgres.execute(&insert(20_000, 100)).await;
        fixture.confirmed(SHORT_TIMEOUT).await;
        sizes.push(page.value(rows).await.as_u64().expect("a number"));
    }
    let (half, end) = (sizes[3], sizes[7]);
    assert!(end <= half + 2, "{sizes:?} rows");
    let status = shown.endpoints.status().await;
    assert_eq!(status["events"].as_array().map(Vec::len), Some(50));
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")] {
        page.look(width, scheme).await;
        let wide = page.value("document.documentElement.scrollWidth").await;
        assert!(wide.as_u64().expect("a number") <= width.into(), "{wide} at {width}");
        page.photograph(&pictures().join(format!("{width}-{scheme}.png"))).await;
    }
    page.open(&shown.url()).await;
    shown.shows(&mut page, is_ready, ("h1", "Delivering")).await;
    fixture.postgres.execute(&insert(1_000, 100)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let none = "new Promise(done => setTimeout(done, 3000, 0))";
    let shifts = page.value(&format!("Promise.race([{SHIFTS}, {none}])")).await;
    let shifts = shifts.as_f64().expect("a number");
    println!("layout shifts: {shifts}");
    assert!(shifts < 0.1, "{shifts}");
    assert_eq!(page.errors, Vec::<String>::new());
}

/// The picture of README: a quarter of an hour with an outage in it would take too long, so it is a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "Chromium: make browser"]
async fn picture_is_taken() {
    // That of other tests starts sooner, and answers later.
    let kafka = Kafka::builder().as_shipped().start().await;
    let postgres = Postgres::builder(Major::V15).own_identity();
    let fixture = Fixture::with_brokers(postgres, &kafka.bootstrap()).await;
    let topic = fixture.topic("state");
    kafka.create_topic_with(&topic, 1, &[("cleanup.policy", "compact")]).await;
    fixture.adopt(&topic).await;
    let shown = Shown::run(&fixture, &["--state-topic", &topic]).await;
    let mut page = Chromium::start().await;
    page.look(1000, "light").await;
    page.open(&shown.url()).await;
    let begun = Instant::now();
    let mut random = fastrand::Rng::with_seed(7);
    let writer = fixture.postgres.client().await;
    while begun.elapsed() < Duration::from_secs(60) {
        writer.batch_execute(&insert(random.u32(1..4), 10)).await.expect("inserted");
        tokio::time::sleep(Duration::from_millis(random.u64(1..4))).await;
    }
    let picture = match std::env::var("WALPOST_DOCS") {
        Ok(what) if what == "write" => repository().join("docs/page.png"),
        _ => pictures().join("readme.png"),
    };
    page.photograph(&picture).await;
    let status = shown.endpoints.status().await;
    assert!(is_ready(&status), "{status}");
}
