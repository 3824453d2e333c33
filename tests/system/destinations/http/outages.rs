//! The endpoint is slow, busy or wrong: walpost sends everything in order once the endpoint takes it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use walpost_bed::{Endpoints, eventually};

use super::fixture::HttpFixture;
use super::receiver::{Answer, Received};
use crate::kills;
use crate::promise::Promise;

const RECOVERED: &str = "delivering to the HTTP endpoint again";

/// One answer of three is an error that passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_server_gets_everything_once_and_in_order() {
    let fixture = HttpFixture::new().await;
    let count = AtomicU32::new(0);
    fixture.receiver.answers(move |_| {
        let statuses = [503, 200, 429, 200, 200, 500, 200, 408, 200];
        Answer::of(statuses[count.fetch_add(1, Ordering::Relaxed) as usize % statuses.len()])
    });
    let walpost = fixture.run().await;
    for _ in 0..5 {
        fixture.insert(20, 7).await;
    }
    fixture.assert_exact().await;
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_whose_events_fail_holds_up_no_other() {
    let fixture = HttpFixture::new().await.configured("[http]\nlanes = 1\n");
    let failing = |request: &Received| request.header("walpost-key") == Some("0");
    fixture.receiver.answers(move |request| Answer::of(if failing(request) { 503 } else { 200 }));
    let walpost = fixture.run().await;
    fixture.insert(100, 10).await;
    eventually(LONG_TIMEOUT, "the others are delivered", async || {
        let accepted = fixture.receiver.accepted().len();
        if accepted == 90 { Ok(()) } else { Err(accepted) }
    })
    .await;
    let tried = fixture.receiver.requests().into_iter().filter(failing);
    let bodies: BTreeSet<_> = tried.map(|request| request.body).collect();
    assert_eq!(bodies.len(), 1, "what follows it waits");
    fixture.receiver.answers(|_| Answer::of(200));
    fixture.assert_exact().await;
    walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
    stop(walpost).await;
}

/// It is another lane, and another kind of failure, in which the event is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_outage_is_reported_and_ends() {
    let fixture = HttpFixture::new().await;
    let walpost = fixture.run().await;
    for (count, is_away) in [(1, true), (2, false), (3, true), (4, false)] {
        let mark = walpost.mark();
        fixture.receiver.answers(|_| Answer::of(503));
        if is_away {
            fixture.receiver.stop().await;
        }
        fixture.insert(1, 1).await;
        if is_away {
            walpost.await_line_after(mark, "server of http.url runs", SHORT_TIMEOUT).await;
            fixture.receiver.start_again();
        }
        walpost.await_line_after(mark, "answered 503", SHORT_TIMEOUT).await;
        fixture.receiver.answers(|_| Answer::of(200));
        walpost.await_line_after(mark, RECOVERED, LONG_TIMEOUT).await;
        fixture.confirmed(SHORT_TIMEOUT).await;
        assert_eq!(fixture.receiver.accepted().len(), count);
    }
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_that_the_server_asks_for_is_kept() {
    let fixture = HttpFixture::new().await;
    let count = AtomicU32::new(0);
    fixture.receiver.answers(move |_| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Answer { headers: vec![("retry-after", "2".to_owned())], ..Answer::of(503) },
        _ => Answer::of(200),
    });
    let walpost = fixture.run().await;
    fixture.insert(1, 1).await;
    walpost.await_line("retry-after: 2 s", SHORT_TIMEOUT).await;
    fixture.assert_exact().await;
    let requests = fixture.receiver.requests();
    assert!(requests[1].at - requests[0].at >= Duration::from_secs(2));
    stop(walpost).await;
}

/// An earlier request of the event may still be at work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflict_that_passes_is_no_reason_to_skip_the_event() {
    let fixture = HttpFixture::new().await.configured("[poison]\nrefused = 'skip'\n");
    let count = AtomicU32::new(0);
    fixture.receiver.answers(move |_| match count.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => Answer::of(409),
        _ => Answer::of(200),
    });
    let walpost = fixture.run().await;
    fixture.insert(3, 1).await;
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// The head of an answer says that the endpoint has the event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_is_sent_once_though_the_body_of_the_answer_does_not_end() {
    let fixture = HttpFixture::new().await;
    fixture.receiver.answers(|_| Answer { is_endless: true, ..Answer::of(200) });
    let walpost = fixture.run().await;
    fixture.insert(3, 1).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.receiver.requests().len(), 3);
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// What is wrong for every event is not the fault of one: nothing is skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_url_is_said_and_waited_for() {
    let fixture = HttpFixture::new().await.configured("[poison]\nrefused = 'skip'\n");
    for (status, advice) in
        [(404, "correct http.url"), (410, "wants no events any more"), (308, "redirects")]
    {
        fixture.receiver.answers(move |_| Answer { body: "b0dy".into(), ..Answer::of(status) });
        let walpost = fixture.run().await;
        fixture.insert(3, 3).await;
        let line = walpost.await_line(advice, SHORT_TIMEOUT).await;
        assert!(line.contains(&status.to_string()) && !line.contains("b0dy"), "{line}");
        fixture.receiver.answers(|_| Answer::of(200));
        fixture.confirmed(LONG_TIMEOUT).await;
        fixture.assert_kept(&[]).await;
        walpost.await_line(RECOVERED, SHORT_TIMEOUT).await;
        stop(walpost).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_that_does_not_come_is_waited_for_no_longer_than_configured() {
    let fixture = HttpFixture::new().await.configured("[http]\ntimeout = '300ms'\n");
    let walpost = fixture.run().await;
    fixture.insert(1, 1).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let (sender, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    fixture.receiver.answers(move |_| {
        sender.send(Instant::now()).expect("the test waits");
        Answer { after: Duration::from_secs(60), ..Answer::of(200) }
    });
    fixture.insert(1, 1).await;
    walpost.await_line("no answer within 300ms", SHORT_TIMEOUT).await;
    // It is not sent again at once, as after a lost connection.
    let first = arrivals.recv().await.expect("a request");
    let pause = arrivals.recv().await.expect("another one") - first;
    assert!(pause >= Duration::from_millis(400), "{pause:?}");
    fixture.receiver.answers(|_| Answer::of(200));
    fixture.confirmed(LONG_TIMEOUT).await;
    assert_eq!(fixture.receiver.accepted().len(), 2);
    stop(walpost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_names_what_is_wrong_now() {
    let fixture = HttpFixture::new().await;
    fixture.receiver.stop().await;
    fixture.insert(3, 3).await;
    let walpost = fixture.command("run").args(["--admin-listen", "127.0.0.1:0"]).start();
    let endpoints = Endpoints::of(&walpost).await;
    let (closed, forbidden) = ("Connection refused", "403");
    for (part, other) in [(closed, forbidden), (forbidden, closed), (closed, forbidden)] {
        eventually(LONG_TIMEOUT, part, async || {
            let (is_ready, text) = endpoints.readiness().await;
            let is_named = !is_ready && text.contains(part) && !text.contains(other);
            if is_named { Ok(()) } else { Err(text) }
        })
        .await;
        if part == closed {
            fixture.receiver.answers(|_| Answer::of(403));
            fixture.receiver.start_again();
        } else {
            fixture.receiver.stop().await;
        }
    }
    fixture.receiver.answers(|_| Answer::of(200));
    fixture.assert_exact().await;
    stop(walpost).await;
}

/// It knows then that another one has the slot, and has delivered what it still has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thawed_walpost_sends_little_behind_another_one() {
    const ROWS: u32 = 5000;
    let fixture = HttpFixture::new().await;
    let received = || fixture.receiver.requests().len();
    fixture.receiver.answers(|_| Answer { after: Duration::from_millis(10), ..Answer::of(200) });
    let frozen = fixture.run().await;
    fixture.insert(ROWS, 50).await;
    eventually(LONG_TIMEOUT, "it sends", async || received() > 100).await;
    frozen.pause();
    kills::end_sessions(&fixture).await;
    let other = fixture.run().await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let before = received();
    frozen.resume();
    frozen.await_line("another walpost advanced the slot", LONG_TIMEOUT).await;
    fixture.insert(10, 10).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    let repeats = received() - before;
    assert!(repeats < ROWS as usize / 4, "{repeats}");
    fixture.judge_with(&[]).await.assert_ok();
    frozen.kill9().await;
    stop(other).await;
}
