//! A stream of Redis. The bare producer adds the same entries over one connection, by `XADD` in
//! pipelines.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tokio::task::JoinHandle;
use walpost_bed::{Entry, Redis};

use crate::backlog::Shape;
use crate::{Bench, ended, until};

const STREAM: &str = "outbox";

/// Entries of a pipeline, and pipelines that are sent before the first is answered: as walpost has.
const PIPELINE: usize = 256;
const IN_FLIGHT: usize = 32;

pub(crate) async fn bench(bench: &Bench) {
    for fsync in ["everysec", "always"] {
        let redis = Redis::builder().setting("appendfsync", fsync).start().await;
        let command =
            |name: &str| bench.command("redis", name).env("WALPOST_REDIS_URL", redis.url());
        ended(command("init").args(["--apply", "--no-state"])).await;
        for shape in Shape::ALL {
            let condition = format!("Redis, appendfsync {fsync}, {}", shape.name());
            let round = async || {
                let _: u32 = redis.command(&format!("DEL {STREAM} walpost:{{{STREAM}}}")).await;
                bench.advance_slot().await;
                ended(command("adopt").arg("--apply")).await;
                bench.write_backlog(shape, 1000).await;
                let length = async || redis.command::<usize>(&format!("XLEN {STREAM}")).await;
                let walposts = bench.drain(command("run"), until(bench.rows, length)).await;
                let entries = redis.entries(STREAM).await;
                let bare = async || {
                    let _: u32 = redis.command(&format!("DEL {STREAM}")).await;
                    add(&redis, &entries).await
                };
                bench.against(walposts, bare).await
            };
            bench.compare(&condition, round).await;
        }
        bench.drop_slot().await;
    }
}

/// Adds the same entries.
async fn add(redis: &Redis, entries: &[Entry]) -> Duration {
    let client = redis::Client::open(redis.url()).expect("a URL");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    let connection = connection.expect("a connection");
    let begun = Instant::now();
    let mut sent = VecDeque::new();
    for chunk in entries.chunks(PIPELINE) {
        if sent.len() == IN_FLIGHT {
            answered(sent.pop_front().expect("a pipeline")).await;
        }
        let mut pipeline = redis::pipe();
        for entry in chunk {
            let command = pipeline.cmd("XADD").arg(STREAM).arg("*");
            for (name, value) in &entry.fields {
                command.arg(name).arg(value);
            }
            command.ignore();
        }
        sent.push_back(tokio::spawn(send(connection.clone(), pipeline)));
        // It is sent before the next one is made: pipelines of several tasks may overtake each other.
        tokio::task::yield_now().await;
    }
    for pipeline in sent {
        answered(pipeline).await;
    }
    begun.elapsed()
}

async fn send(mut connection: MultiplexedConnection, pipeline: redis::Pipeline) {
    let added = pipeline.query_async::<()>(&mut connection).await;
    assert!(added.is_ok(), "entries were not added");
}

async fn answered(pipeline: JoinHandle<()>) {
    pipeline.await.expect("it is answered");
}
