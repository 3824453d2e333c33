//! Halts with exit code 3 combined with signals, an unavailable Kafka, or a standby instance (36,
//! 38, 39, 40). The reason is logged, the exit code stays, and nothing that only walpost holds is
//! discarded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tokio_postgres::{NoTls, connect};
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT, SHORT_TIMEOUT, ended, insert, proxied};
use walpost_bed::oracle::{Verdict, judge};
use walpost_bed::{Kafka, Major, Postgres, Proxy, Walpost, eventually, unchanged, under_load};

use super::retain_published;
use super::slot::{ADVANCE, at_rest, many_transactions, slow_in_batches};
use crate::case::{Case, CaseReport};

const DROP: &str = "pg_drop_replication_slot('walpost')";

/// It has the slot for a moment only: while another client has it, walpost cannot advance it, and loses its
/// temporary copy, whether the slot has moved or not.
const ADVANCE_A_LITTLE: &str = "pg_replication_slot_advance('walpost', (SELECT confirmed_flush_lsn + \
    1048576 FROM pg_replication_slots WHERE slot_name = 'walpost'))";

/// The advisory lock by which an instance announces a halt: `walh`.
const ANNOUNCED: &str = "SELECT count(*)::text FROM pg_locks \
     WHERE locktype = 'advisory' AND classid = 2002873448";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(38, "signal_while_announcing_a_halt_hides_no_advanced_slot", |report| {
            signalled_while_opening(report, 1)
        })
        .long(),
        Case::new(38, "two_signals_while_announcing_a_halt_hide_no_advanced_slot", |report| {
            signalled_while_opening(report, 2)
        }),
        Case::new(39, "two_signals_hide_no_publication_change", signalled_in_a_session),
        Case::new(
            40,
            "publication_change_found_by_the_final_check_stops_the_standby",
            found_at_the_end,
        ),
        Case::new(38, "standby_halts_after_another_client_used_the_slot", |report| {
            read_between(report, false)
        }),
        Case::new(38, "active_instance_halts_after_another_client_used_the_slot", |report| {
            read_between(report, true)
        }),
        Case::new(38, "signal_while_judging_an_advanced_slot_is_no_clean_stop", |report| {
            signalled_while_judging(report, 1)
        }),
        Case::new(38, "two_signals_while_judging_an_advanced_slot_are_no_clean_stop", |report| {
            signalled_while_judging(report, 2)
        }),
        Case::new(38, "set_role_does_not_hide_a_halt", |report| with_roles(report, "same", "same")),
        Case::new(38, "instance_of_another_role_warns_that_it_sees_no_halt", |report| {
            with_roles(report, "one", "other")
        }),
        Case::new(38, "application_name_does_not_hide_a_halt", with_names),
        Case::new(40, "shutdown_does_not_wait_for_a_frozen_standby", with_a_frozen_standby),
        Case::new(40, "shutdown_while_announcing_to_a_silent_server_ends", |report| {
            shown_to_a_silent_server(report, true)
        }),
        Case::new(40, "announcement_to_a_silent_server_ends", |report| {
            shown_to_a_silent_server(report, false)
        })
        .long(),
        Case::new(38, "shutdown_while_publishing_the_slot_copy_is_announced", stopped_in_the_copy),
        Case::new(
            38,
            "foreign_lock_does_not_hide_a_halt_from_the_standby",
            announced_despite_a_lock,
        ),
        Case::new(38, "shutdown_before_detecting_an_advanced_slot_is_not_clean", stopped_unseen),
        Case::new(
            38,
            "backlog_of_a_slot_used_and_advanced_is_published_once_kafka_recovers",
            used_and_away,
        )
        .long(),
        Case::new(
            36,
            "backlog_of_a_dropped_slot_is_published_once_kafka_recovers",
            dropped_and_away,
        )
        .long(),
        Case::new(
            36,
            "in_flight_records_of_a_dropped_slot_are_published_once_kafka_recovers",
            in_flight,
        ),
        Case::new(36, "abandoned_events_are_counted", abandoned),
    ]
}

async fn announced(fixture: &Fixture) {
    eventually(SHORT_TIMEOUT, "the halt is announced", async || {
        fixture.postgres.query_text(ANNOUNCED).await.as_deref() == Some("1")
    })
    .await;
}

/// A fixture with brokers of its own, which can be frozen.
async fn with_kafka() -> (Kafka, Fixture) {
    let kafka = Kafka::start().await;
    let fixture = Fixture::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    (kafka, fixture)
}

/// Freezes Kafka, and waits until everything acknowledged is confirmed: walpost has no reason to
/// check the slot.
async fn freeze(kafka: &Kafka, fixture: &Fixture) {
    kafka.pause();
    unchanged(Duration::from_secs(1), LONG_TIMEOUT, async || fixture.confirmed_flush().await).await;
}

/// walpost in a catch-up read, while Kafka does not answer any more: see [`freeze`].
async fn frozen_in_a_backlog() -> (Kafka, Fixture, Walpost) {
    let (kafka, fixture) = with_kafka().await;
    fixture.postgres.execute(&many_transactions(400)).await;
    let walpost = slow_in_batches(&fixture);
    walpost.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
    let begun = async || !fixture.records().await.is_empty();
    eventually(SHORT_TIMEOUT, "some records arrive", begun).await;
    freeze(&kafka, &fixture).await;
    (kafka, fixture, walpost)
}

async fn signalled_while_opening(report: CaseReport, signals: u32) {
    let (fixture, walpost, _proxy, before) = moved_while_away().await;
    announced(&fixture).await;
    for _ in 0..signals {
        walpost.terminate();
    }
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("by another client"), "{text}");
    report.exact(&before);
}

async fn signalled_while_judging(report: CaseReport, signals: u32) {
    let (fixture, walpost, _proxy, before) = moved_while_away().await;
    let line = walpost.await_line("waiting to see whether it is a walpost", SHORT_TIMEOUT).await;
    for part in ["WARN", "\"confirmed\"", "\"confirmed_flush_lsn\""] {
        assert!(line.contains(part), "{line}");
    }
    let second = fixture.command("run").start();
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    for _ in 0..signals {
        walpost.terminate();
    }
    if signals == 1 {
        let text = report.ends(&second, 3).await;
        assert!(text.contains("has halted, and an operator has to decide"), "{text}");
    }
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("by another client"), "{text}");
    report.exact(&before);
}

/// walpost on a fixture whose slot another client advanced while it was disconnected.
async fn moved_while_away() -> (Fixture, Walpost, Proxy, Verdict) {
    let mut fixture = Fixture::new().await;
    let proxy = Proxy::to(fixture.postgres.port()).await;
    fixture.source = proxied(&proxy);
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    let before = fixture.judge().await;
    proxy.refuse();
    proxy.cut();
    eventually(SHORT_TIMEOUT, "the slot is free", async || fixture.walsender().await.is_none())
        .await;
    fixture.postgres.execute(&insert(5, 3)).await;
    fixture.postgres.execute(&at_rest(ADVANCE)).await;
    proxy.restore();
    (fixture, walpost, proxy, before)
}

async fn signalled_in_a_session(report: CaseReport) {
    let fixture = Fixture::new().await;
    let walpost = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    take_out_and_put_back(&fixture).await;
    announced(&fixture).await;
    walpost.terminate();
    walpost.terminate();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("the publication was changed"), "{text}");
}

async fn take_out_and_put_back(fixture: &Fixture) {
    fixture.postgres.execute("ALTER PUBLICATION walpost DROP TABLE public.outbox").await;
    fixture.postgres.execute(&insert(7, 3)).await;
    fixture.postgres.execute("ALTER PUBLICATION walpost ADD TABLE public.outbox").await;
}

/// Kafka is unavailable, so nothing is confirmed or checked before the end; the standby
/// instance is already waiting.
async fn found_at_the_end(report: CaseReport) {
    let (kafka, fixture) = with_kafka().await;
    let first = fixture.run_with(&["--drain-timeout", "4s"]).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    kafka.pause();
    fixture.postgres.execute(&insert(10, 3)).await;
    take_out_and_put_back(&fixture).await;
    let second = fixture.command("run").start();
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    first.terminate();
    let text = report.ends(&first, 3).await;
    assert!(text.contains("the publication was changed"), "{text}");
    let text = report.ends(&second, 3).await;
    let words = ["the publication was changed", "has halted, and an operator has to decide"];
    assert!(words.iter().any(|words| text.contains(words)), "{text}");
    kafka.resume();
}

/// It never looks: the halt is announced for a minute otherwise.
async fn with_a_frozen_standby(report: CaseReport) {
    let fixture = Fixture::new().await;
    let first = fixture.run_with(&["--drain-timeout", "4s"]).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    let second = fixture.command("run").start();
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    // Until the session of its first look is kept.
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    second.pause();
    take_out_and_put_back(&fixture).await;
    announced(&fixture).await;
    first.terminate();
    let signalled = Instant::now();
    let text = report.ends(&first, 3).await;
    assert!(text.contains("the publication was changed"), "{text}");
    assert!(
        signalled.elapsed() < under_load(Duration::from_secs(12)),
        "{:?}: {text}",
        signalled.elapsed()
    );
    second.resume();
}

/// PostgreSQL stops responding while a halt is announced.
async fn shown_to_a_silent_server(report: CaseReport, is_told: bool) {
    let mut fixture = Fixture::new().await;
    let proxy = Proxy::to(fixture.postgres.port()).await;
    fixture.source = proxied(&proxy);
    let walpost = fixture.run_with(&["--drain-timeout", "4s"]).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    take_out_and_put_back(&fixture).await;
    announced(&fixture).await;
    proxy.blackhole();
    if is_told {
        walpost.terminate();
    }
    let status = walpost.wait(if is_told { SHORT_TIMEOUT } else { LONG_TIMEOUT }).await;
    let text = format!("{:?}", walpost.stderr());
    assert_eq!(status.and_then(|status| status.code()), Some(3), "{text}");
    report.did("exit 3");
    assert!(text.contains("the publication was changed"), "{text}");
}

async fn stopped_in_the_copy(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute(&many_transactions(1500)).await;
    let first = slow_in_batches(&fixture);
    first.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
    let second = slow_in_batches(&fixture);
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    eventually(SHORT_TIMEOUT, "some records arrive", async || fixture.records().await.len() > 500)
        .await;
    let publishes = "publishing the rest of its temporary copy";
    let mut next = Instant::now();
    let active = eventually(SHORT_TIMEOUT, publishes, async || {
        let publishing = [&first, &second].into_iter().find(|one| one.said(publishes));
        // No further than what is published meanwhile, it is no reason to halt.
        if publishing.is_none() && next <= Instant::now() {
            fixture.postgres.execute(&at_rest(ADVANCE_A_LITTLE)).await;
            next = Instant::now() + Duration::from_secs(3);
        }
        publishing
    })
    .await;
    active.terminate();
    let text = both_halt(&report, &first, &second).await;
    assert!(text.contains("what follows is in no slot"), "{text}");
    published_so_far(&report, &fixture).await;
}

/// Waits until both instances have ended, and returns what the active one said. Either may be that: between
/// two batches of a catch-up read the slot is free for a moment.
async fn both_halt(report: &CaseReport, one: &Walpost, other: &Walpost) -> String {
    let mut texts = [report.ends(one, 3).await, report.ends(other, 3).await];
    texts.sort_by_key(|text| !text.contains("by another client"));
    let [active, standby] = texts;
    assert!(active.contains("by another client"), "{active}\n{standby}");
    assert!(standby.contains("has halted, and an operator has to decide"), "{active}\n{standby}");
    active
}

/// Any role that can connect can hold the lock by which an instance announces a halt.
async fn announced_despite_a_lock(report: CaseReport) {
    let fixture = Fixture::new().await;
    fixture.postgres.execute("CREATE ROLE stranger LOGIN").await;
    let url = fixture.postgres.url_for("stranger");
    let (stranger, connection) = connect(&url, NoTls).await.expect("it can connect");
    tokio::spawn(connection);
    let lock = "SELECT pg_advisory_lock(2002873448, hashtext('walpost'))";
    stranger.batch_execute(lock).await.expect("PUBLIC is allowed to");
    fixture.postgres.execute(&many_transactions(600)).await;
    let first = slow_in_batches(&fixture);
    first.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
    let second = slow_in_batches(&fixture);
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    fixture.postgres.execute(&at_rest(ADVANCE)).await;
    both_halt(&report, &first, &second).await;
    let said = [first.stderr(), second.stderr()].concat();
    let warning = said.iter().find(|line| line.contains("holds the advisory lock"));
    assert!(warning.is_some_and(|line| line.contains("pg_terminate_backend(")), "{said:?}");
    report.exact(&fixture.judge().await);
    drop(stranger);
}
/// An instance sees a halt if both log in with the same role, whatever role they set afterwards.
async fn with_roles(report: CaseReport, active: &str, standby: &str) {
    let mut fixture = Fixture::new().await;
    let roles = "CREATE ROLE one LOGIN REPLICATION; CREATE ROLE other LOGIN REPLICATION;
                 CREATE ROLE same LOGIN REPLICATION; CREATE ROLE taken_on REPLICATION;
                 GRANT taken_on TO same; ALTER ROLE same SET role = 'taken_on'";
    fixture.postgres.execute(roles).await;
    fixture.postgres.execute(&many_transactions(300)).await;
    fixture.source = fixture.postgres.url_for(active);
    let first = slow_in_batches(&fixture);
    first.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
    fixture.source = fixture.postgres.url_for(standby);
    let second = slow_in_batches(&fixture);
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    if active != standby {
        let line = second.await_line("cannot see whether it halts", SHORT_TIMEOUT).await;
        assert!(line.contains(active), "{line}");
        published_so_far(&report, &fixture).await;
        return;
    }
    fixture.postgres.execute(&at_rest(ADVANCE)).await;
    both_halt(&report, &first, &second).await;
    assert!(!second.said("cannot see whether it halts"), "{:?}", second.stderr());
    report.exact(&fixture.judge().await);
}

/// Instances recognise each other, whatever names their connection strings give them.
async fn with_names(report: CaseReport) {
    let mut fixture = Fixture::new().await;
    fixture.postgres.execute(&many_transactions(600)).await;
    let url = fixture.source.clone();
    fixture.source = format!("{url}?application_name=orders-relay");
    let first = slow_in_batches(&fixture);
    first.await_line("starting a catch-up read", SHORT_TIMEOUT).await;
    let line = first.await_line("ignoring application_name", SHORT_TIMEOUT).await;
    assert!(line.contains("orders-relay"), "{line}");
    fixture.source = url;
    let second = slow_in_batches(&fixture);
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    fixture.postgres.execute(&at_rest(ADVANCE)).await;
    both_halt(&report, &first, &second).await;
    report.exact(&fixture.judge().await);
}

/// Everything published so far is in order.
async fn published_so_far(report: &CaseReport, fixture: &Fixture) {
    let (mut rows, records) = (fixture.committed().await, fixture.records().await);
    retain_published(&mut rows, &records);
    report.ok(&judge(&rows, std::iter::empty(), &records));
}

async fn stopped_unseen(report: CaseReport) {
    let (kafka, fixture, walpost) = frozen_in_a_backlog().await;
    fixture.postgres.execute(&at_rest(ADVANCE)).await;
    walpost.terminate();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("by another client"), "{text}");
    assert!(!text.contains("confirmed to PostgreSQL"), "{text}");
    kafka.resume();
    published_so_far(&report, &fixture).await;
}

/// A client that is not walpost, and streams from the slot until it is dropped.
pub(super) struct OtherClient(TcpStream);

impl OtherClient {
    /// The client, once the slot is free.
    pub(super) async fn begin(fixture: &Fixture) -> Self {
        let mut client = None;
        eventually(SHORT_TIMEOUT, "another client has the slot", async || {
            client = Self::try_begin(fixture.postgres.port());
            client.is_some()
        })
        .await;
        client.expect("it has begun")
    }

    fn try_begin(port: u16) -> Option<Self> {
        let mut client = Self(TcpStream::connect(("127.0.0.1", port)).expect("it listens"));
        let login = b"\0\x03\0\0user\0postgres\0database\0postgres\0replication\0database\0\0";
        client.say(None, login);
        assert!(client.await_message(b'Z'), "it is not let in");
        let options = "proto_version '1', publication_names 'walpost'";
        let start = format!("START_REPLICATION SLOT walpost LOGICAL 0/0 ({options})\0");
        client.say(Some(b'Q'), start.as_bytes());
        client.await_message(b'W').then_some(client)
    }

    fn say(&mut self, kind: Option<u8>, body: &[u8]) {
        let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
        let message: Vec<u8> = kind.into_iter().chain(length).chain(body.iter().copied()).collect();
        self.0.write_all(&message).expect("it reads");
    }

    /// Reads until a message of this kind, or an error.
    fn await_message(&mut self, kind: u8) -> bool {
        loop {
            let mut header = [0; 5];
            self.0.read_exact(&mut header).expect("an answer");
            let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
            let mut body = vec![0; usize::try_from(length).expect("short") - 4];
            self.0.read_exact(&mut body).expect("the rest of it");
            if [kind, b'E'].contains(&header[0]) {
                return header[0] == kind;
            }
        }
    }

    /// Confirms everything before `lsn`.
    fn confirm(&mut self, lsn: &str) {
        let (high, low) = lsn.split_once('/').expect("an LSN");
        let half = |text| u32::from_str_radix(text, 16).expect("hexadecimal").to_be_bytes();
        let lsn = [half(high), half(low)].concat();
        let update = [b"r".as_slice(), &lsn, &lsn, &lsn, &[0; 8], &[0]].concat();
        self.say(Some(b'd'), &update);
    }
}

/// Another client reads from the slot while the standby looks. The active instance is back before
/// that client has gone, or only once the standby has judged.
async fn read_between(report: CaseReport, is_back: bool) {
    let fixture = Fixture::new().await;
    let first = fixture.run().await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    report.exact(&fixture.judge().await);
    let second = fixture.command("run").start();
    second.await_line("is in use by", SHORT_TIMEOUT).await;
    first.pause();
    second.pause();
    let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots";
    fixture.postgres.execute(end).await;
    eventually(SHORT_TIMEOUT, "the slot is free", async || fixture.walsender().await.is_none())
        .await;
    let mut other = OtherClient::begin(&fixture).await;
    let pid = "SELECT active_pid::text FROM pg_replication_slots";
    let pid = fixture.postgres.query_text(pid).await.expect("it has the slot");
    second.resume();
    second.await_line(&format!("is in use by server process {pid}"), SHORT_TIMEOUT).await;
    if is_back {
        first.resume();
        first.await_line(&format!("is in use by server process {pid}"), SHORT_TIMEOUT).await;
    }
    fixture.postgres.execute(&insert(5, 3)).await;
    let end = fixture.postgres.wal_end().await;
    other.confirm(&end);
    eventually(SHORT_TIMEOUT, "it is confirmed", async || {
        fixture.confirmed_flush().await.as_ref() == Some(&end)
    })
    .await;
    drop(other);
    let text = report.ends(&second, 3).await;
    let says = |text: &str| {
        text.contains("has halted, and an operator has to decide")
            || text.contains("by another client")
    };
    assert!(says(&text), "{text}");
    if !is_back {
        assert!(text.contains(&format!("is confirmed up to {end}")), "{end} in {text}");
        first.resume();
    }
    let text = report.ends(&first, 3).await;
    assert!(says(&text), "{text}");
    assert_eq!(fixture.confirmed_flush().await, Some(end), "nobody continued");
}

async fn dropped_and_away(report: CaseReport) {
    let (kafka, fixture, walpost) = frozen_in_a_backlog().await;
    fixture.postgres.execute(&at_rest(DROP)).await;
    // Longer than an idle feed holds the slot.
    walpost.await_line("publishing the rest of its temporary copy", SHORT_TIMEOUT).await;
    kafka.resume();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("was read from a copy of the slot"), "{text}");
    report.ok(&fixture.judge().await);
}

/// Another client uses the slot longer than an idle feed is kept, and advances it.
async fn used_and_away(report: CaseReport) {
    let (kafka, fixture, walpost) = frozen_in_a_backlog().await;
    let mut other = OtherClient::begin(&fixture).await;
    walpost.await_line("another client uses the slot", SHORT_TIMEOUT).await;
    other.confirm(&fixture.postgres.wal_end().await);
    walpost.await_line("publishing the rest of its temporary copy", SHORT_TIMEOUT).await;
    drop(other);
    kafka.resume();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("was read from a copy of the slot"), "{text}");
    report.ok(&fixture.judge().await);
}

/// The slot is dropped while a hundred records are in flight to an unavailable Kafka.
async fn dropped_in_flight() -> (Kafka, Fixture, Walpost) {
    let (kafka, fixture) = with_kafka().await;
    let walpost = fixture.run_with(&["--drain-timeout", "1s"]).await;
    fixture.postgres.execute(&insert(10, 3)).await;
    fixture.confirmed(SHORT_TIMEOUT).await;
    kafka.pause();
    fixture.postgres.execute(&insert(100, 3)).await;
    let sent = "SELECT sent_lsn >= pg_current_wal_lsn() FROM pg_stat_replication";
    eventually(SHORT_TIMEOUT, "all is sent", async || {
        fixture.postgres.query_text(sent).await.as_deref() == Some("t")
    })
    .await;
    // Ended once, the session may be back before the slot is dropped.
    let end =
        "pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL";
    eventually(SHORT_TIMEOUT, "the slot is dropped", async || {
        fixture.postgres.execute(&format!("SELECT {end}")).await;
        fixture.postgres.try_query_text(&format!("SELECT {DROP}")).await
    })
    .await;
    walpost.await_line("cannot continue; draining in-flight records", SHORT_TIMEOUT).await;
    (kafka, fixture, walpost)
}

async fn in_flight(report: CaseReport) {
    let (kafka, fixture, walpost) = dropped_in_flight().await;
    announced(&fixture).await;
    eventually(SHORT_TIMEOUT, "it is announced no more", async || {
        fixture.postgres.query_text(ANNOUNCED).await.as_deref() == Some("0")
    })
    .await;
    // Longer than the drain timeout and the announcement.
    tokio::time::sleep(Duration::from_secs(3)).await;
    walpost.assert_runs();
    kafka.resume();
    let text = report.ends(&walpost, 3).await;
    assert!(text.contains("find out who dropped it"), "{text}");
    report.exact(&fixture.judge().await);
}

async fn abandoned(report: CaseReport) {
    let (kafka, fixture, walpost) = dropped_in_flight().await;
    walpost.terminate();
    let (code, text) = ended(&walpost).await;
    assert_eq!(code, Some(3), "{text}");
    report.did("exit 3");
    assert!(text.contains("100 records that were read from it were not delivered"), "{text}");
    kafka.resume();
    published_so_far(&report, &fixture).await;
}
