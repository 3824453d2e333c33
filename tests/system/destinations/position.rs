//! Destinations that keep walpost's position beside the events: a stream belongs to one walpost, server
//! and slot, nobody else writes to it, and what is lost with the position or behind it is noticed.

use walpost_bed::eventually;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, ended, stop};
use walpost_bed::writer::Writer;

use crate::promise::{Destination, cases};

cases! {
    init_makes_the_stream_walposts(before_adopt): [redis nats];
    stream_without_a_position_is_not_written_to(before_adopt): [redis nats];
    events_of_another_writer_stop_delivery(new): [redis nats];
    slot_created_again_is_adopted_with_a_new_generation(new): [redis nats];
    changed_publication_is_left_to_an_operator(new): [redis nats];
    stream_of_another_server_is_refused(new): [redis nats];
    event_skipped_by_order_is_not_delivered(new): [redis nats];
    event_that_is_in_the_stream_cannot_be_skipped(new): [redis nats];
    other_tables_are_refused_while_events_are_not_confirmed(new): [redis nats];
    check_finds_each_state_in_which_run_does_not_start(new): [redis nats];
    set_back_behind_what_is_confirmed_is_not_started_from(restorable): [redis nats];
    set_back_to_what_is_confirmed_gets_the_rest_again(restorable): [redis nats];
    killed_server_that_syncs_seldom_loses_nothing(syncing_seldom): [redis nats];
}

/// A destination that keeps walpost's position.
pub trait Keeper: Destination {
    /// What names the place of the position.
    const PLACE: &str;

    /// What walpost says of events that it has not written.
    const FOREIGN: &str;

    /// The finding of `check` once the stream is deleted, and what walpost says once it was made again.
    const DELETED: &str;
    const MADE_AGAIN: &str;

    /// Another one, whose database has an identity of its own.
    async fn another() -> Self;

    /// How many events are in the stream.
    async fn length(&self) -> usize;

    /// The generation of each event; `None`: it is not walpost's.
    async fn generations(&self) -> Vec<Option<String>>;

    /// Writes an event as another program.
    async fn write_as_another(&self);

    async fn delete_stream(&self);

    async fn make_stream(&self);

    /// Removes so many of its oldest events.
    async fn remove_oldest(&self, count: usize);

    /// Replaces the owner in the state key; returns the one before.
    async fn replace_owner(&self, owner: &str) -> String;

    /// Keeps a copy of its data.
    async fn snapshot(&self);

    /// Sets it back to the copy.
    async fn set_back(&self);

    /// Waits until so many events are in the stream.
    async fn reaches(&self, length: usize) {
        eventually(LONG_TIMEOUT, "all are there", async || self.length().await == length).await;
    }

    /// `run` does not start, and writes nothing.
    async fn refused(&self, code: i32, part: &str) -> String {
        let before = self.length().await;
        let (ended, said) = self.ended("run", &[]).await;
        assert_eq!(ended, Some(code), "{said}");
        assert!(said.contains(part), "{said}");
        assert_eq!(self.length().await, before, "something was written");
        said
    }
}

async fn init_makes_the_stream_walposts(fixture: &impl Keeper) {
    let (code, said) = fixture.ended("init", &["--apply"]).await;
    assert_eq!(code, Some(0), "{said}");
    fixture.delivers().await;
}

async fn stream_without_a_position_is_not_written_to<K: Keeper>(fixture: &K) {
    let said = fixture.refused(78, "walpost adopt --apply").await;
    assert!(said.contains(K::PLACE), "{said}");
    let printed = fixture.adopt().await.join("\n");
    assert!(printed.contains(K::PLACE), "{printed}");
    fixture.delivers().await;
}

/// Nothing is written behind them until an operator adopts them.
async fn events_of_another_writer_stop_delivery<K: Keeper>(fixture: &K) {
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.write_as_another().await;
    fixture.insert(10, 3).await;
    let (code, said) = ended(&walpost).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains(K::FOREIGN), "{said}");
    assert_eq!(fixture.length().await, 11, "nothing is written behind it");
    fixture.refused(3, K::FOREIGN).await;
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let generations = fixture.generations().await;
    assert_eq!(generations.len(), 21);
    assert!(generations[20].is_some() && generations[0] != generations[20], "a new generation");
    stop(walpost).await;
}

/// Rows may be missing, so an operator decides. Positions of the new slot may be those of events that are
/// there already.
async fn slot_created_again_is_adopted_with_a_new_generation<K: Keeper>(fixture: &K) {
    let walpost = fixture.run().await;
    fixture.insert(20, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    let postgres = &fixture.inner.postgres;
    postgres.execute("SELECT pg_drop_replication_slot('walpost')").await;
    fixture.insert(7, 5).await;
    postgres.execute("SELECT pg_create_logical_replication_slot('walpost', 'pgoutput')").await;
    fixture.refused(3, &format!("{} has lost its newest writes", K::NAME)).await;
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.insert(9, 5).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let generations = fixture.generations().await;
    let [first, last] = [&generations[0], &generations[28]].map(Clone::clone);
    assert!(first.is_some() && last.is_some() && first != last);
    assert_eq!(generations, [vec![first; 20], vec![last; 9]].concat());
    stop(walpost).await;
}

/// To accept the change begins no new generation, in which events would be repeated.
async fn changed_publication_is_left_to_an_operator<K: Keeper>(fixture: &K) {
    let walpost = fixture.run().await;
    fixture.insert(10, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    for change in ["DROP", "ADD"] {
        let change = format!("ALTER PUBLICATION walpost {change} TABLE public.outbox");
        fixture.inner.postgres.execute(&change).await;
    }
    fixture.insert(1, 3).await;
    let (code, said) = ended(&walpost).await;
    assert_eq!(code, Some(3), "{said}");
    fixture.refused(3, "changed while walpost worked with it, or after it was killed").await;
    fixture.adopt().await;
    let walpost = fixture.run().await;
    fixture.insert(9, 3).await;
    fixture.assert_exact().await;
    let generations = fixture.generations().await;
    assert_eq!(generations, vec![generations[0].clone(); 20]);
    stop(walpost).await;
}

async fn stream_of_another_server_is_refused<K: Keeper>(fixture: &K) {
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    let mut other = K::another().await;
    other.url.clone_from(&fixture.url);
    for (name, arguments) in [("run", &[][..]), ("adopt", &["--apply"])] {
        let (code, said) = other.ended(name, arguments).await;
        assert_ne!(code, Some(0), "{said}");
        assert!(said.contains("belongs to another walpost"), "{said}");
    }
    assert_eq!(fixture.length().await, 3);
}

async fn event_skipped_by_order_is_not_delivered(fixture: &impl Keeper) {
    fixture.inner.postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    fixture.insert(3, 3).await;
    let bad = "INSERT INTO public.outbox (aggregate_type, event_type) VALUES ('order', 'bad')";
    fixture.inner.postgres.execute(bad).await;
    fixture.insert(3, 3).await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    let (_, rest) = said.split_once("walpost skip --position ").expect("the command");
    let position = rest.split([' ', '`']).next().expect("a position");
    let (code, said) = fixture.ended("skip", &["--position", position, "--apply"]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("state key"), "{said}");
    let walpost = fixture.run().await;
    fixture.reaches(6).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
}

/// A replay would count it as delivered: the order would have no effect.
async fn event_that_is_in_the_stream_cannot_be_skipped(fixture: &impl Keeper) {
    fixture.insert(10, 3).await;
    let walpost = fixture.command("run").env("FAILPOINTS", "acknowledged=9*off->return").start();
    walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    let records = fixture.records().await;
    let position = records[9].header("walpost.position").expect("a position");
    let (code, said) = fixture.ended("skip", &["--position", position, "--apply"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is published already"), "{said}");
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// With other tables the events of a transaction have other ordinals.
async fn other_tables_are_refused_while_events_are_not_confirmed(fixture: &impl Keeper) {
    let walpost = fixture.command("run").env("FAILPOINTS", "acknowledged=30*off->return").start();
    fixture.insert(60, 5).await;
    walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    assert!(fixture.length().await > 0);
    fixture.inner.postgres.execute("CREATE TABLE more (LIKE public.outbox INCLUDING ALL)").await;
    fixture.inner.postgres.execute("ALTER PUBLICATION walpost ADD TABLE more").await;
    let more = ["--table", "public.outbox", "--table", "public.more"];
    let (code, said) = fixture.ended("run", &more).await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("cannot tell which of its events"), "{said}");
}

/// What `run` finds before it publishes, `check` finds too.
async fn check_finds_each_state_in_which_run_does_not_start<K: Keeper>(fixture: &K) {
    let code = |end: &str| format!("{}_{end}", fixture.kind());
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    fixture.assert_found("ok", &code("stream")).await;
    let refused = async |end: &str, exit: i32, part: &str| {
        fixture.assert_found("error", &code(end)).await;
        fixture.refused(exit, part).await;
    };
    fixture.write_as_another().await;
    refused("state", 3, K::FOREIGN).await;
    fixture.delete_stream().await;
    fixture.assert_found("error", K::DELETED).await;
    fixture.make_stream().await;
    refused("state", 3, K::MADE_AGAIN).await;
    fixture.adopt().await;
    fixture.assert_found("ok", &code("stream")).await;
    let advance = "SELECT pg_replication_slot_advance('walpost', pg_current_wal_lsn())";
    fixture.inner.postgres.execute("SELECT pg_logical_emit_message(true, 'other', 'x')").await;
    fixture.inner.postgres.execute(advance).await;
    refused("position", 3, "has lost its newest writes").await;
    fixture.adopt().await;
    let owner = fixture.replace_owner("other").await;
    refused("state", 78, "belongs to another walpost").await;
    fixture.replace_owner(&owner).await;
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.length().await, 3);
    stop(walpost).await;
}

/// With a part of the events: PostgreSQL does not have the others any more.
async fn set_back_behind_what_is_confirmed_is_not_started_from<K: Keeper>(fixture: &K) {
    let walpost = fixture.run().await;
    fixture.insert(50, 5).await;
    fixture.assert_exact().await;
    fixture.snapshot().await;
    fixture.insert(50, 5).await;
    fixture.assert_exact().await;
    fixture.set_back().await;
    fixture.insert(1, 5).await;
    // The next event shows it, or the next position, which PostgreSQL's own WAL moves at any time: the
    // key is opened again then, and compared with the slot.
    let lost = format!("{} has lost records that it had acknowledged", K::NAME);
    let missing = format!("{} has lost its newest writes", K::NAME);
    let (code, said) = ended(&walpost).await;
    let (seen, other) =
        (code == Some(1) && said.contains(&lost), code == Some(3) && said.contains(&missing));
    assert!(seen || other, "{code:?}: {said}");
    fixture.refused(3, &missing).await;
    // As the message says.
    let (code, said) = fixture.ended("recover", &["--all", "--apply", "--order-by", "n"]).await;
    assert!(code == Some(0) && said.contains("50 events published"), "{said}");
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// walpost died before it confirmed more: everything is published once more, in order.
async fn set_back_to_what_is_confirmed_gets_the_rest_again(fixture: &impl Keeper) {
    let walpost = fixture.run().await;
    fixture.insert(50, 5).await;
    fixture.assert_exact().await;
    stop(walpost).await;
    fixture.snapshot().await;
    fixture.insert(50, 5).await;
    let walpost = fixture.command("run").env("FAILPOINTS", "acknowledged=49*off->return").start();
    walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    fixture.reaches(100).await;
    fixture.set_back().await;
    assert_eq!(fixture.length().await, 50, "the copy");
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// What a killed process has acknowledged is in the kernel.
async fn killed_server_that_syncs_seldom_loses_nothing(fixture: &impl Keeper) {
    let walpost = fixture.run().await;
    let writer = Writer::start(&fixture.inner.postgres, 300);
    for _ in 0..3 {
        writer.commits(100).await;
        fixture.kill().await;
        fixture.start_again().await;
    }
    fixture.assert_exact_after(writer).await;
    stop(walpost).await;
}
