//! A Kafka outage of minutes: the lag rises and returns to zero, alerts fire and clear.

use std::time::{Duration, Instant};

use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT};
use walpost_bed::writer::Writer;
use walpost_bed::{Kafka, Major, Postgres, Prometheus, Stop, eventually};

use crate::{endpoint, prometheus, rules, run_at};

/// How long Kafka is away: `WALPOST_AWAY`, in seconds (`120s`).
fn away() -> Duration {
    let text = std::env::var("WALPOST_AWAY").unwrap_or_else(|_| "30s".to_owned());
    let seconds = text.trim_end_matches('s').parse();
    Duration::from_secs(seconds.unwrap_or_else(|_| panic!("WALPOST_AWAY={text} is no time")))
}

#[ignore = "minutes, and Prometheus: make monitoring"]
#[tokio::test(flavor = "multi_thread")]
async fn lag_and_alerts_rise_during_a_kafka_outage_and_clear_afterwards() {
    let (kafka, endpoint) = (Kafka::start().await, endpoint());
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    kafka.create_topic(&fixture.topic("order"), 3).await;
    let walpost = run_at(&fixture, &endpoint, &[]).await;
    let prometheus = prometheus(&rules::quick(), &endpoint).await;
    let writer = Writer::start(&fixture.postgres, 50);
    writer.commits(200).await;
    eventually(SHORT_TIMEOUT, "events arrive, and Prometheus sees it", async || {
        prometheus.value("sum(rate(walpost_events_published_total[10s]))").await > Some(10.0)
    })
    .await;
    is_well(&prometheus).await;

    let (away, begin) = (away(), Instant::now());
    let at = |what: &str| println!("{:>4} s  {what}", begin.elapsed().as_secs());
    kafka.kill9().await;
    at("Kafka is killed");
    let mut fired = Vec::new();
    let needed = away.as_secs_f64();
    eventually(away + LONG_TIMEOUT, "the lag is as long as the outage", async || {
        for alert in prometheus.firing().await {
            if !fired.contains(&alert) {
                at(&format!("{alert} fires"));
                fired.push(alert);
            }
        }
        prometheus.value("walpost:lag_seconds").await >= Some(needed)
    })
    .await;
    let bytes = prometheus.value("walpost_slot_lag_bytes").await.expect("the slot's lag is known");
    at(&format!("lag is {needed} s and {bytes} bytes; Kafka is started"));
    fired.sort();
    assert_eq!(fired, ["WalpostDeliveryLagHigh", "WalpostStalled"]);
    assert_eq!(prometheus.value("walpost_sink_connected").await, Some(0.0));
    assert_eq!(prometheus.value("walpost_source_connected").await, Some(1.0));
    assert!(bytes > 0.0, "the log of the outage is not delivered");

    kafka.start_again().await;
    at("Kafka is back");
    eventually(LONG_TIMEOUT, "nothing is late", async || {
        prometheus.value("walpost:lag_seconds").await < Some(2.0)
    })
    .await;
    at("nothing is late");
    is_well(&prometheus).await;
    at("no alert fires");
    let verdict = fixture.judge_after(writer).await;
    verdict.assert_ok();
    eventually(SHORT_TIMEOUT, "idle is no lag", async || {
        let lag = prometheus.value("walpost:lag_seconds").await;
        lag == Some(0.0) && prometheus.value("walpost_in_flight_events").await == Some(0.0)
    })
    .await;
    at("everything is confirmed; the lag is 0");
    let peak = prometheus.value("max_over_time(walpost:lag_seconds[30m])").await;
    println!("highest lag seen: {:.1} s", peak.expect("it was recorded"));
    drop(walpost);
}

#[ignore = "Prometheus: make monitoring"]
#[tokio::test(flavor = "multi_thread")]
async fn alerts_report_a_killed_relay_and_an_unread_slot() {
    let (fixture, endpoint) = (Fixture::new().await, endpoint());
    let walpost = run_at(&fixture, &endpoint, &[]).await;
    let prometheus = prometheus(&rules::quick(), &endpoint).await;
    is_well(&prometheus).await;
    walpost.kill9().await;
    eventually(SHORT_TIMEOUT, "the alert fires", async || {
        prometheus.firing().await == ["WalpostDown"]
    })
    .await;

    let walpost = run_at(&fixture, &endpoint, &[]).await;
    is_well(&prometheus).await;
    fixture.postgres.stop(Stop::Fast, SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "the other alert fires", async || {
        prometheus.firing().await == ["WalpostSlotInactive"]
    })
    .await;

    fixture.postgres.start_again().await;
    is_well(&prometheus).await;
    drop(walpost);
}

/// walpost is scraped, and no alert fires.
async fn is_well(prometheus: &Prometheus) {
    eventually(SHORT_TIMEOUT, "walpost answers", async || {
        prometheus.value("up{job=\"walpost\"}").await == Some(1.0)
    })
    .await;
    eventually(SHORT_TIMEOUT, "no alert fires", async || {
        let firing = prometheus.firing().await;
        if firing.is_empty() { Ok(()) } else { Err(firing) }
    })
    .await;
}
