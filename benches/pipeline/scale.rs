//! A backlog sharded over several slots, each with a publication that has a row filter, compared
//! with one slot that reads all of it.
//!
//! Each slot's walsender decodes the whole WAL and discards what its filter excludes. So one of
//! several slots is also measured alone: with enough cores, several in parallel take as long as
//! that one.

use std::sync::{Arc, Mutex};

use rdkafka::message::BorrowedMessage;

use crate::Plan;
use crate::backlog::{Arrivals, Shape};
use crate::conditions::Conditions;
use crate::contender::Contender;
use crate::drain::{Backlog, Run, rate, run};
use crate::fixture::Fixture;
use crate::report::Report;
use crate::trial::Trial;

const PART: &str = "scale";

/// PostgreSQL has row filters from here on.
const ROW_FILTERS: i32 = 150_000;

/// One of so many slots.
#[derive(Clone, Copy)]
struct Share {
    number: u32,
    slots: u32,
}

impl Share {
    fn all(slots: u32) -> Vec<Self> {
        (0..slots).map(|number| Self { number, slots }).collect()
    }

    fn publication(self) -> String {
        format!("walpost_{}_of_{}", self.number, self.slots)
    }

    /// What rows are its own. Of the division only the rest is made positive: the least of all
    /// hashes has no positive form, and an error in a filter ends the decoding.
    fn filter(self) -> String {
        format!("abs(hashtext(aggregate_id) % {}) = {}", self.slots, self.number)
    }

    async fn publish(self, fixture: &Fixture) {
        let (name, filter) = (self.publication(), self.filter());
        fixture
            .execute(&format!(
                "CREATE PUBLICATION {name} FOR TABLE public.outbox WHERE ({filter}) \
                 WITH (publish = 'insert')"
            ))
            .await;
    }

    async fn rows(self, fixture: &Fixture) -> u64 {
        let count = format!("SELECT count(*)::text FROM public.outbox WHERE {}", self.filter());
        fixture.text(&count).await.parse().expect("a number")
    }
}

pub(crate) async fn bench(fixture: &Fixture, plan: &Plan, report: &mut Report) {
    println!("\nscale, {} rows:", plan.rows);
    let version = fixture.text("SELECT current_setting('server_version_num')").await;
    if version.parse().is_ok_and(|version: i32| version < ROW_FILTERS) {
        return println!("  left out: PostgreSQL has row filters since 15");
    }
    for share in plan.slots.iter().copied().flat_map(Share::all) {
        share.publish(fixture).await;
    }
    let shape = Shape::OneRowTransactions;
    let backlog = Backlog::write(fixture, shape, plan.rows, &Conditions::default()).await;
    for round in 1..=plan.rounds {
        let limit = fixture.receive("base", &backlog.end, "").await;
        report.add(PART, "pg_recvlogical", "drain", "rows/s", rate(plan.rows) / limit);
        for contender in [Contender::Walpost, Contender::WalpostStreaming] {
            of_subject(fixture, plan, (round, contender), report).await;
        }
    }
}

async fn of_subject(
    fixture: &Fixture,
    plan: &Plan,
    (round, contender): (u32, Contender),
    report: &mut Report,
) {
    let name = |slots: &str| format!("scale_{}_{slots}_{round}", contender.word());
    let mut add = |who: &str, run: &Run, one: Option<&Run>| {
        run.add_to(report, (PART, who), plan.rows);
        if let Some(one) = one {
            report.add(PART, who, "÷ one slot", "", one.seconds / run.seconds);
        }
    };
    let whole = vec!["walpost".to_owned()];
    let one = drain(fixture, plan.rows, (plan.rows, whole), (&name("one"), contender)).await;
    add(contender.name(), &one, None);
    for slots in &plan.slots {
        let shares = Share::all(*slots);
        let publications = shares.iter().map(|share| share.publication()).collect();
        let name_of_all = name(&slots.to_string());
        let several = (plan.rows, publications);
        let several = drain(fixture, plan.rows, several, (&name_of_all, contender)).await;
        add(&format!("{}, {slots} filtered slots", contender.name()), &several, Some(&one));
        let share = shares[0];
        let alone = (share.rows(fixture).await, vec![share.publication()]);
        let name_of_one = name(&format!("alone_{slots}"));
        let alone = drain(fixture, plan.rows, alone, (&name_of_one, contender)).await;
        let who = format!("{}, one of {slots} filtered slots alone", contender.name());
        add(&who, &alone, Some(&one));
    }
}

/// Drains a backlog of so many rows through a slot for each of these publications, which let so
/// many of them pass; and sees that all these came, each key in order. A row of the backlog counts
/// whether it passed or not.
async fn drain(
    fixture: &Fixture,
    rows: u64,
    (passing, publications): (u64, Vec<String>),
    (name, contender): (&str, Contender),
) -> Run {
    let arrivals = Arc::new(Mutex::new(Arrivals::of(rows)));
    let seen = Arc::clone(&arrivals);
    let each = move |record: &BorrowedMessage<'_>| seen.lock().expect("no panic").take(record);
    let mut trial = Trial::new(fixture, &Conditions::default(), name, each).await;
    for publication in &publications {
        trial.copy_slot("base", publication).await;
    }
    let all = || {
        let arrivals = arrivals.lock().expect("no panic");
        assert!(arrivals.fault.is_none(), "{:?}", arrivals.fault);
        arrivals.count >= passing
    };
    run(trial, contender, rows, all).await
}
