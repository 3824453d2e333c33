//! PostgreSQL is restored to an earlier state, on the same timeline: its events have positions that the
//! destination has already, and would count as delivered.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use walpost_bed::{SinkFixture, Stop};

/// The WAL grows past its previous end.
const BURN: &str = "CREATE TABLE burn AS SELECT; SELECT pg_switch_wal(); DROP TABLE burn";

/// Publishes 50 events, writes the position behind them or dies before, and restores the server to the
/// state before. It then gets 10 other rows, and a new row version of its publication: `run` must end
/// with 3 and add nothing to the destination, which has `length` events. Then both the other way round.
pub async fn is_refused(fixture: &SinkFixture, length: impl AsyncFn() -> usize) {
    let postgres = &fixture.inner.postgres;
    let names = "SELECT string_agg(quote_ident(pubname), '') FROM pg_publication";
    let publication = postgres.query_text(names).await.expect("a publication");
    for (dies, is_altered) in [(false, true), (true, false)] {
        let walpost = fixture.run().await;
        fixture.insert(10, 5).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        stop(walpost).await;
        assert!(postgres.stop(Stop::Fast, LONG_TIMEOUT).await, "it stops");
        let saved = postgres.snapshot_data();
        postgres.start_again().await;
        let before = length().await;
        fixture.insert(50, 5).await;
        let command = fixture.command("run");
        if dies {
            let walpost = command.env("FAILPOINTS", "acknowledged=49*off->return").start();
            walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
        } else {
            let walpost = command.start();
            fixture.confirmed(LONG_TIMEOUT).await;
            stop(walpost).await;
        }
        assert_eq!(length().await, before + 50);
        assert!(postgres.stop(Stop::Fast, LONG_TIMEOUT).await, "it stops");
        postgres.restore_data(&saved);
        postgres.start_again().await;
        if is_altered {
            let alter = format!("ALTER PUBLICATION {publication} SET (publish = 'insert')");
            postgres.execute(&alter).await;
        }
        for _ in 0..10 {
            fixture.insert(1, 5).await;
        }
        for _ in 0..3 {
            postgres.execute(BURN).await;
        }
        let (code, said) = fixture.ended("run", &[]).await;
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains("is not the one that walpost has published from"), "{said}");
        assert_eq!(length().await, before + 50);
        fixture.adopt().await;
        let walpost = fixture.run().await;
        fixture.confirmed(LONG_TIMEOUT).await;
        stop(walpost).await;
        assert!(length().await >= before + 60, "the rows of the restored server");
    }
}

/// The slot is made again on a restored server, behind the position at the destination, whose finding of
/// `check` is `position`: `check` says what `run` says. Neither takes a restart of PostgreSQL for that.
pub async fn is_found_by_check(fixture: &SinkFixture, position: &str) {
    let postgres = &fixture.inner.postgres;
    let idle = async || {
        let walpost = fixture.run().await;
        postgres.execute(BURN).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        stop(walpost).await;
    };
    fixture.insert(10, 5).await;
    idle().await;
    assert!(postgres.stop(Stop::Fast, LONG_TIMEOUT).await, "it stops");
    let saved = postgres.snapshot_data();
    postgres.start_again().await;
    for _ in 0..3 {
        idle().await;
        postgres.restart(Stop::Fast).await;
        let (_, said) = fixture.ended("check", &["--json"]).await;
        assert!(!said.contains(position), "{said}");
    }
    idle().await;
    assert!(postgres.stop(Stop::Fast, LONG_TIMEOUT).await, "it stops");
    postgres.restore_data(&saved);
    postgres.start_again().await;
    let drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
    postgres.execute(drop).await;
    fixture.insert(10, 5).await;
    let (code, said) = fixture.ended("init", &["--apply", "--no-state"]).await;
    assert_eq!(code, Some(0), "{said}");
    for _ in 0..5 {
        postgres.execute(BURN).await;
    }
    let (_, checked) = fixture.ended("check", &["--json"]).await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert!(code == Some(3) && said.contains("walpost has not confirmed"), "{said}");
    assert!(
        checked.contains(position) && checked.contains("walpost has not confirmed"),
        "{checked}"
    );
}
