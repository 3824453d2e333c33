//! An endpoint that refuses everything, or one event: by its answer, or by none.

use super::fixture::HttpFixture;
use super::receiver::{Answer, Receiver};
use crate::blame::{BAD, Refusing, Way, Whom, costs_the_refused_event_alone};

impl Refusing for HttpFixture {
    type Answer = Answer;

    async fn refuses(&self, answer: Answer, whom: Whom) {
        self.receiver.answers(move |request| {
            let is_refused = whom == Whom::All || &request.body[..] == BAD.as_bytes();
            if is_refused { answer.clone() } else { Answer::of(200) }
        });
    }
}

async fn fixture(toml: &str) -> HttpFixture {
    let mut fixture = HttpFixture::with(Receiver::start()).await;
    fixture.url = fixture.url.replace("/events", "/{topic}");
    fixture.configured(&format!(
        "{toml}[poison]\nrefused = 'skip'\ntoo_large = 'skip'\nmissing_topic = 'skip'\n"
    ))
}

fn status(name: &'static str, status: u16, cause: &'static str) -> Way<Answer> {
    Way { name, answer: Answer::of(status), cause }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_costs_the_refused_event_alone() {
    let fixture = fixture("").await;
    let ways = [
        status("unauthorized", 401, "refused"),
        status("a path is missing", 404, "missing_topic"),
        status("too large", 413, "too_large"),
    ];
    costs_the_refused_event_alone(&fixture, &ways).await;
}

/// Errors that usually pass, and connections that are closed, are first tried again for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lasting_error_costs_the_refused_event_alone() {
    let fixture = fixture("[http]\ngive_up_after = '1s'\n").await;
    costs_the_refused_event_alone(&fixture, &[status("unavailable", 503, "refused")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn other_answers_and_none_cost_the_refused_event_alone() {
    let fixture = fixture("[http]\ntimeout = '1s'\n").await;
    let closed = Answer { closes: true, ..Answer::of(200) };
    let ways = [
        Way { name: "closed", answer: closed, cause: "refused" },
        status("a conflict", 409, "refused"),
        status("plain HTTP to a TLS port", 400, "refused"),
        status("elsewhere", 302, "refused"),
    ];
    costs_the_refused_event_alone(&fixture, &ways).await;
}
