//! Slots that are not prepared for a failover to a standby.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use walpost_bed::Major;

use crate::fixture::{Fixture, sound};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_without_failover_is_reported() {
    let fixture = Fixture::on(sound(Major::V17)).await;
    fixture.check().await.is_clean();
    fixture.execute("SELECT pg_create_physical_replication_slot('standby1')").await;
    // The slot keeps its position.
    let position =
        "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'walpost'";
    let before = fixture.postgres.query_text(position).await;
    fixture.finding_is_fixed("warning", "slot_failover").await;
    assert_eq!(fixture.postgres.query_text(position).await, before);
    // Events must not be published before the standby has them.
    let report = fixture.finding_is_fixed("warning", "synchronized_standby_slots").await;
    report.finding("ok", "slot_failover");
    // No standby uses that slot: all delivery would wait for it.
    fixture.finding_is_fixed("warning", "synchronized_standby_slots_inactive").await;
    fixture.psql("ALTER SYSTEM SET synchronized_standby_slots = 'gone'; SELECT pg_reload_conf();");
    fixture.finding_is_fixed("error", "synchronized_standby_slots_missing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_standby_slots_are_reported() {
    let mut fixture = Fixture::on(sound(Major::V17)).await;
    fixture.log_in_as("walpost");
    fixture.check().await.finding("ok", "slot_failover");
    let _standby = standby(&fixture).await;
    let report = fixture.check().await;
    let finding = report.finding("skipped", "slot_failover");
    assert!(finding["what"].as_str().is_some_and(|it| it.contains("role walpost")), "{finding}");
    fixture.psql(finding["fix"].as_str().expect("SQL"));
    // With these privileges it sees only that there is one.
    fixture.finding_is_fixed("warning", "slot_failover").await;
}

/// A session that reads the WAL as a standby without a slot does.
async fn standby(fixture: &Fixture) -> TcpStream {
    let flushed = "SELECT pg_current_wal_flush_lsn()";
    let flushed = fixture.postgres.query_text(flushed).await.expect("a position");
    let mut stream =
        TcpStream::connect(("127.0.0.1", fixture.postgres.port())).await.expect("it listens");
    let parameters = b"\0\x03\0\0user\0postgres\0replication\0true\0application_name\0standby1\0\0";
    let length = u32::try_from(parameters.len() + 4).expect("it is short");
    let begin = [&length.to_be_bytes()[..], parameters].concat();
    stream.write_all(&begin).await.expect("it is read");
    until(&mut stream, b'Z').await;
    let query = format!("START_REPLICATION PHYSICAL {flushed}\0");
    let length = u32::try_from(query.len() + 4).expect("it is short");
    let query = [b"Q", &length.to_be_bytes()[..], query.as_bytes()].concat();
    stream.write_all(&query).await.expect("it is read");
    until(&mut stream, b'W').await;
    stream
}

/// Reads messages until one of this kind.
async fn until(stream: &mut TcpStream, wanted: u8) {
    loop {
        let kind = stream.read_u8().await.expect("a message");
        let length = stream.read_u32().await.expect("its length");
        let mut body = vec![0; length as usize - 4];
        stream.read_exact(&mut body).await.expect("its body");
        assert_ne!(kind, b'E', "{}", String::from_utf8_lossy(&body));
        if kind == wanted {
            return;
        }
    }
}
