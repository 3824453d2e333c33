//! The HTTP endpoints of a running walpost compared with what it did, and its systemd
//! notifications.

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, program, stop};
use walpost_bed::{
    Endpoints, Kafka, Major, Postgres, Stop, Walpost, WalpostBuilder, eventually, repository,
    under_load,
};

/// A running walpost that answers.
pub(crate) struct Answering {
    pub(crate) walpost: Walpost,
    pub(crate) address: String,
}

impl Answering {
    pub(crate) async fn run(fixture: &Fixture, arguments: &[&str]) -> Self {
        Self::over(fixture.command("run").args(arguments)).await
    }

    pub(crate) async fn over(run: WalpostBuilder) -> Self {
        let walpost = run.args(["--admin-listen", "127.0.0.1:0"]).start();
        let address = Endpoints::of(&walpost).await.address();
        Self { walpost, address }
    }

    /// The status code and the text of a page.
    pub(crate) async fn page(&self, path: &str) -> (u16, String) {
        Endpoints::at(&self.address).page(path).await
    }

    /// The whole answer to a request as it stands.
    pub(crate) async fn raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("it is read");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    }

    pub(crate) async fn scrape(&self) -> Scrape {
        let (status, text) = self.page("/metrics").await;
        assert_eq!(status, 200, "{text}");
        Scrape::read(&text)
    }

    /// Awaits that `/readyz` gives that status code, and gives its text.
    pub(crate) async fn await_ready(&self, status: u16) -> String {
        let mut text = String::new();
        eventually(SHORT_TIMEOUT, "/readyz says so", async || {
            let page = self.page("/readyz").await;
            text = page.1;
            page.0 == status
        })
        .await;
        text
    }
}

/// What was scraped: each series, as it is written, with its value.
pub(crate) struct Scrape {
    series: BTreeMap<String, f64>,
    types: BTreeMap<String, String>,
}

impl Scrape {
    fn read(text: &str) -> Self {
        let mut scrape = Self { series: BTreeMap::new(), types: BTreeMap::new() };
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                scrape.types.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').expect("a value");
                let before = scrape.series.insert(series.to_owned(), value.parse().expect(line));
                assert_eq!(before, None, "{series} stands there twice");
            }
        }
        scrape
    }

    /// The sum of the series of that name that have all these labels; `None` without one.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |series: &str| {
            let (of, rest) = series.split_once('{').unwrap_or((series, ""));
            let label =
                |(name, value): &(&str, &str)| rest.contains(&format!("{name}=\"{value}\""));
            of == name && labels.iter().all(label)
        };
        let found: Vec<f64> =
            self.series.iter().filter(|(series, _)| has(series)).map(|(_, value)| *value).collect();
        (!found.is_empty()).then(|| found.iter().sum())
    }

    /// The same, of a series that is there.
    #[track_caller]
    pub(crate) fn of(&self, name: &str) -> f64 {
        self.sum(name, &[]).unwrap_or_else(|| panic!("no {name} in {:#?}", self.series))
    }
}

/// Name and type of each metric in docs/metrics.md, which a unit test compares with the code.
fn documented_metrics() -> Vec<(String, String)> {
    let page = std::fs::read_to_string(repository().join("docs/metrics.md")).expect("the page");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| {
        let (name, rest) = row.split_once("` | ")?;
        Some((name.to_owned(), rest.split_once(" |")?.0.to_owned()))
    });
    let metrics: Vec<_> = cells.collect();
    assert!(metrics.len() > 40, "{metrics:?}");
    metrics
}

#[track_caller]
fn assert_close(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-9, "{value} is not {expected}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_match_the_work_done_and_idle_has_no_lag() {
    let fixture = Fixture::new().await;
    let answering = Answering::run(&fixture, &[]).await;
    answering.await_ready(200).await;
    assert_eq!(answering.page("/livez").await, (200, "ok\n".to_owned()));
    let before = answering.scrape().await;
    for (name, documented) in documented_metrics() {
        let unlimited = ["walpost_slot_wal_limit_bytes", "walpost_slot_safe_wal_bytes"];
        let kind = before.types.get(name.strip_suffix("_total").unwrap_or(&name));
        let expected = (!unlimited.contains(&&*name)).then_some(&documented);
        let after_a_look = kind.is_none()
            && (name.starts_with("walpost_slot_") || name == "walpost_standby_instances");
        assert!(kind == expected || after_a_look, "{name}: {kind:?}");
    }
    fixture.postgres.execute(&insert(100, 10)).await;
    fixture.postgres.execute(&insert(23, 10)).await;
    fixture
        .postgres
        .execute("UPDATE public.outbox SET event_type = 'x'; DELETE FROM public.outbox")
        .await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let records = fixture.records().await;
    let bytes: usize = records.iter().map(|record| record.key_text().map_or(0, str::len)).sum();
    let values: usize = records.iter().map(|record| record.value_text().map_or(0, str::len)).sum();
    let topic = fixture.topic("order");
    let labels = [("topic", topic.as_str()), ("database", "postgres"), ("slot", "walpost")];
    let after = answering.scrape().await;
    let published = |scrape: &Scrape, name| scrape.sum(name, &labels).unwrap_or_default();
    assert_close(published(&after, "walpost_events_published_total"), 123.0);
    #[allow(clippy::cast_precision_loss, reason = "a few kilobytes")]
    let bytes = (bytes + values) as f64;
    assert_close(published(&after, "walpost_published_bytes_total"), bytes);
    assert_close(after.of("walpost_events_received_total"), 123.0);
    assert!(
        after.of("walpost_transactions_total") - before.of("walpost_transactions_total") >= 2.0
    );
    assert!(after.of("walpost_received_bytes_total") > bytes);
    for histogram in ["walpost_commit_to_ack_seconds", "walpost_broker_ack_seconds"] {
        assert_close(after.of(&format!("{histogram}_count")), 123.0);
        let sum = after.of(&format!("{histogram}_sum"));
        assert!(sum > 0.0 && sum < 123.0 * SHORT_TIMEOUT.as_secs_f64(), "{histogram}: {sum}");
        let last = after.sum(&format!("{histogram}_bucket"), &[("le", "+Inf")]);
        assert_close(last.expect("a last bucket"), 123.0);
    }
    assert_close(after.of("walpost_oldest_unconfirmed_commit_timestamp_seconds"), 0.0);
    assert_close(after.of("walpost_in_flight_events"), 0.0);
    assert_close(after.of("walpost_in_flight_bytes"), 0.0);
    assert_close(after.of("walpost_in_flight_limit_bytes"), f64::from(32 << 20));
    assert!(after.sum("walpost_publish_errors_total", &[]).is_none());
    assert!(after.sum("walpost_poison_events_total", &[]).is_none());
    assert!(after.sum("walpost_reconnects_total", &[]).is_none());
    assert!(after.of("walpost_confirmed_lsn") > before.of("walpost_confirmed_lsn"));
    assert_close(
        after.sum("walpost_slot_wal_status", &[("status", "reserved")]).expect("one"),
        1.0,
    );
    assert!(after.of("process_resident_memory_bytes") > 1e6);
    eventually(SHORT_TIMEOUT, "the slot's lag is seen to fall", async || {
        answering.scrape().await.of("walpost_slot_lag_bytes") < 10_000.0
    })
    .await;
    stop(answering.walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivery_lag_rises_while_kafka_is_unavailable_and_returns_to_zero() {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(
        Postgres::builder(Major::V15).setting("max_slot_wal_keep_size", "1GB"),
        &kafka.bootstrap(),
    )
    .await;
    let answering = Answering::run(&fixture, &["--in-flight-bytes", "1KiB"]).await;
    fixture.postgres.execute(&insert(1, 1)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    answering.await_ready(200).await;
    assert!(kafka.stop(SHORT_TIMEOUT).await);
    let began = std::time::SystemTime::now();
    // The first keeps all that follows from being confirmed, also while the second is written.
    fixture.postgres.execute(&insert(1, 1)).await;
    fixture.postgres.execute(&insert(5000, 10)).await;
    let text = answering.await_ready(503).await;
    assert!(text.contains("Kafka"), "{text}");
    assert_eq!(answering.page("/livez").await.0, 200, "neither peer has a part in that");
    let names = [
        "walpost_oldest_unconfirmed_commit_timestamp_seconds",
        "walpost_slot_lag_bytes",
        "walpost_sink_connected",
        "walpost_in_flight_events",
        "walpost_backpressure_seconds_total",
    ];
    eventually(LONG_TIMEOUT, "the lag of the slot and the time are shown", async || {
        let scrape = answering.scrape().await;
        let [oldest, lag, connected, in_flight, held_back] = names.map(|name| scrape.of(name));
        let since = began.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs_f64();
        assert!(
            oldest < 1.0 || (oldest - since).abs() < SHORT_TIMEOUT.as_secs_f64(),
            "{oldest} {since}"
        );
        let all = oldest > 0.0
            && lag > 500_000.0
            && connected < 0.5
            && in_flight > 0.0
            && held_back > 0.0;
        all.then_some(()).ok_or([oldest, lag, connected, in_flight, held_back])
    })
    .await;
    let scrape = answering.scrape().await;
    assert_close(scrape.of("walpost_slot_wal_limit_bytes"), f64::from(1 << 30));
    let safe = scrape.of("walpost_slot_safe_wal_bytes");
    assert!(safe > 5e8 && safe < 1.1e9, "{safe}");
    assert_close(scrape.of("walpost_source_connected"), 1.0);
    kafka.start_again().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    eventually(LONG_TIMEOUT, "nothing is late any more", async || {
        let scrape = answering.scrape().await;
        scrape.of("walpost_oldest_unconfirmed_commit_timestamp_seconds") == 0.0
            && scrape.of("walpost_slot_lag_bytes") < 100_000.0
            && scrape.of("walpost_in_flight_events") == 0.0
            && scrape.of("walpost_sink_connected") > 0.5
    })
    .await;
    answering.await_ready(200).await;
    fixture.judge().await.assert_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_once_kafka_is_reachable_even_without_writes() {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    assert!(kafka.stop(SHORT_TIMEOUT).await);
    let answering = Answering::run(&fixture, &[]).await;
    answering.walpost.await_line("cannot deliver to Kafka", SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "/readyz has the reason", async || {
        answering.await_ready(503).await.contains("Kafka does not accept records")
    })
    .await;
    kafka.start_again().await;
    answering.await_ready(200).await;
    answering.walpost.await_line("delivering to Kafka again", SHORT_TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_http_connections_do_not_block_others() {
    let fixture = Fixture::new().await;
    let answering = Answering::run(&fixture, &[]).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(tokio::net::TcpStream::connect(&answering.address).await.expect("it listens"));
    }
    let began = Instant::now();
    assert_eq!(answering.page("/livez").await.0, 200);
    assert!(began.elapsed() < under_load(Duration::from_secs(5)), "{:?}", began.elapsed());
    // And none of them stays forever.
    let mut buffer = [0];
    for stream in &mut silent {
        let ended = tokio::io::AsyncReadExt::read(stream, &mut buffer);
        let ended = tokio::time::timeout(SHORT_TIMEOUT, ended).await.expect("it is ended");
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_postgresql_is_reported_and_liveness_stays_ok() {
    let fixture = Fixture::new().await;
    let answering = Answering::run(&fixture, &[]).await;
    answering.await_ready(200).await;
    assert!(fixture.postgres.stop(Stop::Fast, SHORT_TIMEOUT).await);
    let text = answering.await_ready(503).await;
    assert!(text.contains("not streaming from the slot: connecting"), "{text}");
    assert_eq!(answering.page("/livez").await.0, 200);
    let scrape = answering.scrape().await;
    assert_close(scrape.of("walpost_source_connected"), 0.0);
    assert!(scrape.sum("walpost_reconnects_total", &[("peer", "postgresql")]) >= Some(1.0));
    assert_close(scrape.of("walpost_oldest_unconfirmed_commit_timestamp_seconds"), 0.0);
    fixture.postgres.start_again().await;
    answering.await_ready(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_slot_statistics_are_logged_once_and_recover() {
    const CANNOT: &str = "cannot read the slot's metrics";
    const AGAIN: &str = "reading the slot's metrics again";
    let mut fixture = Fixture::new().await;
    // A role that may not do whatever it wants.
    fixture.source = fixture.postgres.url_for("walpost");
    let postgres = &fixture.postgres;
    let answering = Answering::run(&fixture, &[]).await;
    answering.await_ready(200).await;
    let observed = async || answering.scrape().await.of("walpost_slot_observed_timestamp_seconds");
    eventually(SHORT_TIMEOUT, "the statistics are read", async || observed().await > 0.0).await;
    let refused = || postgres.log_tail(1000).matches("permission denied for function").count();
    let of_the_log = "ON FUNCTION pg_catalog.pg_current_wal_lsn()";
    for round in 1..=2 {
        let (mark, before) = (answering.walpost.mark(), observed().await);
        postgres.execute(&format!("REVOKE EXECUTE {of_the_log} FROM PUBLIC")).await;
        let line = answering.walpost.await_line_after(mark, CANNOT, SHORT_TIMEOUT).await;
        assert!(line.contains("permission denied for function pg_current_wal_lsn"), "{line}");
        let old = observed().await;
        eventually(SHORT_TIMEOUT, "it is tried again", async || refused() >= 2 * round).await;
        // Delivery has no part in it.
        postgres.execute(&insert(10, 2)).await;
        fixture.confirmed(SHORT_TIMEOUT).await;
        assert_close(observed().await, old);
        postgres.execute(&format!("GRANT EXECUTE {of_the_log} TO PUBLIC")).await;
        answering.walpost.await_line_after(mark, AGAIN, SHORT_TIMEOUT).await;
        eventually(SHORT_TIMEOUT, "the statistics are updated again", async || {
            observed().await > old && old >= before
        })
        .await;
    }
    // A server that does not answer cannot be queried.
    let (mark, old) = (answering.walpost.mark(), observed().await);
    let holder = postgres.client().await;
    let lock = "BEGIN; LOCK TABLE pg_catalog.pg_stat_replication_slots IN ACCESS EXCLUSIVE MODE";
    holder.batch_execute(lock).await.expect("a superuser is allowed to");
    let line = answering.walpost.await_line_after(mark, CANNOT, SHORT_TIMEOUT).await;
    assert!(line.contains("did not answer within 5s"), "{line}");
    holder.batch_execute("COMMIT").await.expect("it was begun");
    answering.walpost.await_line_after(mark, AGAIN, SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "the statistics are updated again", async || observed().await > old)
        .await;
    let lines = answering.walpost.stderr();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!([count(CANNOT), count(AGAIN)], [3, 3], "once each time");
    assert_eq!(count("lost the connection to PostgreSQL"), 0);
    stop(answering.walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_and_broker_rejections_are_counted_by_cause() {
    let kafka = Kafka::shared().await;
    let fixture = Fixture::new().await;
    kafka.create_topic_with(&fixture.topic("order"), 1, &[("max.message.bytes", "20000")]).await;
    let dead = fixture.topic("dead");
    kafka.create_topic(&dead, 1).await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let file = directory.path().join("walpost.toml");
    let toml = format!(
        "[poison]\ntoo_large = 'dead_letter'\ninvalid_topic = 'skip'\ndead_letter_topic = '{dead}'\n"
    );
    std::fs::write(&file, toml).expect("it can be written");
    let file = file.to_str().expect("UTF-8");
    let answering = Answering::run(&fixture, &["--config", file]).await;
    let row = |kind: &str, size: u32| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
             SELECT '{kind}', 'k', 'e', to_jsonb((SELECT string_agg(md5(i::text), '') \
             FROM generate_series(1, {size}) AS i))"
        )
    };
    for (kind, size) in [("order", 1), ("an order", 1), ("order", 2000), ("order", 1)] {
        fixture.postgres.execute(&row(kind, size)).await;
    }
    fixture.confirmed(LONG_TIMEOUT).await;
    let scrape = answering.scrape().await;
    let poison = |cause, action| {
        scrape.sum("walpost_poison_events_total", &[("cause", cause), ("action", action)])
    };
    assert_eq!(poison("too_large", "dead_letter"), Some(1.0));
    let (_, status) = answering.page("/status").await;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let shown = |at: usize| [&status["poison"][at]["cause"], &status["poison"][at]["action"]];
    assert_eq!([shown(0), shown(1)], [["invalid_topic", "skip"], ["too_large", "dead_letter"]]);
    assert_eq!(poison("invalid_topic", "skip"), Some(1.0));
    let topic = fixture.topic("order");
    let errors = scrape.sum("walpost_publish_errors_total", &[("topic", &topic)]);
    assert!(errors >= Some(1.0), "{errors:?}");
    let replaced =
        scrape.sum("walpost_reconnects_total", &[("peer", "kafka"), ("reason", "refused")]);
    assert!(replaced >= Some(1.0), "{replaced:?}");
    assert_eq!(scrape.sum("walpost_events_published_total", &[("topic", &dead)]), Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_is_live_but_not_ready_until_takeover() {
    let fixture = Fixture::new().await;
    let first = Answering::run(&fixture, &[]).await;
    first.await_ready(200).await;
    let second = Answering::run(&fixture, &[]).await;
    second.walpost.await_line("in use", SHORT_TIMEOUT).await;
    let text = second.await_ready(503).await;
    assert!(text.contains("standby"), "{text}");
    assert_eq!(second.page("/livez").await.0, 200);
    stop(first.walpost).await;
    second.await_ready(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_address_in_use_fails_at_startup_with_a_fix() {
    let fixture = Fixture::new().await;
    let first = Answering::run(&fixture, &[]).await;
    let (code, said) = fixture.run_to_its_end(&["--admin-listen", &first.address]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("give this one another admin.listen, or `off`"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_paths_and_methods_are_rejected() {
    let fixture = Fixture::new().await;
    let answering = Answering::run(&fixture, &[]).await;
    assert_eq!(answering.page("/").await.0, 200);
    assert_eq!(answering.page("/metrics/").await.0, 404);
    let answer = answering.raw("POST /status HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 405"), "{answer}");
    assert!(answer.to_lowercase().contains("allow: get, head"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_is_readable_and_its_exit_code_reflects_delivery() {
    let fixture = Fixture::new().await;
    let answering = Answering::run(&fixture, &[]).await;
    answering.await_ready(200).await;
    fixture.postgres.execute(&insert(1234, 10)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    // Samples are taken each second.
    eventually(SHORT_TIMEOUT, "rates are known", async || {
        let (_, status) = answering.page("/status").await;
        status.contains("\"p99\"") && status.contains("\"per_second\"")
    })
    .await;
    let status = |arguments: &[&str]| {
        let command = fixture.command("status").args(["--admin-listen", &answering.address]);
        command.args(arguments).start()
    };
    let screen = status(&[]);
    assert_eq!(ended(&screen).await.0, Some(0));
    let text = screen.stdout().join("\n");
    let parts = ["slot walpost", "yes  streaming from 127.0.0.1", "nothing is", "1 234 records"];
    for part in parts.into_iter().chain(["p50, p99    ", "outbox      public.outbox "]) {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "no colours in a pipe: {text}");
    let screen = status(&["--color", "always"]);
    assert_eq!(ended(&screen).await.0, Some(0));
    assert!(screen.stdout().join("\n").contains("\u{1b}[32myes"), "{:?}", screen.stdout());
    let screen = status(&["--json"]);
    assert_eq!(ended(&screen).await.0, Some(0));
    let json: serde_json::Value = serde_json::from_str(&screen.stdout().join("")).expect("JSON");
    assert_eq!((&json["delivering"], &json["daemon"]["published"]), (&true.into(), &1234.into()));
    assert_eq!(json["daemon"]["topics"][0]["topic"], fixture.topic("order"), "{json}");
    for (arguments, word) in [(&[][..], "ok"), (&["--ready"], "ok")] {
        let health = fixture.command("health").args(["--admin-listen", &answering.address]);
        let health = health.args(arguments).start();
        assert_eq!(ended(&health).await.0, Some(0));
        assert_eq!(health.stdout(), [word]);
    }
    // It is watched until it is stopped.
    let watch = status(&["--watch", "1"]);
    eventually(SHORT_TIMEOUT, "it is shown again", async || {
        watch.stdout().iter().filter(|line| line.starts_with("delivering")).count() >= 2
    })
    .await;
    watch.terminate();
    assert!(watch.wait(SHORT_TIMEOUT).await.is_some());
    let address = answering.address.clone();
    stop(answering.walpost).await;
    let screen = fixture.command("status").args(["--admin-listen", &address]).start();
    assert_eq!(ended(&screen).await.0, Some(1), "nobody delivers");
    let text = screen.stdout().join("\n");
    for part in
        ["no  no walpost answers", "no client streams from it", "of WAL not confirmed", "reserved"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let health = fixture.command("health").args(["--admin-listen", &address]).start();
    assert_eq!(ended(&health).await.0, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_of_another_walpost_is_not_reported() {
    let fixture = Fixture::new().await;
    fixture.postgres.execute("CREATE PUBLICATION another FOR TABLE public.outbox").await;
    let answering = Answering::run(&fixture, &[]).await;
    answering.await_ready(200).await;
    let status = async |arguments: &[&str]| {
        let status = fixture.command("status").args(arguments).start();
        (ended(&status).await.0, status.stdout().join("\n"))
    };
    let there = answering.address.as_str();
    let theirs = "another walpost answers on";
    // Of another publication on the slot that it holds, and of another slot.
    let publication = ["--admin-listen", there, "--publication", "another"];
    let slot = ["--admin-listen", there, "--slot", "another"];
    let off = ["--admin-listen", "off"];
    // Without a configuration any walpost that answers is shown.
    let any = Walpost::builder(program()).args(["status", "--admin-listen", there]).start();
    assert_eq!(ended(&any).await.0, Some(0), "{:?}", any.stdout());
    for (arguments, parts) in [
        (&publication[..], ["not known: ", theirs, "publication \"walpost\"", "a client streams"]),
        (&slot, ["not known: ", theirs, "slot \"walpost\"", "no replication slot \"another\""]),
        // Nobody answers, and someone has the slot: what becomes of it PostgreSQL does not know.
        (&off, ["not known: ", "no walpost answers", "`off`", "a client streams"]),
    ] {
        let (code, text) = status(arguments).await;
        assert_eq!(code, Some(1), "{text}");
        for part in parts {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("records in"), "what the other one published: {text}");
        let (code, text) = status(&[arguments, &["--json"]].concat()).await;
        assert_eq!(code, Some(1), "{text}");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&json["delivering"], &json["daemon"]), (&().into(), &().into()), "{text}");
        assert!(json.as_object().is_some_and(|it| it.contains_key("delivering")), "{text}");
        assert!(json["daemon_error"].as_str().is_some_and(|it| it.contains(parts[1])), "{text}");
    }
    stop(answering.walpost).await;
    let (code, text) = status(&["--admin-listen", "off", "--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &json["delivering"]), (Some(1), &false.into()), "nobody has it: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn systemd_receives_status_and_watchdog_notifications() {
    let fixture = Fixture::new().await;
    let directory = tempfile::TempDir::new().expect("a directory");
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(SHORT_TIMEOUT)).expect("a limit");
    let await_message = |text: &str| {
        let mut all = Vec::new();
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < SHORT_TIMEOUT, "{text}: {all:?}");
            let mut buffer = [0; 4096];
            let length = socket.recv(&mut buffer).unwrap_or_else(|_| panic!("{text}: {all:?}"));
            let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if message.contains(text) {
                return message;
            }
            all.push(message);
        }
    };
    let run = fixture.command("run").env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "1000000");
    let walpost = run.start();
    await_message("READY=1");
    await_message("STATUS=delivering from 127.0.0.1");
    await_message("WATCHDOG=1");
    let pid = walpost.pid().expect("it runs").to_string();
    let hang_up = std::process::Command::new("kill").args(["-HUP", &pid]).status();
    assert!(hang_up.expect("kill is there").success());
    let reloading = await_message("RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    await_message("READY=1");
    walpost.terminate();
    await_message("STOPPING=1");
    assert!(walpost.wait(SHORT_TIMEOUT).await.expect("walpost stops").success());
}

/// Longer than a relay's loop may block.
const STUCK: Duration = Duration::from_secs(45);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_main_loop_is_reported() {
    let fixture = Fixture::new().await;
    let points = format!("received=1*off->1*sleep({})", STUCK.as_millis());
    let run = fixture.command("run").args(["--admin-listen", "127.0.0.1:0"]);
    let walpost = run.env("FAILPOINTS", points).start();
    let address = Endpoints::of(&walpost).await.address();
    let answering = Answering { walpost, address };
    fixture.postgres.execute(&insert(3, 1)).await;
    eventually(STUCK, "/livez reports it", async || {
        let (status, text) = answering.page("/livez").await;
        status == 503 && text.contains("has not run for 3")
    })
    .await;
    eventually(LONG_TIMEOUT, "the loop runs again", async || {
        answering.page("/livez").await.0 == 200
    })
    .await;
    fixture.assert_exact(SHORT_TIMEOUT).await;
}
