//! `pgwire-replication`, a published client of the replication protocol, as the reference for walpost's
//! own session: both read copies of one slot, and get the same messages.

use std::time::Duration;

use pgwire_replication::{ReplicationClient, ReplicationConfig, ReplicationEvent};
use tokio::time::timeout;
use walpost::Lsn;
use walpost::pgoutput::{Begin, Commit, LogicalMessage, Message, PgTimestamp, decode};
use walpost::source::{
    CatchUp, ConnInfoSource, Feed, OpenState, Received, Resume, Source, SourceConfig,
};
use walpost_bed::fixture::LONG_TIMEOUT;
use walpost_bed::{Major, Postgres, corpus};

/// What fills and exceeds the buffers of both, and is in no recording for its size.
const LARGE: &str = "INSERT INTO parted SELECT 9, repeat('x', 3000000);
    INSERT INTO whole SELECT i, i, repeat('y', 1000) FROM generate_series(1, 5000) i;
    SELECT pg_logical_emit_message(true, 'large', repeat('z', 1000000))";

/// What a client got: the messages, and how many bytes of the plugin they were.
#[derive(Debug, Default, PartialEq)]
struct Got {
    messages: Vec<Message>,
    bytes: u64,
}

/// Up to that position, by walpost's session.
async fn by_walpost(postgres: &Postgres, slot: &str, end: Lsn) -> Got {
    walpost::install_crypto_provider();
    let url = postgres.url();
    let conninfo = ConnInfoSource::new(move || {
        let resolved = walpost::conninfo::ConnInfo::resolve(Some(&url), &|_| None);
        resolved.map_err(|error| error.to_string())
    });
    let config = SourceConfig {
        conninfo,
        slot: slot.to_owned(),
        publication: corpus::NAME.to_owned(),
        tables: vec!["public.outbox".parse().expect("a table")],
        typed: false,
        temporary_slot: false,
        catch_up: CatchUp::default(),
        open_state: OpenState::default(),
        wait_until_visible: false,
        messages: true,
        text_prefix: None,
    };
    let opened = config.open(&Resume::AtSlot { waited: None }).await;
    let mut feed = opened.unwrap_or_else(|refused| panic!("{}", refused.error));
    let mut messages = Vec::new();
    loop {
        match feed.next(true).await.expect("the stream lasts") {
            Received::Message(message) => messages.push(message),
            Received::Keepalive(wal_end) if wal_end >= end => break,
            Received::Keepalive(_) => {}
        }
    }
    let bytes = feed.received_bytes();
    feed.close().await;
    Got { messages, bytes }
}

/// The same by the reference.
async fn by_the_reference(postgres: &Postgres, slot: &str, end: Lsn) -> Got {
    let config =
        ReplicationConfig::new("127.0.0.1", "postgres", "", "postgres", slot, corpus::NAME)
            .with_port(postgres.port())
            .with_wakeup_interval(Duration::from_millis(100));
    let mut client = ReplicationClient::connect(config).await.expect("a client");
    let mut got = Got::default();
    loop {
        let event = client.recv().await.expect("the stream lasts").expect("an event");
        let lsn = |lsn: pgwire_replication::Lsn| Lsn::new(lsn.as_u64());
        // It gives the parts of these three, and not the bytes: an `x` for each byte.
        let (message, bytes) = match event {
            ReplicationEvent::XLogData { data, .. } => {
                (decode(&data).expect("a message"), data.len())
            }
            ReplicationEvent::Begin { final_lsn, xid, commit_time_micros } => {
                let commit_time = PgTimestamp::from_micros(commit_time_micros);
                let begin = Begin { commit_lsn: lsn(final_lsn), commit_time, xid };
                (Message::Begin(begin), "Bxxxxxxxxxxxxxxxxxxxx".len())
            }
            ReplicationEvent::Commit { lsn: commit, end_lsn, commit_time_micros } => {
                let commit_time = PgTimestamp::from_micros(commit_time_micros);
                let (commit_lsn, end_lsn) = (lsn(commit), lsn(end_lsn));
                let commit = Commit { commit_lsn, end_lsn, commit_time };
                (Message::Commit(commit), "Cxxxxxxxxxxxxxxxxxxxxxxxxx".len())
            }
            ReplicationEvent::Message { transactional, lsn: at, prefix, content } => {
                let bytes = "Mxxxxxxxxx".len() + prefix.len() + "0xxxx".len() + content.len();
                let message = LogicalMessage { transactional, lsn: lsn(at), prefix, content };
                (Message::Logical(message), bytes)
            }
            ReplicationEvent::KeepAlive { wal_end, .. } if lsn(wal_end) >= end => break,
            ReplicationEvent::KeepAlive { .. } => continue,
            other @ ReplicationEvent::StoppedAt { .. } => panic!("{other:?}"),
        };
        got.messages.push(message);
        got.bytes += bytes as u64;
    }
    client.shutdown().await.expect("it ends");
    got
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_gets_every_message_that_the_reference_gets() {
    for major in Major::ALL {
        let postgres = Postgres::start(major).await;
        let titles = corpus::write(&postgres).await;
        postgres.execute(LARGE).await;
        for copy in ["ours", "theirs"] {
            let copied =
                format!("SELECT pg_copy_logical_replication_slot('{}', '{copy}')", corpus::NAME);
            postgres.execute(&copied).await;
        }
        let end: Lsn = postgres.wal_end().await.parse().expect("an LSN");
        let both = async {
            tokio::join!(
                by_walpost(&postgres, "ours", end),
                by_the_reference(&postgres, "theirs", end)
            )
        };
        let (ours, theirs) = timeout(LONG_TIMEOUT, both).await.expect("both get to the end");
        for (at, pair) in ours.messages.iter().zip(&theirs.messages).enumerate() {
            assert_eq!(pair.0, pair.1, "PostgreSQL {}, message {at}", major.number());
        }
        assert_eq!(ours.messages.len(), theirs.messages.len());
        assert_eq!(ours.bytes, theirs.bytes, "PostgreSQL {}", major.number());
        let begun = ours.messages.iter().filter(|message| matches!(message, Message::Begin(_)));
        assert!(begun.count() > titles.len(), "the large transaction as well");
    }
}
