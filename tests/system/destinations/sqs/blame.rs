//! A server that refuses all messages, or one: in the answer for each, or with the whole request.

use std::sync::atomic::{AtomicU32, Ordering};

use super::fixture::SqsFixture;
use super::front::{Deed, Received};
use crate::blame::{
    BAD, Refusing, UNSTEADY, Way, Whom, costs_no_event, costs_the_refused_event_alone,
};

/// How a batch with a refused message is answered.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    /// With an error of the message, by a fault of the sender.
    Entry(&'static str),
    /// With an error of the request: status and code.
    Request(u16, &'static str),
}

impl Refusing for SqsFixture {
    type Answer = Answer;

    async fn refuses(&mut self, answer: Answer, whom: Whom) {
        self.front().does(move |request| deed(request, answer, whom));
    }
}

fn deed(request: &Received, answer: Answer, whom: Whom) -> Deed {
    if !request.is_batch() {
        return Deed::Pass;
    }
    let entries = request.entries();
    let is_refused = |at: &usize| whom == Whom::All || entries[*at]["MessageBody"] == BAD;
    let refused: Vec<_> = (0..entries.len()).filter(is_refused).collect();
    match answer {
        _ if refused.is_empty() => Deed::Pass,
        Answer::Entry(code) => Deed::Fail(refused.into_iter().map(|at| (at, code, true)).collect()),
        Answer::Request(status, code) => Deed::Error(status, code, "as planned"),
    }
}

async fn assert_with(ways: &[Way<Answer>]) {
    let mut fixture = SqsFixture::behind_front().await;
    fixture.configure("[poison]\nrefused = 'skip'\ntoo_large = 'skip'\n");
    costs_the_refused_event_alone(&mut fixture, ways).await;
}

fn way(name: &'static str, answer: Answer, cause: &'static str) -> Way<Answer> {
    Way { name, answer, cause }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_costs_the_refused_event_alone() {
    assert_with(&[
        way("unknown code", Answer::Entry("SomethingNew"), "refused"),
        way("a firewall", Answer::Request(403, "Forbidden"), "refused"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn other_errors_cost_the_refused_event_alone() {
    assert_with(&[
        way("content", Answer::Entry("InvalidMessageContents"), "refused"),
        way("parameter", Answer::Request(400, "InvalidParameterValue"), "refused"),
        way("a proxy's size", Answer::Request(413, "TooMuch"), "too_large"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_machines_among_others_cost_no_event() {
    for is_refused in UNSTEADY {
        let fixture = SqsFixture::behind_front().await;
        let front = fixture.front();
        fixture.configure("[poison]\nrefused = 'skip'\n");
        let requests = AtomicU32::new(0);
        front.does(move |request| {
            let is_refused =
                request.is_batch() && is_refused(requests.fetch_add(1, Ordering::Relaxed));
            if is_refused { Deed::Error(403, "Forbidden", "as planned") } else { Deed::Pass }
        });
        costs_no_event(&fixture).await;
    }
}
