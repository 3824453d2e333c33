//! The destinations beside Kafka keep what they have acknowledged, and are read from any position.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use walpost_bed::{Destination, ReadPosition};

const MINUTE: Duration = Duration::from_secs(60);

/// Publishes an event of the topic `outbox.t`, and returns once that is acknowledged.
async fn publish(destination: &Destination, id: &str) {
    match destination {
        Destination::Redis(redis) => {
            let _: String = redis
                .command(&format!("XADD outbox * topic outbox.t header:id {id} value x"))
                .await;
        }
        Destination::Nats(nats) => {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("id", id);
            let client = nats.client().await;
            let sent = client.request_with_headers("outbox.t", headers, "x".into()).await;
            sent.expect("an acknowledgement");
        }
        Destination::RabbitMq(queues) => queues.rabbit().publish("outbox", "outbox.t", id).await,
        Destination::Http(receiver) => {
            let mut stream = TcpStream::connect(("127.0.0.1", receiver.port())).await.unwrap();
            assert!(request(&mut stream, id).await.starts_with("HTTP/1.1 204"));
        }
        Destination::Sqs(elasticmq) => {
            let text = |value: &str| json!({ "DataType": "String", "StringValue": value });
            let message = json!({
                "QueueUrl": elasticmq.queue_url("outbox.fifo"),
                "MessageBody": "x",
                "MessageGroupId": "t",
                "MessageDeduplicationId": id,
                "MessageAttributes": { "walpost.topic": text("outbox.t"), "id": text(id) },
            });
            elasticmq.call("SendMessage", &message).await;
        }
    }
}

/// A request as walpost sends it; the answer.
async fn request(stream: &mut TcpStream, id: &str) -> String {
    let request = format!(
        "POST /events HTTP/1.1\r\nhost: x\r\nWebhook-Id: {id}\r\nwalpost-topic: outbox.t\r\n\
         content-length: 1\r\n\r\nx"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 256];
    let count = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

async fn ids(destination: &Destination, position: &ReadPosition) -> Vec<String> {
    let records = destination.records_after(position).await;
    let id = |record: &walpost_bed::Consumed| {
        assert_eq!((&*record.topic, record.value_text()), ("outbox.t", Some("x")));
        record.header("id").unwrap().to_owned()
    };
    records.iter().map(id).collect()
}

#[tokio::test]
async fn acknowledged_events_survive_kills_and_are_read_from_any_position() {
    for kind in Destination::KINDS {
        let destination = Destination::start(kind).await;
        let beginning = destination.end().await;
        let mut followed = destination.follow().await;
        publish(&destination, "one").await;
        let middle = destination.end().await;
        publish(&destination, "two").await;
        for id in ["one", "two"] {
            let record = tokio::time::timeout(MINUTE, followed.recv()).await.unwrap().unwrap();
            assert_eq!(record.header("id"), Some(id), "{kind}");
        }
        destination.kill9().await;
        destination.start_again().await;
        publish(&destination, "three").await;
        assert!(destination.stop(MINUTE).await, "{kind}");
        destination.start_again().await;
        for start in [&beginning, &ReadPosition::default()] {
            assert_eq!(ids(&destination, start).await, ["one", "two", "three"], "{kind}");
        }
        assert_eq!(ids(&destination, &middle).await, ["two", "three"], "{kind}");
        assert!(ids(&destination, &destination.end().await).await.is_empty(), "{kind}");
    }
}

#[tokio::test]
async fn frozen_receiver_accepts_a_request_after_it_is_thawed() {
    let destination = Destination::start("http").await;
    let mut stream = TcpStream::connect(("127.0.0.1", destination.port())).await.unwrap();
    assert!(request(&mut stream, "one").await.starts_with("HTTP/1.1 204"));
    destination.pause();
    let mut late = Box::pin(request(&mut stream, "two"));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut late).await;
    assert!(early.is_err(), "a frozen receiver answered: {early:?}");
    destination.resume();
    assert!(late.await.starts_with("HTTP/1.1 204"));
    assert_eq!(ids(&destination, &ReadPosition::default()).await, ["one", "two"]);
}
