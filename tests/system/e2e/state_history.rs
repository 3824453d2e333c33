//! Servers whose history is not the one of the state topic: restored while walpost was down, or cloned.

use std::os::unix::process::ExitStatusExt as _;

use walpost_bed::fixture::{
    AGREES, Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, proxied, stop,
};
use walpost_bed::{DataSnapshot, Major, Postgres, Proxy, Stop, Walpost, eventually};

use super::state_topic::topic;

const MODES: [&str; 2] = ["at-least-once", "exactly-once"];

/// The WAL grows past its previous end.
const BURN: &str = "CREATE TABLE burn AS SELECT; SELECT pg_switch_wal(); DROP TABLE burn";

/// Transactions of a table without events.
const OTHERS: &str =
    "DO $$ BEGIN FOR i IN 1..1000 LOOP INSERT INTO other VALUES (i); COMMIT; END LOOP; END $$";

/// A fixture with a position in a state topic, and what `walpost run` is started with.
async fn adopted(mode: &'static str) -> (Fixture, String) {
    adopted_on(Major::V15, mode).await
}

async fn adopted_on(major: Major, mode: &'static str) -> (Fixture, String) {
    let fixture = Fixture::with(Postgres::builder(major).own_identity()).await;
    let topic = topic(&fixture).await;
    fixture.adopt(&topic).await;
    let fixture = fixture.option("--state-topic", &topic);
    (fixture.option("--delivery", mode), topic)
}

async fn publish(fixture: &Fixture, rows: u32) {
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(rows, 5)).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
}

async fn saved(fixture: &Fixture) -> DataSnapshot {
    assert!(fixture.postgres.stop(Stop::Fast, SHORT_TIMEOUT).await, "nothing holds it up");
    let saved = fixture.postgres.snapshot_data();
    fixture.postgres.start_again().await;
    saved
}

/// Restores the server to what was saved.
async fn set_back(fixture: &Fixture, saved: &DataSnapshot) {
    assert!(fixture.postgres.stop(Stop::Fast, SHORT_TIMEOUT).await, "it stops");
    fixture.postgres.restore_data(saved);
    fixture.postgres.start_again().await;
}

/// Ends with 3; returns how many records were published.
async fn assert_refused(fixture: &Fixture, words: &str) -> usize {
    let (records, confirmed) = (fixture.records().await.len(), fixture.confirmed_flush().await);
    let (code, said) = fixture.run_to_its_end(&[]).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains(words) && said.contains("walpost adopt --apply"), "{words}: {said}");
    assert_eq!(fixture.confirmed_flush().await, confirmed);
    fixture.records().await.len() - records
}

/// Takes the outbox out of the publication and back in, with a row in between that is never sent, and one
/// after that.
async fn change_publication(fixture: &Fixture) {
    for change in ["DROP", "ADD"] {
        let change = format!("ALTER PUBLICATION walpost {change} TABLE public.outbox");
        fixture.postgres.execute(&change).await;
        fixture.postgres.execute(&insert(1, 5)).await;
    }
}

const CHANGED: &str =
    "the publication was changed while walpost worked with it, or after it was killed";

/// A supervisor that restarts walpost changes nothing about that, and to accept it repeats nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_publication_is_left_to_an_operator() {
    for mode in MODES {
        let (fixture, _) = adopted(mode).await;
        let walpost = fixture.run().await;
        fixture.postgres.execute(&insert(10, 5)).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        change_publication(&fixture).await;
        let (code, said) = ended(&walpost).await;
        assert_eq!(code, Some(3), "{said}");
        for _ in 0..2 {
            assert_eq!(assert_refused(&fixture, CHANGED).await, 0);
        }
        for command in ["check", "adopt"] {
            let command = fixture.command(command).start();
            ended(&command).await;
            let printed = command.stdout().join("\n").to_lowercase();
            assert!(printed.contains(CHANGED), "{printed}");
        }
        if mode == "at-least-once" {
            done(&fixture, "recover", &["--all", "--apply"]).await;
            assert_continues(&fixture, 22).await;
        } else {
            // The one that was never sent.
            fixture.postgres.execute("DELETE FROM public.outbox WHERE n = 11").await;
            assert_adopted(&fixture, 21).await;
            assert_eq!(fixture.records().await.len(), 21, "nothing is repeated");
        }
    }
}

/// The next start finds the publication as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_that_is_undone_before_the_next_start_is_left_to_an_operator() {
    for mode in MODES {
        let (fixture, _) = adopted(mode).await;
        let walpost = fixture.run().await;
        fixture.postgres.execute(&insert(10, 5)).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        fixture.postgres.execute("CREATE TABLE public.child () INHERITS (public.outbox)").await;
        fixture.postgres.execute(&insert(1, 5)).await;
        let (code, said) = ended(&walpost).await;
        assert_eq!(code, Some(3), "{said}");
        fixture.postgres.execute("DROP TABLE public.child").await;
        assert_eq!(assert_refused(&fixture, CHANGED).await, 0);
        done(&fixture, "recover", &["--since", "now", "--apply"]).await;
        assert_eq!(assert_refused(&fixture, CHANGED).await, 0);
        assert_adopted(&fixture, 21).await;
        assert!(mode == "at-least-once" || fixture.records().await.len() == 21);
    }
}

/// Only a running walpost sees what PostgreSQL does not send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publication_may_be_changed_after_a_stop_in_order_and_not_after_a_kill() {
    for mode in MODES {
        let (fixture, _) = adopted(mode).await;
        publish(&fixture, 10).await;
        change_publication(&fixture).await;
        let walpost = fixture.run().await;
        fixture.confirmed(LONG_TIMEOUT).await;
        assert_eq!(fixture.records().await.len(), 11);
        walpost.kill9().await;
        // Nothing was to be written since the start, and nothing was.
        let walpost = fixture.run().await;
        walpost.await_line(AGREES, LONG_TIMEOUT).await;
        walpost.kill9().await;
        change_publication(&fixture).await;
        assert_eq!(assert_refused(&fixture, CHANGED).await, 0);
        fixture.postgres.execute("DELETE FROM public.outbox WHERE n IN (11, 13)").await;
        assert_adopted(&fixture, 22).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_restored_while_walpost_was_down_is_not_read_from() {
    for mode in MODES {
        let (fixture, _) = adopted(mode).await;
        publish(&fixture, 50).await;
        let saved = saved(&fixture).await;
        publish(&fixture, 30).await;
        set_back(&fixture, &saved).await;
        assert_eq!(assert_refused(&fixture, "lost WAL or was restored").await, 0);
        fixture.postgres.execute(&insert(20, 5)).await;
        for _ in 0..3 {
            fixture.postgres.execute(BURN).await;
        }
        let words = "is not the one that walpost has published from";
        let published = assert_refused(&fixture, words).await;
        // With at-least-once delivery what follows the slot's position is published until the
        // difference is found.
        assert!(published == 0 || mode == "at-least-once", "{published}");
        assert_adopted(&fixture, 80).await;
    }
}

/// Sets the stopped or running server back to what was saved, with 10 rows of its own and WAL beyond what
/// was published from the other history.
async fn restore(fixture: &Fixture, saved: &DataSnapshot) {
    set_back(fixture, saved).await;
    for _ in 0..10 {
        fixture.postgres.execute(&insert(1, 5)).await;
    }
    for _ in 0..3 {
        fixture.postgres.execute(BURN).await;
    }
}

/// The command ends well.
async fn done(fixture: &Fixture, name: &str, arguments: &[&str]) {
    let command = fixture.command(name).args(arguments).start();
    let (code, said) = ended(&command).await;
    assert_eq!(code, Some(0), "{said}");
}

/// The operator accepts what was restored: with `walpost adopt --apply` all of it from the slot on is
/// published.
async fn assert_adopted(fixture: &Fixture, expected: usize) {
    done(fixture, "adopt", &["--apply"]).await;
    assert_continues(fixture, expected).await;
}

/// Delivery continues with ten further rows, and so many rows are published.
async fn assert_continues(fixture: &Fixture, expected: usize) {
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 5)).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    let (rows, records) = (fixture.committed().await, fixture.records().await);
    let missing = rows
        .iter()
        .filter(|row| !records.iter().any(|record| record.header("id") == Some(row.id.as_str())));
    assert_eq!((rows.len(), missing.count()), (expected, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_server_is_not_read_from_after_a_change_of_layout_either() {
    let (fixture, _) = adopted("exactly-once").await;
    publish(&fixture, 50).await;
    let saved = saved(&fixture).await;
    publish(&fixture, 30).await;
    restore(&fixture, &saved).await;
    let words = "is not the one that walpost has published from";
    let fixture = fixture.option("--message-prefix", "events");
    assert_eq!(assert_refused(&fixture, words).await, 0);
    fixture.postgres.execute("ALTER PUBLICATION walpost SET (publish = 'insert')").await;
    assert_eq!(assert_refused(&fixture, CHANGED).await, 0);
    // To accept that is not to accept the history.
    done(&fixture, "adopt", &["--apply"]).await;
    assert_eq!(assert_refused(&fixture, words).await, 0);
    assert_adopted(&fixture, 70).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_server_without_a_transaction_published_in_part_is_not_read_from() {
    let (fixture, _) = adopted("exactly-once").await;
    publish(&fixture, 50).await;
    let saved = saved(&fixture).await;
    fixture.postgres.execute(&insert(4000, 7)).await;
    let small = fixture.command("run").env("WALPOST_DELIVERY_TRANSACTION_BYTES", "64KiB");
    let walpost = small.env("FAILPOINTS", "produced=1500*off->return").start();
    walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    let published = fixture.records().await.len();
    assert!(published > 50 && published < 4050, "a part is committed: {published}");
    restore(&fixture, &saved).await;
    let words = "is not the one that walpost has published from";
    assert_eq!(assert_refused(&fixture, words).await, 0);
    assert_adopted(&fixture, 70).await;
}

/// The slot is behind the stored position, as after a crash that undoes the last confirmations, and sends
/// no published event again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_that_was_made_again_on_a_restored_server_is_not_read_from() {
    for (mode, is_running) in
        [("at-least-once", false), ("exactly-once", false), ("at-least-once", true)]
    {
        let (mut fixture, _) = adopted(mode).await;
        publish(&fixture, 50).await;
        let saved = saved(&fixture).await;
        let (walpost, proxy) = run_behind_proxy(&mut fixture).await;
        for _ in 0..3 {
            fixture.postgres.execute(BURN).await;
        }
        fixture.confirmed(LONG_TIMEOUT).await;
        proxy.refuse();
        proxy.cut();
        if !is_running {
            walpost.terminate();
            walpost.wait(SHORT_TIMEOUT).await.expect("it ends");
        }
        set_back(&fixture, &saved).await;
        let postgres = &fixture.postgres;
        let drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
        postgres.execute(drop).await;
        postgres.execute(&insert(10, 5)).await;
        let (code, said) = ended(&fixture.command("init").arg("--apply").start()).await;
        assert_eq!(code, Some(0), "{said}");
        for _ in 0..4 {
            postgres.execute(BURN).await;
        }
        proxy.restore();
        if is_running {
            let (code, said) = ended(&walpost).await;
            assert!(code == Some(3) && said.contains("walpost has not confirmed"), "{said}");
        }
        assert_eq!(assert_refused(&fixture, "walpost has not confirmed").await, 0);
        let recover = fixture.command("recover").args(["--all", "--apply"]).start();
        let (code, said) = ended(&recover).await;
        let is_told = recover.stdout().iter().any(|line| line.contains("10 events published"));
        assert!(code == Some(0) && is_told, "{:?} {said}", recover.stdout());
        publish(&fixture, 10).await;
        assert_there(&fixture, mode).await;
    }
}

async fn assert_there(fixture: &Fixture, mode: &str) {
    let verdict = fixture.judge().await;
    if mode == "exactly-once" {
        verdict.assert_exact();
    } else {
        verdict.assert_ok();
    }
}

/// `walpost run` whose connections to PostgreSQL can be cut.
async fn run_behind_proxy(fixture: &mut Fixture) -> (Walpost, Proxy) {
    let proxy = Proxy::to(fixture.postgres.port()).await;
    let direct = std::mem::replace(&mut fixture.source, proxied(&proxy));
    let walpost = fixture.run().await;
    fixture.source = direct;
    (walpost, proxy)
}

/// walpost has received nothing since its start: only the state knows what was published before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_restored_under_a_running_walpost_is_not_read_from() {
    let (mut fixture, _) = adopted("at-least-once").await;
    let saved = saved(&fixture).await;
    publish(&fixture, 20).await;
    let (walpost, proxy) = run_behind_proxy(&mut fixture).await;
    proxy.refuse();
    proxy.cut();
    restore(&fixture, &saved).await;
    proxy.restore();
    let (code, said) = ended(&walpost).await;
    assert!(code == Some(3) && said.contains("is missing"), "{code:?} {said}");
    assert_adopted(&fixture, 20).await;
}

/// Until PostgreSQL 17 also a restart in order takes a slot back to a position that was saved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_that_takes_the_slot_back_before_the_start_of_walpost_is_no_other_history() {
    for mode in [None, Some("at-least-once"), Some("exactly-once")] {
        let fixture = match mode {
            Some(mode) => adopted(mode).await.0,
            None => Fixture::with(Postgres::builder(Major::V15).own_identity()).await,
        };
        publish(&fixture, 20).await;
        let walpost = fixture.run().await;
        let mark = walpost.mark();
        fixture.postgres.restart(Stop::Fast).await;
        walpost.await_line_after(mark, "streaming from PostgreSQL", LONG_TIMEOUT).await;
        fixture.postgres.execute(&insert(3, 5)).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        assert_there(&fixture, mode.unwrap_or("at-least-once")).await;
        stop(walpost).await;
    }
}

/// PostgreSQL crashes while walpost runs, or is not running, and forgets what the slot confirmed.
/// walpost is killed at ever later messages of the comparison, until it ends before that. PostgreSQL 14
/// sends transactions without events too: the slot must not be confirmed between them, where walpost has
/// not confirmed it before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comparison_that_is_interrupted_is_made_by_the_next_start() {
    for (mode, is_running) in [("at-least-once", true), ("exactly-once", false)] {
        let (fixture, _) = adopted_on(Major::V14, mode).await;
        // It saves the slot with the positions that it logs.
        fixture.postgres.pause_background_writer().await;
        for _ in 0..3 {
            publish(&fixture, 1).await;
        }
        let walpost = fixture.run().await;
        fixture.postgres.execute("CREATE TABLE other (i int)").await;
        fixture.postgres.execute(OTHERS).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        stop(walpost).await;
        let killed_at = |messages: u32| {
            let point = format!("comparing={messages}*sleep(2)->return");
            fixture.command("run").env("FAILPOINTS", point).start()
        };
        let first = is_running.then(|| killed_at(0));
        if let Some(walpost) = &first {
            walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
        }
        fixture.postgres.kill9().await;
        fixture.postgres.start_again().await;
        if let Some(walpost) = first {
            let status = walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
            assert_eq!(status.signal(), Some(6), "{:?}", walpost.stderr());
        }
        let (mut kills, mut messages) = (0, 0);
        loop {
            let walpost = killed_at(messages);
            let compared = "the server has the history that was published";
            eventually(LONG_TIMEOUT, "it compares", async || {
                if walpost.pid().is_none() || walpost.said(compared) {
                    Ok(())
                } else {
                    Err(walpost.stderr())
                }
            })
            .await;
            if walpost.said(compared) {
                fixture.postgres.execute(&insert(3, 5)).await;
                fixture.confirmed(LONG_TIMEOUT).await;
                stop(walpost).await;
                break;
            }
            let status = walpost.wait(SHORT_TIMEOUT).await.expect("it has ended");
            assert_eq!(status.signal(), Some(6), "{:?}", walpost.stderr());
            (kills, messages) = (kills + 1, 64 * messages + 15);
        }
        assert!(kills >= 3, "{mode}: the comparison was interrupted {kills} times");
        assert_there(&fixture, mode).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_that_takes_the_slot_back_before_an_adopted_position_is_no_other_history() {
    for mode in MODES {
        let fixture = Fixture::with(Postgres::builder(Major::V15).own_identity()).await;
        publish(&fixture, 20).await;
        let walpost = fixture.run().await;
        // The slot is saved behind the events, and not behind the WAL that follows.
        for sql in ["CHECKPOINT", "CHECKPOINT", BURN] {
            fixture.postgres.execute(sql).await;
            fixture.confirmed(LONG_TIMEOUT).await;
        }
        stop(walpost).await;
        let topic = topic(&fixture).await;
        fixture.adopt(&topic).await;
        let fixture = fixture.option("--state-topic", &topic).option("--delivery", mode);
        fixture.postgres.restart(Stop::Fast).await;
        publish(&fixture, 3).await;
        fixture.judge().await.assert_ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clone_with_a_delivery_id_of_its_own_leaves_the_original_alone() {
    for mode in MODES {
        let (original, state_topic) = adopted(mode).await;
        publish(&original, 50).await;
        let saved = saved(&original).await;
        let server = Postgres::builder(Major::V15).own_identity().start().await;
        assert!(server.stop(Stop::Fast, SHORT_TIMEOUT).await, "it stops");
        server.clone_data(&saved);
        server.start_again().await;
        let clone = Fixture::bare(server, &original.bootstrap);
        let clone = clone.option("--delivery-id", "staging").option("--delivery", mode);
        let walpost = original.run().await;
        original.postgres.execute(&insert(50, 5)).await;
        let (code, said) = clone.run_to_its_end(&["--state-topic", &state_topic]).await;
        assert_eq!(code, Some(78), "{said}");
        assert!(said.contains("has no position") && said.contains("staging"), "{said}");
        clone.adopt(&state_topic).await;
        let cloned = clone.run_with(&["--state-topic", &state_topic]).await;
        cloned.await_line(AGREES, LONG_TIMEOUT).await;
        for _ in 0..3 {
            original.postgres.execute(&insert(50, 5)).await;
            clone.postgres.execute(&insert(50, 5)).await;
        }
        // A server that was stopped may have forgotten the slot's last position (until 17).
        let judge = async || {
            original.confirmed(LONG_TIMEOUT).await;
            assert_there(&original, mode).await;
        };
        judge().await;
        clone.confirmed(LONG_TIMEOUT).await;
        // Its slot may have forgotten its last position too.
        let (rows, published) = (clone.committed().await, clone.records().await.len());
        clone.assert_published(&rows[200 - published..], LONG_TIMEOUT).await;
        stop(cloned).await;
        stop(walpost).await;
        publish(&original, 50).await;
        judge().await;
    }
}
