//! A real Prometheus that scrapes a real walpost between a real PostgreSQL and a real Kafka: the
//! alerts fire and clear, and each query of the dashboard returns data.
//!
//! Run by `make monitoring`, since it takes minutes and needs Debian's `prometheus` and Python.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod outage;
mod queries;
mod rules;

use std::net::TcpListener;

use walpost_bed::fixture::Fixture;
use walpost_bed::{Prometheus, Walpost};

/// A port for walpost's endpoints that stays the same after a restart.
fn endpoint() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").to_string()
}

/// `walpost run` with its endpoints on that port.
async fn run_at(fixture: &Fixture, endpoint: &str, arguments: &[&str]) -> Walpost {
    let listen = ["--admin-listen", endpoint];
    fixture.run_with(&[&listen, arguments].concat()).await
}

/// Prometheus with these rules, scraping walpost.
async fn prometheus(rules: &str, endpoint: &str) -> Prometheus {
    let prometheus = Prometheus::start(rules).await;
    prometheus.scrape("walpost", endpoint);
    prometheus
}
