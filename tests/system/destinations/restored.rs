//! PostgreSQL is restored to an earlier state, or a standby that is behind is promoted: its events have
//! positions that the destination has already, and would count as delivered.

use walpost_bed::Stop;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, counted, stop};

use crate::position::Keeper;
use crate::promise::cases;
use crate::recover::make_the_slot;

cases! {
    promoted_server_without_events_of_the_stream_is_refused(of_own_server): [redis nats];
    restored_server_is_refused_whatever_was_published_last(of_own_server): [redis nats];
    check_finds_a_slot_that_was_made_again_on_a_restored_server(of_own_server): [redis nats];
}

/// The WAL grows past its previous end.
const BURN: &str = "CREATE TABLE burn AS SELECT; SELECT pg_switch_wal(); DROP TABLE burn";

/// Events in the stream lie between the position and the end of WAL of a promoted server: its own events
/// at these positions are others, and would count as delivered.
async fn promoted_server_without_events_of_the_stream_is_refused(fixture: &impl Keeper) {
    let walpost = fixture.run().await;
    fixture.insert(10, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    let postgres = &fixture.inner.postgres;
    assert!(postgres.stop(Stop::Fast, LONG_TIMEOUT).await, "it stops");
    let saved = postgres.snapshot_data();
    postgres.start_again().await;
    fixture.insert(50, 5).await;
    // Dies before it writes the position.
    let walpost = fixture.command("run").env("FAILPOINTS", "acknowledged=49*off->return").start();
    walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    assert_eq!(fixture.length().await, 60);
    assert!(postgres.stop(Stop::Fast, LONG_TIMEOUT).await, "it stops");
    postgres.restore_data(&saved);
    postgres.make_standby();
    postgres.start_again().await;
    postgres.promote().await;
    // Its WAL passes the last event of the stream.
    for _ in 0..10 {
        fixture.insert(100, 5).await;
    }
    fixture.refused(3, "the server was promoted from timeline 1 to 2").await;
    // The advice of the message. Positions of its own rows are those of events that are there.
    let (code, said) = fixture.ended("recover", &["--all", "--apply"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(counted(&said, "published, and in no table"), 50, "{said}");
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    // What came before the position of the slot on this server is there once more.
    assert!((1060..=1070).contains(&fixture.length().await));
    stop(walpost).await;
}

/// Publishes 50 events, writes the position behind them or dies before, and restores the server to the
/// state before. It then gets 10 other rows, and a new row version of its publication: `run` must end
/// with 3 and write nothing. Then both the other way round.
async fn restored_server_is_refused_whatever_was_published_last(fixture: &impl Keeper) {
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
        let before = fixture.length().await;
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
        assert_eq!(fixture.length().await, before + 50);
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
        assert_eq!(fixture.length().await, before + 50);
        fixture.adopt().await;
        let walpost = fixture.run().await;
        fixture.confirmed(LONG_TIMEOUT).await;
        stop(walpost).await;
        assert!(fixture.length().await >= before + 60, "the rows of the restored server");
    }
}

/// The slot is made again behind the position at the destination: `check` says what `run` says. Neither takes a restart of
/// PostgreSQL for that.
async fn check_finds_a_slot_that_was_made_again_on_a_restored_server(fixture: &impl Keeper) {
    let position = &format!("{}_position", fixture.kind());
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
    make_the_slot(fixture).await;
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
