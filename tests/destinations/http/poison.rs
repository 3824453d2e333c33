//! Undeliverable events, with each policy.

use walpost_bed::fixture::{LONG_TIMEOUT, insert, stop};

use super::fixture::HttpFixture;
use super::receiver::{Answer, Receiver};

/// A receiver that rejects events of type `bad` and `large`, in the middle of others of their keys.
async fn staged(policy: &str) -> HttpFixture {
    let receiver = Receiver::start();
    receiver.answers(|request| match request.header("event-type") {
        _ if request.target.contains("dead") => Answer::of(200),
        Some("bad") => Answer { body: "no such order".to_owned(), ..Answer::of(422) },
        Some("large") => Answer::of(413),
        _ => Answer::of(200),
    });
    let mut fixture = HttpFixture::with(receiver).await;
    fixture.url = fixture.url.replace("/events", "/{topic}");
    let toml = format!(
        "[poison]\nrefused = '{policy}'\ntoo_large = '{policy}'\ndead_letter_topic = 'dead'\n"
    );
    let fixture = fixture.configured(&toml);
    let bad = |kind: &str| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('order', '1', '{kind}', '1')"
        )
    };
    let rows = [insert(3, 3), bad("bad"), insert(3, 3), bad("large"), insert(3, 3)];
    for row in rows {
        fixture.inner.postgres.execute(&row).await;
    }
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_halt_stops_before_the_event_for_its_key() {
    let fixture = staged("halt").await;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("422") && said.contains("no such order"), "{said}");
    // Nothing of the same key passed it.
    let behind = fixture.receiver.accepted();
    let behind = behind.iter().filter(|request| request.header("walpost-key") == Some("1"));
    let placed = "SELECT count(*) FROM outbox WHERE aggregate_id = '1' AND event_type = 'placed' \
                  AND n < (SELECT n FROM outbox WHERE event_type = 'bad')";
    let before = fixture.inner.postgres.query_text(placed).await.expect("a count");
    let ids: std::collections::BTreeSet<_> =
        behind.filter_map(|request| request.header("webhook-id")).map(str::to_owned).collect();
    assert_eq!(ids.len().to_string(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_skip_delivers_the_others() {
    let fixture = staged("skip").await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(accepted(&fixture, "outbox.event.order").len(), 9);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_go_to_their_own_url() {
    let fixture = staged("dead_letter").await;
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(accepted(&fixture, "outbox.event.order").len(), 9);
    assert_eq!(accepted(&fixture, "dead").len(), 2);
    let letters = fixture.receiver.accepted();
    let letter = letters.iter().find(|request| request.target == "/dead").expect("a letter");
    assert_eq!(letter.header("walpost.cause"), Some("refused"));
    stop(walpost).await;
}

/// Found before anything is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_that_a_request_cannot_have_is_undeliverable() {
    let fixture = HttpFixture::new().await.configured("[poison]\nrefused = 'skip'\n");
    let row = |headers: &str| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
                 VALUES ('order', '1', 'x', '1', '{headers}')"
        )
    };
    for headers in [r#"{"Host": "evil"}"#, r#"{"a b": "c"}"#, r#"{"a": "x\r\ny: z"}"#] {
        fixture.inner.postgres.execute(&row(headers)).await;
    }
    let walpost = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let accepted = fixture.receiver.accepted();
    assert_eq!(accepted.len(), 1, "{accepted:?}");
    assert_eq!((accepted[0].header("a"), accepted[0].header("y")), (Some("x%0D%0Ay:%20z"), None));
    stop(walpost).await;
}
