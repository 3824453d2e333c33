//! What a request contains, and in which order requests come.

use std::collections::BTreeSet;
use std::time::Duration;

use walpost_bed::fixture::{LONG_TIMEOUT, stop};

use super::fixture::HttpFixture;
use super::receiver::Answer;
use crate::promise::Promise;

const ROWS: &str = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
                    VALUES ('order', 'Köln 7', 'placed', '{\"n\": 1}', '{\"tenant\": \"eu\"}'), \
                           ('order', 'Köln 7', 'gone', NULL, NULL)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_has_the_parts_of_the_record() {
    let fixture = HttpFixture::new().await;
    let walpost = fixture.run().await;
    fixture.inner.postgres.execute(ROWS).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let requests = fixture.receiver.accepted();
    let [placed, gone] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!((placed.method.as_str(), placed.target.as_str()), ("POST", "/events"));
    assert_eq!(placed.header("host"), Some(fixture.url[7..].trim_end_matches("/events")));
    assert_eq!(&placed.body[..], b"{\"n\": 1}");
    for (name, value) in [
        ("content-type", "application/json"),
        ("walpost-topic", "outbox.event.order"),
        ("walpost-key", "K%C3%B6ln%207"),
        ("event-type", "placed"),
        ("tenant", "eu"),
    ] {
        assert_eq!(placed.header(name), Some(value), "{placed:?}");
    }
    let id = "SELECT id FROM public.outbox ORDER BY n LIMIT 1";
    let id = fixture.inner.postgres.query_text(id).await.expect("a row");
    assert_eq!((placed.header("webhook-id"), placed.header("id")), (Some(&*id), Some(&*id)));
    assert!(placed.header("webhook-timestamp").is_some() && placed.header("user-agent").is_some());
    assert!(placed.header("webhook-signature").is_none());
    assert!(gone.body.is_empty() && gone.header("content-type").is_none(), "a tombstone");
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cloud_events_come_in_both_modes() {
    for (value, content_type, attribute) in [
        ("cloudevents", "application/cloudevents+json; charset=UTF-8", None),
        ("cloudevents-binary", "application/json", Some("placed")),
    ] {
        let toml = format!("[record]\nvalue = '{value}'\n");
        let fixture = HttpFixture::new().await.configured(&toml);
        let walpost = fixture.run().await;
        fixture
            .inner
            .postgres
            .execute(&ROWS.replace(", ('order', 'Köln 7', 'gone', NULL, NULL)", ""))
            .await;
        fixture.confirmed(LONG_TIMEOUT).await;
        let requests = fixture.receiver.accepted();
        assert_eq!(requests[0].header("content-type"), Some(content_type));
        assert_eq!(requests[0].header("ce-type"), attribute);
        if attribute.is_none() {
            let event: serde_json::Value = serde_json::from_slice(&requests[0].body).expect("JSON");
            assert_eq!((&event["type"], &event["data"]["n"]), (&"placed".into(), &1.into()));
        }
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_go_side_by_side_and_each_key_one_by_one() {
    let fixture = HttpFixture::new().await.configured("[http]\nlanes = 8\n");
    let after = Duration::from_millis(50);
    fixture.receiver.answers(move |_| Answer { after, ..Answer::of(202) });
    for _ in 0..5 {
        fixture.insert(100, 20).await;
    }
    let walpost = fixture.run().await;
    fixture.assert_exact().await;
    // One by one, each would come after the answer to the one before.
    let requests = fixture.receiver.accepted();
    let mut times: Vec<_> = requests.iter().map(|request| request.at).collect();
    times.sort_unstable();
    let beside = times.windows(2).filter(|pair| pair[1] - pair[0] < after).count();
    assert!(beside > times.len() / 2, "{beside} of {}", times.len());
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topic_is_part_of_the_url() {
    let mut fixture = HttpFixture::new().await;
    fixture.url = fixture.url.replace("/events", "/hooks/{topic}?from=walpost");
    let walpost = fixture.run().await;
    let row = |kind: &str| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('{kind}', 'a', 'placed', '1')"
        )
    };
    for kind in ["order", "invoice"] {
        fixture.inner.postgres.execute(&row(kind)).await;
    }
    fixture.assert_exact().await;
    let targets: BTreeSet<_> =
        fixture.receiver.accepted().into_iter().map(|request| request.target).collect();
    let of = |kind: &str| format!("/hooks/outbox.event.{kind}?from=walpost");
    assert_eq!(targets, BTreeSet::from([of("order"), of("invoice")]));
    stop(walpost).await;
}

/// A server may close an idle connection at any time, and most do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_idle_connection_is_no_failure() {
    let fixture = HttpFixture::new().await.configured("[http]\nlanes = 1\n");
    let walpost = fixture.run().await;
    for _ in 0..5 {
        fixture.insert(3, 3).await;
        fixture.confirmed(LONG_TIMEOUT).await;
        fixture.receiver.stop().await;
        fixture.receiver.start_again();
    }
    fixture.insert(3, 3).await;
    fixture.assert_exact().await;
    // An idle lane may notice that the server is away for a moment; no request fails.
    let said = walpost.stderr().join("\n");
    assert!(!said.contains("delivery failed") && !said.contains("ERROR"), "{said}");
    stop(walpost).await;
}
