//! A receiver of walpost's requests that acts once on each event: it adds up what each customer has
//! ordered.
//!
//!     RECEIVER_SECRET=whsec_… cargo run --example http_receiver -- \
//!         127.0.0.1:8000 order_placed postgres://postgres@localhost/billing
//!
//! The address to listen on, the type of the events to act on, and the receiver's own database,
//! which has the tables of `sql/consumer_dedupe.sql` and `examples/consumers/turnover.sql`. The
//! event's id is stored with the effects, in one transaction; only then the request is answered.
//!
//! walpost runs with `record.value = "cloudevents"`: the body is a `CloudEvent`, which has the
//! event's type and key (its `subject`). The signature covers the body and the id, and no other
//! header, so the receiver acts on nothing else.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ring::hmac;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls, Transaction};

/// The largest event that is taken, in bytes.
const LARGEST: usize = 1 << 20;

/// How far the time of a request may be from ours: an older one is a repeat by somebody else.
const TOLERANCE: Duration = Duration::from_secs(300);

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, kind, database] = arguments.as_slice() else {
        bail!("usage: http_receiver ADDRESS TYPE DATABASE");
    };
    let secret = std::env::var("RECEIVER_SECRET").context("RECEIVER_SECRET is not set")?;
    let listener = TcpListener::bind(address).await?;
    receive(listener, &secret, kind, database).await
}

/// Receives requests, until an error, and acts on the events of a type.
pub(crate) async fn receive(
    listener: TcpListener,
    secret: &str,
    kind: &str,
    database: &str,
) -> anyhow::Result<()> {
    let secret = STANDARD.decode(secret.strip_prefix("whsec_").unwrap_or(secret))?;
    let key = Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &secret));
    let (client, connection) = tokio_postgres::connect(database, NoTls).await?;
    // It ends with its client; an error there shows at the client.
    tokio::spawn(connection);
    // No other schema can replace PostgreSQL's functions, operators and types.
    client.batch_execute("SET search_path = pg_catalog, pg_temp").await?;
    let database = Arc::new(Mutex::new(client));
    loop {
        let (stream, _) = listener.accept().await?;
        let (key, database, kind) = (Arc::clone(&key), Arc::clone(&database), kind.to_owned());
        let service = service_fn(move |request| {
            let (key, database, kind) = (Arc::clone(&key), Arc::clone(&database), kind.clone());
            async move {
                let status = take(&key, &database, &kind, request).await.unwrap_or_else(|error| {
                    eprintln!("{error:#}");
                    // walpost sends the event again.
                    StatusCode::INTERNAL_SERVER_ERROR
                });
                Response::builder().status(status).body(Full::<Bytes>::default())
            }
        });
        let connection = hyper::server::conn::http1::Builder::new();
        tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
    }
}

/// Takes one event; returns the status to answer.
async fn take(
    key: &hmac::Key,
    database: &Mutex<Client>,
    kind: &str,
    request: Request<Incoming>,
) -> anyhow::Result<StatusCode> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, LARGEST).collect().await else {
        return Ok(StatusCode::PAYLOAD_TOO_LARGE);
    };
    let body = body.to_bytes();
    if !is_signed(key, &head.headers, &body) {
        return Ok(StatusCode::UNAUTHORIZED);
    }
    // Only what is signed: the body, and the id.
    let event: Value = serde_json::from_slice(&body)?;
    if event["type"] != kind {
        return Ok(StatusCode::NO_CONTENT);
    }
    let id = event["id"].as_str().context("the event has no id")?;
    let mut database = database.lock().await;
    let transaction = database.transaction().await?;
    let sql = "INSERT INTO public.processed_events (consumer, event_id)
               VALUES ('billing', $1)
               ON CONFLICT DO NOTHING";
    if transaction.execute(sql, &[&id]).await? == 1 {
        act(&transaction, &event["data"]).await?;
    }
    transaction.commit().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whether walpost has sent the request, and has done so just now.
fn is_signed(key: &hmac::Key, headers: &HeaderMap, body: &[u8]) -> bool {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let parts = (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"));
    let (Some(id), Some(seconds), Some(signatures)) = parts else { return false };
    let sent = UNIX_EPOCH + Duration::from_secs(seconds.parse().unwrap_or(0));
    let now = SystemTime::now();
    let apart = now.duration_since(sent).unwrap_or_else(|error| error.duration());
    let content = [id.as_bytes(), b".", seconds.as_bytes(), b".", body].concat();
    // While the secret changes, there are two.
    apart < TOLERANCE
        && signatures.split(' ').any(|signature| {
            let tag = signature.strip_prefix("v1,").and_then(|tag| STANDARD.decode(tag).ok());
            tag.is_some_and(|tag| hmac::verify(key, &content, &tag).is_ok())
        })
}

/// What the event is to cause, in the same transaction.
async fn act(transaction: &Transaction<'_>, order: &Value) -> anyhow::Result<()> {
    // An order that is placed names its customer, and one that is paid does not.
    let sql = "INSERT INTO public.turnover AS sum (customer, orders, total_cents)
               SELECT placed ->> 'customer', 1, (placed ->> 'total_cents')::bigint
                 FROM (SELECT $1::text::jsonb AS placed) AS event
                WHERE placed ->> 'customer' IS NOT NULL
               ON CONFLICT (customer)
               DO UPDATE SET orders = sum.orders + 1,
                             total_cents = sum.total_cents + excluded.total_cents";
    transaction.execute(sql, &[&order.to_string()]).await?;
    Ok(())
}
