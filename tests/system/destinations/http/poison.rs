//! Events that an endpoint rejects, or that cannot be requests.

use walpost_bed::Nginx;
use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::HttpFixture;
use super::receiver::Answer;
use super::security::{is_signed, secret};
use crate::poison::{Poison, Poisonous};
use crate::promise::Promise as _;

impl Poisonous for HttpFixture {
    const POISON: &[Poison] = &[
        Poison {
            row: "(aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('order', '1', 'bad', '1')",
            cause: "refused",
            reason: "answered 422",
            has_own_key: false,
        },
        Poison {
            row: "(aggregate_type, aggregate_id, event_type, payload) \
                  VALUES ('order', '1', 'bad-large', '1')",
            cause: "too_large",
            reason: "answered 413",
            has_own_key: false,
        },
    ];
}

impl HttpFixture {
    /// Rejects some types of events, in the middle of others of their keys.
    pub async fn poisoned() -> Self {
        let mut fixture = Self::new().await;
        fixture.receiver.answers(|request| match request.header("event-type") {
            _ if request.target.contains("dead") => Answer::of(200),
            Some("bad") => Answer::of(422),
            Some("bad-large") => Answer::of(413),
            _ => Answer::of(200),
        });
        fixture.url = fixture.url.replace("/events", "/{topic}");
        fixture
    }
}

async fn staged() -> HttpFixture {
    let fixture = HttpFixture::poisoned().await;
    fixture.configure("poison.refused = 'dead_letter'\npoison.dead_letter_topic = 'dead'\n");
    fixture.insert(3, 3).await;
    fixture.insert_poison(&HttpFixture::POISON[0]).await;
    fixture.insert(6, 3).await;
    fixture
}

fn accepted(fixture: &HttpFixture, topic: &str) -> Vec<String> {
    let requests = fixture.receiver.accepted().into_iter();
    let of = requests.filter(|request| request.target == format!("/{topic}"));
    let mut ids: Vec<_> = Vec::new();
    for id in of.filter_map(|request| request.header("webhook-id").map(str::to_owned)) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// And come with all that they are about, behind nginx too, and signed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_go_to_their_own_url() {
    let mut fixture = staged().await;
    let nginx = Nginx::before(fixture.receiver.port()).await;
    fixture.url = format!("http://127.0.0.1:{}/{{topic}}", nginx.port());
    let walpost = fixture.command("run").env("WALPOST_HTTP_SECRET", secret(0)).start();
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(accepted(&fixture, "outbox.event.order").len(), 9);
    assert_eq!(accepted(&fixture, "dead").len(), 1);
    let letters = fixture.receiver.accepted();
    let mut letters = letters.iter().filter(|request| request.target == "/dead");
    let letter =
        letters.find(|letter| letter.header("walpost-cause") == Some("refused")).expect("a letter");
    assert!(is_signed(letter, 0));
    let body: serde_json::Value = serde_json::from_slice(&letter.body).expect("JSON");
    let id = "SELECT id::text FROM public.outbox WHERE event_type = 'bad'";
    let id = fixture.inner.postgres.query_text(id).await.expect("a row");
    for (member, value) in [
        ("cause", "refused"),
        ("id", &*id),
        ("key", "1"),
        ("event_type", "bad"),
        ("source_topic", "outbox.event.order"),
        ("payload", "1"),
    ] {
        assert_eq!(body[member], value, "{body}");
    }
    assert_eq!(body["position"].as_str(), letter.header("walpost-position"), "{body}");
    assert!(body["error"].as_str().is_some_and(|text| text.contains("422")), "{body}");
    stop(walpost).await;
}

/// A firewall that refuses the payload refuses it in a dead letter too: that ends, with a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_that_is_refused_as_its_event_was_halts() {
    let fixture = staged().await;
    fixture.receiver.answers(|request| match request.header("event-type") {
        Some("placed") => Answer::of(200),
        _ => Answer::of(403),
    });
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    let id = "SELECT id::text FROM public.outbox WHERE event_type = 'bad'";
    let id = fixture.inner.postgres.query_text(id).await.expect("a row");
    for part in [&*id, "403", "topic `dead`", "its dead letter", "poison.refused"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(accepted(&fixture, "dead").is_empty());
}

/// Found before anything is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_request_is_undeliverable() {
    let fixture = HttpFixture::new().await.configured("[poison]\nrefused = 'skip'\n");
    let postgres = &fixture.inner.postgres;
    postgres.execute("ALTER TABLE outbox ALTER id TYPE text").await;
    let row = |id: &str, headers: &str| {
        format!(
            "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers) \
                 VALUES ('{id}', 'order', '1', 'x', '1', '{headers}')"
        )
    };
    for (id, headers) in [("", "{}"), ("7.b%", r#"{"a b": "c", "a": "x\r\ny: z"}"#)] {
        postgres.execute(&row(id, headers)).await;
    }
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let accepted = fixture.receiver.accepted();
    assert_eq!(accepted.len(), 1, "{accepted:?}");
    assert_eq!((accepted[0].header("a"), accepted[0].header("y")), (Some("x%0D%0Ay:%20z"), None));
    assert_eq!(accepted[0].header("webhook-id"), Some("7%2Eb%25"));
    assert!(walpost.said("its id is empty") && walpost.said("dropped"), "{:?}", walpost.stderr());
    stop(walpost).await;
}
