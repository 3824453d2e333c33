//! Slots that are missing, of another kind, or on another server: walpost never continues silently.

use walpost_bed::{Major, Postgres, Proxy, eventually};

use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, ended, insert, proxied};

const DROP: &str = "SELECT pg_drop_replication_slot('walpost')";

/// A fixture whose slot was dropped.
async fn without_slot() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(DROP).await;
    fixture
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_slot_is_an_error_with_the_create_command() {
    let fixture = without_slot().await;
    let (code, text) = fixture.run_to_its_end(&[]).await;
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("walpost init --apply"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_of_another_plugin_is_an_error() {
    let fixture = without_slot().await;
    let create = "SELECT pg_create_logical_replication_slot('walpost', 'test_decoding')";
    fixture.postgres.execute(create).await;
    let (code, text) = fixture.run_to_its_end(&[]).await;
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("test_decoding"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn physical_slot_is_an_error() {
    let fixture = without_slot().await;
    fixture.postgres.execute("SELECT pg_create_physical_replication_slot('walpost', true)").await;
    let (code, text) = fixture.run_to_its_end(&[]).await;
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("physical"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_server_at_the_same_address_is_rejected() {
    // Once with a slot that is behind the first server's, once with one ahead of it.
    for ahead in [false, true] {
        let mut fixture = Fixture::new().await;
        let other = Postgres::builder(Major::V15).own_identity().start().await;
        let other = Fixture::bare(other, &fixture.bootstrap);
        if ahead {
            let switch = "CREATE TABLE burn AS SELECT; SELECT pg_switch_wal()";
            for _ in 0..5 {
                other.postgres.execute(&format!("{switch}; DROP TABLE burn")).await;
            }
        }
        other.init(&[]).await;
        let proxy = Proxy::to(fixture.postgres.port()).await;
        fixture.source = proxied(&proxy);
        let walpost = fixture.run().await;
        fixture.postgres.execute(&insert(10, 3)).await;
        other.postgres.execute(&insert(10, 3)).await;
        fixture.confirmed(SHORT_TIMEOUT).await;
        cut_off(&fixture, &proxy).await;
        let before = other.confirmed_flush().await;
        proxy.point_at(other.postgres.port());
        proxy.restore();
        let (code, text) = ended(&walpost).await;
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("another server answers at this address"), "{text}");
        assert_eq!(other.confirmed_flush().await, before);
        fixture.judge().await.assert_exact();
    }
}

/// Cuts the connections through the proxy and lets none through; the slot is free then.
async fn cut_off(fixture: &Fixture, proxy: &Proxy) {
    proxy.refuse();
    proxy.cut();
    eventually(SHORT_TIMEOUT, "the slot is free", async || fixture.walsender().await.is_none())
        .await;
}
