//! The page at `/` for browsers.

use walpost_bed::fixture::{Fixture, stop};

use super::endpoints::Answering;

/// A page for people; what programs ask for is the same with it and without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn browsers_get_a_page_unless_it_is_off() {
    let fixture = Fixture::new().await;
    let request = |path: &str, accept: &str| {
        format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n")
    };
    for (page, is_shown) in [("on", true), ("off", false)] {
        let run = fixture.command("run").env("WALPOST_ADMIN_PAGE", page);
        let answering = Answering::over(run).await;
        answering.await_ready(200).await;
        let text = answering.raw(&request("/", "*/*")).await;
        assert!(text.contains("/livez    200"), "{text}");
        let answer = answering.raw(&request("/", "text/html,*/*;q=0.8")).await;
        let head = answer.to_lowercase();
        assert_eq!(head.contains("content-security-policy: default-src 'self';"), is_shown);
        assert_eq!(answer.contains("<h1 class=\"good\">Delivering</h1>"), is_shown);
        assert_eq!(answer.contains("source.slot</th><td>walpost</td>"), is_shown, "{answer}");
        for (path, content) in [("/page.css", "text/css"), ("/page.js", "text/javascript")] {
            let answer = answering.raw(&request(path, "*/*")).await;
            assert_eq!(answer.contains(content) && answer.starts_with("HTTP/1.0 200"), is_shown);
        }
        let foreign = request("/", "text/html").replace("localhost", "evil.example");
        assert!(answering.raw(&foreign).await.starts_with("HTTP/1.0 421"));
        stop(answering.walpost).await;
    }
}
