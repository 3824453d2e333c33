//! Events that a destination cannot have, with each policy.

use std::collections::BTreeSet;

use walpost_bed::Consumed;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};

use crate::promise::{Destination, cases};

cases! {
    policy_halt_stops_before_the_event(poisoned): all;
    policy_skip_delivers_the_others(poisoned): all;
    dead_letters_are_there_once_also_under_kills(poisoned): [redis nats sqs];
}

/// A row that becomes no record of the destination; its type begins with `bad`.
pub struct Poison {
    /// Its columns and values.
    pub row: &'static str,
    pub cause: &'static str,
    /// A part of what is said.
    pub reason: &'static str,
    /// Whether no other event has its key.
    pub has_own_key: bool,
}

/// A row without a key.
pub const WITHOUT_KEY: Poison = Poison {
    row: "(aggregate_type, aggregate_id, event_type) VALUES ('order', NULL, 'bad')",
    cause: "missing_field",
    reason: "`aggregate_id` is NULL or empty",
    has_own_key: false,
};

/// A destination with events that it cannot have.
pub trait Poisonous: Destination {
    const POISON: &[Poison];

    /// Whether all events have one order, and not those of a key alone.
    const HAS_ONE_ORDER: bool = Self::HAS_POSITION;

    /// Whether letters of a key are given out behind one that is kept.
    const GIVES_OUT_LETTERS_BEHIND: bool = true;

    /// Makes the place of the dead letters.
    async fn make_letters(&self) {}

    /// The dead letters, if they can be read.
    async fn letters(&self) -> Vec<Consumed> {
        Vec::new()
    }

    /// Sets this policy for each cause of these events.
    fn set_policy<'a>(&self, policy: &str, poison: impl IntoIterator<Item = &'a Poison>) {
        let causes: BTreeSet<_> = poison.into_iter().map(|one| one.cause).collect();
        let lines = causes.into_iter().map(|cause| format!("poison.{cause} = '{policy}'\n"));
        self.configure(&lines.collect::<String>());
    }

    async fn insert_poison(&self, poison: &Poison) {
        self.inner.postgres.execute(&format!("INSERT INTO public.outbox {}", poison.row)).await;
    }

    /// All events but the undeliverable ones are there.
    async fn assert_others_are_kept(&self) {
        self.inner.postgres.execute("DELETE FROM public.outbox WHERE event_type LIKE 'ba%'").await;
        let letters = self.letters().await;
        let mut records = self.records().await;
        records.retain(|record| letters.iter().all(|letter| letter.topic != record.topic));
        self.assert_is_kept(&self.verdict(&records, &[]).await);
    }
}

/// What comes before it is delivered, and nothing of its key behind it; nothing at all where all events have
/// one order, or if it has no key.
async fn policy_halt_stops_before_the_event<P: Poisonous>(fixture: &P) {
    let postgres = &fixture.inner.postgres;
    postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    for poison in P::POISON {
        fixture.insert(3, 3).await;
        fixture.insert_poison(poison).await;
        let bad =
            "(SELECT * FROM public.outbox WHERE event_type LIKE 'ba%' ORDER BY n DESC LIMIT 1)";
        let placed = async |condition: &str| -> Vec<String> {
            let ids = format!(
                "SELECT coalesce(string_agg(event.id::text, ' '), '') \
                   FROM public.outbox AS event, {bad} AS bad \
                  WHERE event.event_type = 'placed' AND {condition}"
            );
            let ids = postgres.query_text(&ids).await.expect("a text");
            ids.split_whitespace().map(str::to_owned).collect()
        };
        fixture.insert(3, 3).await;
        let before = placed("event.n < bad.n").await;
        let is_one_order = P::HAS_ONE_ORDER || poison.cause == WITHOUT_KEY.cause;
        let of_key = if is_one_order { "" } else { "AND event.aggregate_id = bad.aggregate_id" };
        let behind = placed(&format!("event.n > bad.n {of_key}")).await;
        assert_eq!(behind.is_empty(), poison.has_own_key && !is_one_order, "{}", poison.reason);
        fixture.set_policy("halt", P::POISON);
        let (code, said) = fixture.ended("run", &[]).await;
        assert_eq!(code, Some(4), "{}: {said}", poison.reason);
        assert!(said.contains(poison.reason), "{}: {said}", poison.reason);
        let records = fixture.records().await;
        let ids: BTreeSet<_> = records.iter().filter_map(|record| record.header("id")).collect();
        assert!(before.iter().all(|id| ids.contains(&**id)), "{}: {before:?}", poison.reason);
        assert!(behind.iter().all(|id| !ids.contains(&**id)), "{}: {behind:?}", poison.reason);
        fixture.set_policy("skip", P::POISON);
        let walpost = fixture.run().await;
        fixture.confirmed(LONG_TIMEOUT).await;
        stop(walpost).await;
    }
    assert_eq!(fixture.letters().await, []);
    fixture.assert_others_are_kept().await;
}

async fn policy_skip_delivers_the_others<P: Poisonous>(fixture: &P) {
    staged(fixture, "skip", P::POISON.iter()).await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.letters().await, []);
    fixture.assert_others_are_kept().await;
    fixture.assert_one_at_a_time();
    stop(walpost).await;
}

/// A dead letter is larger than its event: one that is too large halts.
async fn dead_letters_are_there_once_also_under_kills<P: Poisonous>(fixture: &P) {
    let poison: Vec<_> = P::POISON.iter().filter(|one| one.cause != "too_large").collect();
    for count in [1, 5, 9] {
        staged(fixture, "dead_letter", poison.iter().copied()).await;
        let action = format!("acknowledged={count}*off->return");
        let walpost = fixture.command("run").env("FAILPOINTS", action).start();
        walpost.wait(SHORT_TIMEOUT).await.expect("it dies");
    }
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let letters = fixture.letters().await;
    let of = |name| letters.iter().map(move |letter| letter.header(name).expect("a header"));
    let positions: BTreeSet<_> = of("walpost.position").collect();
    assert_eq!(positions.len(), letters.len(), "each is another event's: {letters:?}");
    let mut found: Vec<_> = of("walpost.cause").collect();
    let mut expected = poison.iter().map(|one| one.cause).collect::<Vec<_>>().repeat(3);
    if !P::HAS_ONE_ORDER {
        found.sort_unstable();
        expected.sort_unstable();
    }
    assert_eq!(found, expected, "{letters:?}");
    fixture.assert_others_are_kept().await;
    stop(walpost).await;
}

/// Three events of three keys before, and after, each of these.
async fn staged<'a, P: Poisonous>(
    fixture: &P,
    policy: &str,
    poison: impl Iterator<Item = &'a Poison> + Clone,
) {
    let postgres = &fixture.inner.postgres;
    postgres.execute("ALTER TABLE outbox ALTER aggregate_id DROP NOT NULL").await;
    fixture.set_policy(policy, poison.clone());
    fixture.insert(3, 3).await;
    for one in poison {
        fixture.insert_poison(one).await;
        fixture.insert(3, 3).await;
    }
}
