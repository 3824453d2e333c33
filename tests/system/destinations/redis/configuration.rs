//! Settings of the wrong destination, commands that need Kafka, and what `check` finds.

use serde_json::Value;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, ended, program, stop};
use walpost_bed::{Endpoints, Redis, Walpost, eventually};

use super::fixture::{RedisFixture, STREAM};
use crate::promise::Promise;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_another_destination_are_errors() {
    let fixture = RedisFixture::bare(Redis::start().await).await;
    for (toml, part) in [
        ("[kafka]\nbootstrap_servers = 'k:9092'\n", "`kafka.bootstrap_servers`"),
        ("[kafka.properties]\n'linger.ms' = 5\n", "`kafka.properties`"),
        ("[delivery]\nmode = 'exactly-once'\n", "`delivery.mode`"),
        ("[delivery]\nstate_topic = 'x'\n", "`delivery.state_topic`"),
        ("[poison]\nmissing_topic = 'skip'\n", "`poison.missing_topic`"),
        ("[redis]\nca_file = '/ca.pem'\n", "rediss://"),
        ("[record]\nplace = ['n:partition']\n", "only topics of Kafka"),
        ("[poison]\ndead_letter_topic = 'orders'\n", "`redis.stream`"),
        ("[poison]\ntoo_large = 'dead_letter'\n", "`poison.too_large`"),
        (
            "[record]\ntopic = 'all'\n[poison]\ndead_letter_topic = 'all'\n",
            "`poison.dead_letter_topic`",
        ),
    ] {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), toml).expect("it can be written");
        let path = file.path().to_str().expect("UTF-8");
        let (code, said) = fixture.ended("run", &["--config", path]).await;
        assert_eq!(code, Some(78), "{toml}: {said}");
        assert!(said.contains(part), "{toml}: {said}");
    }
    let kafka = Walpost::builder(program()).args(["run", "--source", &fixture.inner.source]);
    let (code, said) = ended(&kafka.env("WALPOST_REDIS_STREAM", STREAM).start()).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("redis.stream") && said.contains("sink.kind = \"kafka\""), "{said}");
    for (name, arguments) in [
        ("prune", &["--older-than", "7d"][..]),
        ("recover", &[]),
        ("replay-dead-letters", &[]),
        ("init", &["--apply", "--existing-rows"]),
    ] {
        let (code, said) = fixture.ended(name, arguments).await;
        assert_eq!(code, Some(78), "{name}: {said}");
        assert!(said.contains("does not support sink.kind"), "{name}: {said}");
    }
}

async fn codes(fixture: &RedisFixture, arguments: &[&str]) -> Vec<(String, String)> {
    let check = fixture.command("check").args(["--json"]).args(arguments).start();
    check.wait(LONG_TIMEOUT).await.expect("check ends");
    let report: Value = serde_json::from_str(&check.stdout().join("\n")).expect("JSON");
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().expect("findings").iter();
    let of_redis = findings.filter(|finding| finding["subject"] == "Redis");
    of_redis.map(|finding| (text(finding, "level"), text(finding, "code"))).collect()
}

#[track_caller]
fn has(found: &[(String, String)], level: &str, code: &str) {
    assert!(found.contains(&(level.to_owned(), code.to_owned())), "{level} {code}: {found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_what_would_lose_entries() {
    let mut fixture = RedisFixture::bare(Redis::start().await).await;
    has(&codes(&fixture, &["--offline"]).await, "skipped", "redis");
    has(&codes(&fixture, &[]).await, "error", "redis_state_missing");
    fixture.adopt().await;
    let found = codes(&fixture, &[]).await;
    for code in ["redis_server", "redis_durability", "redis_stream"] {
        has(&found, "ok", code);
    }
    for (setting, level, code) in [
        ("maxmemory-policy allkeys-lru", "error", "redis_eviction"),
        ("no-appendfsync-on-rewrite yes", "warning", "redis_rewrite"),
        ("appendfsync everysec", "warning", "redis_appendfsync"),
        ("appendonly no", "warning", "redis_appendonly"),
    ] {
        let _: () = fixture.redis.command(&format!("CONFIG SET {setting}")).await;
        has(&codes(&fixture, &[]).await, level, code);
    }
    let replica =
        Redis::builder().setting("replicaof", &format!("127.0.0.1 {}", fixture.redis.port()));
    let replica = replica.start().await;
    eventually(SHORT_TIMEOUT, "the replica is found", async || {
        codes(&fixture, &[]).await.contains(&("warning".to_owned(), "redis_failover".to_owned()))
    })
    .await;
    let primary = std::mem::replace(&mut fixture.url, replica.url());
    has(&codes(&fixture, &[]).await, "error", "redis_replica");
    fixture.url = primary.replace("redis://", "redis://:wr0ng@");
    has(&codes(&fixture, &[]).await, "error", "redis_credentials");
    fixture.url = "redis://127.0.0.1:1".to_owned();
    has(&codes(&fixture, &[]).await, "error", "redis_unreachable");
}

/// What `run` finds before it publishes, `check` finds too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_each_state_in_which_run_does_not_start() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.assert_exact().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    has(&codes(&fixture, &[]).await, "ok", "redis_stream");
    let refused = async |code: &str, exit: i32| {
        has(&codes(&fixture, &[]).await, "error", code);
        let (ended, said) = fixture.ended("run", &[]).await;
        assert_eq!(ended, Some(exit), "{said}");
    };
    let _: String = fixture.redis.command(&format!("XADD {STREAM} * topic foreign")).await;
    refused("redis_state", 3).await;
    let _: u32 = fixture.redis.command(&format!("DEL {STREAM}")).await;
    refused("redis_state", 3).await;
    let make = format!("XGROUP CREATE {STREAM} readers $ MKSTREAM");
    let _: String = fixture.redis.command(&make).await;
    refused("redis_state", 3).await;
    fixture.adopt().await;
    has(&codes(&fixture, &[]).await, "ok", "redis_stream");
    let advance = "SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
    fixture.inner.postgres.execute("SELECT pg_logical_emit_message(true, 'other', 'x')").await;
    fixture.inner.postgres.execute(advance).await;
    refused("redis_position", 3).await;
    fixture.adopt().await;
    let key = "walpost:{orders}";
    let owner: String = fixture.redis.command(&format!("HGET {key} owner")).await;
    let _: u32 = fixture.redis.command(&format!("HSET {key} owner other")).await;
    refused("redis_state", 78).await;
    let _: u32 = fixture.redis.command(&format!("HSET {key} owner {owner}")).await;
    let _: () = fixture.redis.command("CONFIG SET maxmemory 1").await;
    has(&codes(&fixture, &[]).await, "error", "redis_writes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_of_a_cluster_is_refused() {
    let redis = Redis::builder().setting("cluster-enabled", "yes").start().await;
    // It has all slots, so that it accepts the stream for now.
    let _: String = redis.command("CLUSTER ADDSLOTSRANGE 0 16383").await;
    eventually(SHORT_TIMEOUT, "the cluster works", async || {
        redis.try_command::<String>("SET x y").await.is_ok()
    })
    .await;
    let fixture = RedisFixture::bare(redis).await;
    has(&codes(&fixture, &[]).await, "error", "redis_cluster");
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("Redis Cluster is not supported"), "{said}");
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains("Redis Cluster is not supported"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_needs_no_further_rights_and_says_what_it_skips() {
    let user = format!("walpost {}", super::security::RULES);
    let redis = Redis::builder().setting("user", &user).start().await;
    let mut fixture = RedisFixture::bare(redis).await;
    fixture.url = fixture.url.replace("redis://", "redis://walpost:s3cret@");
    fixture.adopt().await;
    let found = codes(&fixture, &[]).await;
    for (level, code) in [
        ("ok", "redis_server"),
        ("ok", "redis_stream"),
        ("skipped", "redis_settings"),
        ("skipped", "redis_replicas"),
        ("skipped", "redis_stream_type"),
    ] {
        has(&found, level, code);
    }
    assert!(found.iter().all(|(level, _)| level != "error"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_name_redis() {
    let fixture = RedisFixture::new().await;
    let walpost = fixture.command("run").args(["--admin-listen", "127.0.0.1:0"]).start();
    let line = walpost.await_line("walpost starts", SHORT_TIMEOUT).await;
    let line: Value = serde_json::from_str(&line).expect("a JSON line");
    assert_eq!(line["stream"], STREAM);
    let endpoints = Endpoints::of(&walpost).await;
    eventually(SHORT_TIMEOUT, "it is ready", async || endpoints.are_ready().await).await;
    fixture.insert(10, 3).await;
    fixture.assert_exact().await;
    let status = endpoints.status().await;
    assert_eq!((&status["sink"], &status["sink_connected"]), (&"Redis".into(), &true.into()));
    let metrics = endpoints.metrics().await;
    let published = r#"walpost_events_published_total{database="postgres",slot="walpost",topic="outbox.event.order"} 10"#;
    assert!(metrics.contains(published), "{metrics}");
    fixture.redis.kill9().await;
    eventually(SHORT_TIMEOUT, "it is not ready", async || {
        let (ready, text) = endpoints.readiness().await;
        !ready && text.contains("Redis")
    })
    .await;
    let metrics = endpoints.metrics().await;
    assert!(
        metrics.contains(r#"walpost_sink_connected{database="postgres",slot="walpost"} 0"#),
        "{metrics}"
    );
    fixture.redis.start_again().await;
    eventually(LONG_TIMEOUT, "it is ready again", async || endpoints.are_ready().await).await;
    stop(walpost).await;
}
