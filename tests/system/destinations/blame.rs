//! Whose fault it is that a record is refused: a destination that refuses everything costs no event, and
//! one that refuses a single event loses that one alone. The same scenario for each destination, in each
//! way that it can refuse a record.

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, insert, stop};
use walpost_bed::{Endpoints, eventually};

use crate::promise::Promise;

/// The payload of the event that is refused alone.
pub const BAD: &str = "\"bad\"";

/// A way to refuse a record.
pub struct Way<A> {
    pub name: &'static str,
    pub answer: A,
    /// The cause of an event that is refused alone in this way.
    pub cause: &'static str,
}

/// The records that are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    All,
    /// Those with the payload [`BAD`].
    Bad,
}

/// A destination that refuses records on demand; all policies of walpost are `skip`.
pub trait Refusing: Promise {
    type Answer: Clone;

    /// Aggregate type and id of the event that is refused alone.
    const BAD_EVENT: (&str, &str) = ("order", "1");

    /// How many failed deliveries show that everything is tried again, one by one too.
    const FAILURES: u64 = 8;

    /// Refuses records in this way from here on.
    async fn refuses(&mut self, answer: Self::Answer, whom: Whom);
}

/// While all is refused, nothing is skipped; once one event is refused alone, it is, and nothing else:
/// also as the first event after a start.
pub async fn costs_the_refused_event_alone<F: Refusing>(fixture: &mut F, ways: &[Way<F::Answer>]) {
    let (aggregate_type, key) = F::BAD_EVENT;
    let row = format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('{aggregate_type}', '{key}', 'placed', '{BAD}')"
    );
    for Way { name, answer, cause } in ways {
        for whom in [Whom::All, Whom::Bad] {
            fixture.refuses(answer.clone(), whom).await;
            let postgres = &fixture.inner.postgres;
            // Before others of its key and of other keys.
            let unconfirmed = postgres.commit(&row).await;
            postgres.execute(&insert(6, 3)).await;
            let run = fixture.command("run").args(["--admin-listen", "127.0.0.1:0"]);
            let walpost = run.start();
            let endpoints = Endpoints::of(&walpost).await;
            if whom == Whom::All {
                eventually(LONG_TIMEOUT, &format!("{name}: all is tried"), async || {
                    let failures = endpoints.metric("walpost_publish_errors_total", "").await;
                    if failures < F::FAILURES { Err(walpost.stderr()) } else { Ok(()) }
                })
                .await;
                assert!(!endpoints.are_ready().await, "{name}");
                assert_eq!(endpoints.metric("walpost_events_published_total", "").await, 0);
                assert_eq!(skipped(&endpoints, "").await, 0, "{name}: {:?}", walpost.stderr());
                fixture.inner.assert_unconfirmed(&unconfirmed).await;
                fixture.refuses(answer.clone(), Whom::Bad).await;
            }
            fixture.confirmed(LONG_TIMEOUT).await;
            assert_eq!(skipped(&endpoints, "").await, 1, "{name}: {:?}", walpost.stderr());
            assert_eq!(skipped(&endpoints, cause).await, 1, "{name}: {:?}", walpost.stderr());
            let ready = async || endpoints.are_ready().await;
            eventually(SHORT_TIMEOUT, &format!("{name}: it is ready again"), ready).await;
            stop(walpost).await;
            let postgres = &fixture.inner.postgres;
            postgres.execute(&format!("DELETE FROM public.outbox WHERE payload = '{BAD}'")).await;
            fixture.assert_kept(&[]).await;
        }
    }
}

/// Machines behind one address, some of which refuse everything: whether the request with this number
/// meets one of those. Half of them in turn, two of three in turn, half of them by chance.
pub const UNSTEADY: [fn(u32) -> bool; 3] = [
    |number| number.is_multiple_of(2),
    |number| !number.is_multiple_of(3),
    |number| fastrand::Rng::with_seed(number.into()).bool(),
];

/// Events that are refused now and then, and not for themselves, are all delivered.
pub async fn costs_no_event(fixture: &impl Promise) {
    let walpost = fixture.run().await;
    for rows in [1, 7].repeat(15).into_iter().chain([300]) {
        fixture.insert(rows, 3 + rows / 20).await;
        fixture.confirmed(LONG_TIMEOUT).await;
    }
    fixture.assert_kept(&[]).await;
    stop(walpost).await;
}

async fn skipped(endpoints: &Endpoints, cause: &str) -> u64 {
    endpoints.metric("walpost_poison_events_total", cause).await
}
