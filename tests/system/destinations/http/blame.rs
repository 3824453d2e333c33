//! An endpoint that refuses everything, or one event: by its answer, or by none.

use std::sync::atomic::{AtomicU32, Ordering};

use walpost_bed::fixture::{LONG_TIMEOUT, stop};
use walpost_bed::{Endpoints, eventually};

use super::fixture::HttpFixture;
use super::receiver::{Answer, Receiver};
use crate::blame::{
    BAD, Refusing, UNSTEADY, Way, Whom, costs_no_event, costs_the_refused_event_alone,
};
use crate::promise::Promise;

impl Refusing for HttpFixture {
    type Answer = Answer;

    async fn refuses(&mut self, answer: Answer, whom: Whom) {
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
    let mut fixture = fixture("").await;
    let ways = [
        status("unauthorized", 401, "refused"),
        status("a path is missing", 404, "missing_topic"),
        status("too large", 413, "too_large"),
    ];
    costs_the_refused_event_alone(&mut fixture, &ways).await;
}

/// Errors that usually pass, and connections that are closed, are first tried again for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lasting_error_costs_the_refused_event_alone() {
    let mut fixture = fixture("[http]\ngive_up_after = '1s'\n").await;
    costs_the_refused_event_alone(&mut fixture, &[status("unavailable", 503, "refused")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make long"]
async fn other_answers_and_none_cost_the_refused_event_alone() {
    let mut fixture = fixture("[http]\ntimeout = '1s'\n").await;
    let closed = Answer { closes: true, ..Answer::of(200) };
    let ways = [
        Way { name: "closed", answer: closed, cause: "refused" },
        status("a conflict", 409, "refused"),
        status("plain HTTP to a TLS port", 400, "refused"),
        status("elsewhere", 302, "refused"),
    ];
    costs_the_refused_event_alone(&mut fixture, &ways).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_machines_among_others_cost_no_event() {
    for is_refused in UNSTEADY {
        let fixture = fixture("").await;
        let requests = AtomicU32::new(0);
        fixture.receiver.answers(move |_| {
            let is_refused = is_refused(requests.fetch_add(1, Ordering::Relaxed));
            Answer::of(if is_refused { 403 } else { 200 })
        });
        costs_no_event(&fixture).await;
    }
}

/// The endpoint takes the former secret, over connections that are open; the new one is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_with_a_former_secret_say_nothing_about_an_event() {
    let fixture = fixture("").await;
    let secret = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(secret.path(), "Bearer former").expect("it is written");
    fixture.receiver.answers(|request| {
        let key = request.header("walpost-key").and_then(|key| key.parse::<u32>().ok());
        let closes = key.is_some_and(|key| key < 6).then(|| ("connection", "close".to_owned()));
        let headers = closes.into_iter().collect();
        let is_former = request.header("authorization") == Some("Bearer former");
        Answer { headers, ..Answer::of(if is_former { 200 } else { 401 }) }
    });
    let command = fixture.command("run").env("WALPOST_HTTP_AUTHORIZATION_FILE", secret.path());
    let walpost = command.args(["--admin-listen", "127.0.0.1:0"]).start();
    let endpoints = Endpoints::of(&walpost).await;
    fixture.insert(60, 60).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    std::fs::write(secret.path(), "Bearer wrong").expect("it is written");
    for round in 1..=6 {
        for key in 0..60 {
            let row = format!(
                "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('order', '{key}', 'placed', '{round}')"
            );
            fixture.inner.postgres.execute(&row).await;
        }
        eventually(LONG_TIMEOUT, "some are tried again and again", async || {
            endpoints.metric("walpost_publish_errors_total", "").await >= 4 * round
        })
        .await;
    }
    std::fs::write(secret.path(), "Bearer former").expect("it is written");
    fixture.confirmed(LONG_TIMEOUT).await;
    fixture.assert_kept(&[]).await;
    stop(walpost).await;
}
