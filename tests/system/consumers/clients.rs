//! What independent clients read of random rows: nats-py, nats.go, pika, redis-py, boto3, and the libraries
//! of `CloudEvents` and Standard Webhooks.
//!
//! `clients/read.py` and `clients/nats` print what each client gives them. Topic, key, id and type are the row's, its
//! own headers arrive, and none of them is in the place of something that walpost writes.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use walpost_bed::foreign::run;
use walpost_bed::{
    Destination, Major, Port, Postgres, SinkFixture, Walpost, eventually, repository,
};

const ROWS: u32 = 200;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Names that a row's headers try to set, in some spelling.
const FORGED: [&str; 19] = [
    "id",
    "event_type",
    "ce_id",
    "ce_type",
    "ce_subject",
    "ce_source",
    "content_type",
    "Status",
    "Description",
    "Nats-Rollup",
    "CC",
    "BCC",
    "cookie",
    "host",
    "webhook-id",
    "walpost-key",
    "walpost.topic",
    "x-forwarded-for",
    "JMS_SQSMessageType",
];

/// Where nobody may find the value of such a header, by the name in lower case.
fn may_not_be(kind: &str, name: &str) -> bool {
    let own = ["id", "event_type"].contains(&name) || name.starts_with("walpost.");
    own || match kind {
        "http" => {
            let prefixes = ["ce-", "webhook-", "walpost-", "x-", "content-"];
            let names = ["cookie", "host", "event-type"];
            names.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
        }
        "nats" => ["status", "description"].contains(&name) || name.starts_with("nats-"),
        "rabbitmq" => ["cc", "bcc", "content-type"].contains(&name),
        "sqs" => name.starts_with("jms_sqs"),
        _ => false,
    }
}

/// What a row is about.
struct Row {
    key: String,
    event_type: String,
    tenant: String,
}

struct Rows {
    sql: String,
    by_id: HashMap<String, Row>,
}

/// Random rows of ids, keys, types and headers that need encoding somewhere.
fn rows(random: &mut fastrand::Rng) -> Rows {
    let signs: Vec<char> = "abcXYZ019%.,\"/é€ +=_-#*".chars().collect();
    let text = |random: &mut fastrand::Rng| {
        let middle: String =
            (0..random.usize(0..10)).map(|_| signs[random.usize(0..signs.len())]).collect();
        format!("i{middle};")
    };
    let mut rows = Rows { sql: String::new(), by_id: HashMap::new() };
    for number in 0..ROWS {
        let id = format!("{number}{}", text(random));
        let row = Row { key: text(random), event_type: text(random), tenant: text(random) };
        let mut headers =
            serde_json::Map::from_iter([("tenant".to_owned(), row.tenant.clone().into())]);
        for name in FORGED {
            if random.bool() {
                continue;
            }
            let separator = ["-", "_", "."][random.usize(0..3)];
            let name = if random.bool() {
                name.replace(['-', '_', '.'], separator)
            } else {
                name.to_owned()
            };
            let name = if random.bool() { name.to_uppercase() } else { name };
            headers.insert(name, "forged".into());
        }
        let values = [&id, &row.key, &row.event_type].map(|value| format!("$v${value}$v$"));
        let [id_text, key, event_type] = values;
        let _ = writeln!(
            rows.sql,
            "INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers) \
             VALUES ({id_text}, 'order', {key}, {event_type}, '{{\"a\": 1}}', $v${}$v$);",
            Value::Object(headers)
        );
        rows.by_id.insert(id, row);
    }
    rows
}

/// The command of Python's clients, with the libraries installed.
fn python() -> Vec<String> {
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    let source = repository().join("tests/system/consumers/clients");
    let script = source.join("read.py").display().to_string();
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--root-user-action=ignore", "--upgrade", "--target"]).arg(&made);
    run(pip.args(["-r", "requirements.txt"]).current_dir(source));
    let [packages, secret] =
        [format!("PYTHONPATH={}", made.display()), format!("RECEIVER_SECRET={SECRET}")];
    vec![packages, secret, "python3".to_owned(), "-B".to_owned(), script]
}

/// That of the client of NATS in Go, built.
fn nats_go() -> Vec<String> {
    let source = repository().join("tests/system/consumers/clients/nats");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients/nats-go");
    let mut go = Command::new("go");
    run(go.args(["build", "-mod=readonly", "-o"]).arg(&program).arg(".").current_dir(source));
    vec![program.display().to_string()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants pip and Go, and fetches packages: make consumers"]
async fn independent_clients_read_what_rows_are_about() {
    let python = python();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for kind in Destination::KINDS {
        let rows = rows(&mut random);
        let reader = [&python[..], &[kind.to_owned()]].concat();
        read_by_client(kind, &reader, &rows).await;
    }
    read_by_client("nats", &nats_go(), &rows(&mut random)).await;
}

/// `reader` reads so many events from a port, and prints them.
async fn read_by_client(kind: &'static str, reader: &[String], rows: &Rows) {
    // The client of HTTP is the receiver itself.
    let destination = if kind == "http" { None } else { Some(Destination::start(kind).await) };
    let receiver = Port::reserve().expect("a port");
    let port = destination.as_ref().map_or(receiver.number(), Destination::port);
    let url = match &destination {
        Some(destination) => destination.url_at(port),
        None => format!("http://127.0.0.1:{port}/"),
    };
    let variables = destination.as_ref().map_or(&[][..], Destination::variables);
    let fixture = SinkFixture::over(Postgres::start(Major::V15).await, kind, url, variables).await;
    if kind == "http" {
        fixture.configure("record.value = 'cloudevents-binary'\n");
    }
    if destination.as_ref().is_some_and(Destination::has_position) {
        fixture.adopt().await;
    }
    fixture.inner.postgres.execute("ALTER TABLE public.outbox ALTER id TYPE text").await;
    fixture.inner.postgres.execute(&rows.sql).await;
    let reader = Walpost::builder("/usr/bin/env")
        .args(reader)
        .args([port.to_string(), ROWS.to_string()])
        .start();
    let mut command = fixture.command("run");
    if kind == "http" {
        command = command.env("WALPOST_HTTP_SECRET", SECRET);
    }
    let walpost = command.start();
    fixture.confirmed(LONG_TIMEOUT).await;
    let status = reader.wait(LONG_TIMEOUT).await.expect("it ends");
    assert!(status.success(), "{kind}: {:?}", reader.stderr());
    eventually(SHORT_TIMEOUT, "all is printed", async || reader.stdout().len() >= ROWS as usize)
        .await;
    let mut seen = HashSet::new();
    for line in reader.stdout() {
        let event: Value = serde_json::from_str(&line).expect("a JSON line");
        let id = event["id"].as_str().expect("an id").to_owned();
        let row = rows.by_id.get(&id).unwrap_or_else(|| panic!("{kind}: no such id in {event}"));
        assert_eq!(event["topic"], "outbox.event.order", "{kind}: {event}");
        assert_eq!(event["key"], *row.key, "{kind}: {event}");
        assert_eq!(event["type"], *row.event_type, "{kind}: {event}");
        assert_eq!(event["headers"]["tenant"], *row.tenant, "{kind}: {event}");
        let headers = event["headers"].as_object().expect("headers");
        for (name, _) in headers.iter().filter(|(_, value)| *value == "forged") {
            assert!(!may_not_be(kind, &name.to_lowercase()), "{kind}: {name} in {event}");
        }
        seen.insert(id);
    }
    assert_eq!(seen.len(), ROWS as usize, "{kind}");
    stop(walpost).await;
}
