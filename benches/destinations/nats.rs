//! A stream of NATS JetStream. The bare producer publishes the same messages over one connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream;
use async_nats::jetstream::context::PublishAckFuture;
use bytes::Bytes;
use serde_json::{Value, json};
use walpost_bed::{Nats, StoredMessage};

use crate::backlog::Shape;
use crate::{Bench, ended, until};

const STREAM: &str = "outbox";

/// Messages that are sent before the first is acknowledged: as walpost has.
const IN_FLIGHT: usize = 2048;

pub(crate) async fn bench(bench: &Bench) {
    for sync in ["2m", "always"] {
        let nats = Nats::builder().sync_interval(sync).start().await;
        let command = |name: &str| bench.command("nats", name).env("WALPOST_NATS_URL", nats.url());
        ended(command("init").args(["--apply", "--no-state"])).await;
        for shape in Shape::ALL {
            let condition = format!("NATS, sync_interval {sync}, {}", shape.name());
            let round = async || {
                empty(&nats).await;
                bench.advance_slot().await;
                ended(command("adopt").arg("--apply")).await;
                bench.write_backlog(shape, 1000).await;
                let length = async || nats.last_sequence(STREAM).await.try_into().expect("few");
                let walposts = bench.drain(command("run"), until(bench.rows, length)).await;
                let messages = nats.messages(STREAM).await;
                let bare = async || {
                    empty(&nats).await;
                    publish(&nats, &messages).await
                };
                bench.against(walposts, bare).await
            };
            bench.compare(&condition, round).await;
        }
        bench.drop_slot().await;
    }
}

/// A new stream, and no state key.
async fn empty(nats: &Nats) {
    for stream in [STREAM, "KV_walpost_outbox"] {
        // There is none at first.
        nats.api(&format!("STREAM.DELETE.{stream}"), &Value::Null).await;
    }
    nats.add_stream(STREAM, &["outbox.>", "walpost.dead-letter"], &json!({})).await;
}

/// Publishes the same messages, without the headers that are instructions to NATS.
async fn publish(nats: &Nats, messages: &[StoredMessage]) -> Duration {
    let context = jetstream::new(nats.client().await);
    let begun = Instant::now();
    let mut sent = VecDeque::new();
    for message in messages {
        if sent.len() == IN_FLIGHT {
            acknowledged(sent.pop_front().expect("a message")).await;
        }
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers.iter().filter(|(name, _)| !name.starts_with("Nats-")) {
            headers.append(name.as_str(), value.as_str());
        }
        let payload = Bytes::copy_from_slice(&message.payload);
        let publishing = context.publish_with_headers(message.subject.clone(), headers, payload);
        sent.push_back(publishing.await.expect("it is sent"));
    }
    for message in sent {
        acknowledged(message).await;
    }
    begun.elapsed()
}

async fn acknowledged(message: PublishAckFuture) {
    message.await.expect("it is stored");
}
