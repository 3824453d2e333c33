//! What a halt with exit code 3 meets on its way: signals, a Kafka that is away, a standby
//! instance (36, 38, 39, 40). The reason is said, the code stays, nothing that only walpost has is
//! thrown away.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_postgres::{NoTls, connect};
use walpost_bed::oracle::{Verdict, judge};
use walpost_bed::scene::{LATER, SOON, Scene, ended, insert, proxied};
use walpost_bed::{Kafka, Major, Postgres, Proxy, Walpost, eventually};

use super::retain_published;
use super::slot::{ADVANCE, at_rest, many_transactions, slow_in_batches};
use crate::case::{Account, Case};

const DROP: &str = "pg_drop_replication_slot('walpost')";

/// The advisory lock by which an instance that halts is seen: `walh`.
const ANNOUNCED: &str = "SELECT count(*)::text FROM pg_locks \
     WHERE locktype = 'advisory' AND classid = 2002873448";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(38, "a_signal_while_a_halt_is_announced_hides_no_moved_slot", |account| {
            signalled_while_opening(account, 1)
        }),
        Case::new(38, "two_signals_while_a_halt_is_announced_hide_no_moved_slot", |account| {
            signalled_while_opening(account, 2)
        }),
        Case::new(39, "two_signals_hide_no_changed_publication", signalled_in_a_session),
        Case::new(40, "a_change_found_by_the_last_look_stops_the_standby_too", found_at_the_end),
        Case::new(38, "a_stop_while_the_copy_is_published_is_announced", stopped_in_the_copy),
        Case::new(38, "a_strangers_lock_hides_no_halt_from_a_standby", announced_despite_a_lock),
        Case::new(38, "a_stop_before_a_moved_slot_is_seen_is_no_clean_stop", stopped_unseen),
        Case::new(38, "a_standby_that_saw_another_client_read_the_slot_halts", |account| {
            read_between(account, false)
        }),
        Case::new(38, "nor_does_the_active_one_continue_after_another_client", |account| {
            read_between(account, true)
        }),
        Case::new(38, "a_signal_while_a_moved_slot_is_judged_is_no_clean_stop", |account| {
            signalled_while_judging(account, 1)
        }),
        Case::new(38, "nor_are_two_signals_while_a_moved_slot_is_judged", |account| {
            signalled_while_judging(account, 2)
        }),
        Case::new(38, "a_role_that_takes_on_another_one_hides_no_halt", |account| {
            with_roles(account, "same", "same")
        }),
        Case::new(38, "an_instance_of_another_role_says_that_it_sees_no_halt", |account| {
            with_roles(account, "one", "other")
        }),
        Case::new(38, "a_name_in_the_connection_string_hides_no_halt", with_names),
        Case::new(40, "a_stop_does_not_wait_for_a_frozen_standby", beside_a_frozen_one),
        Case::new(40, "a_stop_while_a_silent_server_is_shown_a_halt_ends", |account| {
            shown_to_a_silent_server(account, true)
        }),
        Case::new(40, "a_halt_that_a_silent_server_is_shown_ends", |account| {
            shown_to_a_silent_server(account, false)
        })
        .long(),
        Case::new(36, "a_backlog_is_published_to_its_end_once_kafka_is_back", dropped_and_away),
        Case::new(36, "what_is_in_flight_is_published_once_kafka_is_back", in_flight),
        Case::new(36, "what_a_person_gives_up_is_counted", given_up),
    ]
}

async fn announced(scene: &Scene) {
    eventually(SOON, "the halt is announced", async || {
        scene.postgres.query_text(ANNOUNCED).await.as_deref() == Some("1")
    })
    .await;
}

/// A scene with brokers of its own, which can be frozen.
async fn with_kafka() -> (Kafka, Scene) {
    let kafka = Kafka::start().await;
    let scene = Scene::with_brokers(Postgres::builder(Major::V15), &kafka.bootstrap()).await;
    (kafka, scene)
}

/// Kafka is frozen, and all that was acknowledged before is confirmed: walpost has no cause to look
/// at the slot.
async fn freeze(kafka: &Kafka, scene: &Scene) {
    kafka.pause();
    eventually(SOON, "the slot rests", async || {
        let before = scene.confirmed_flush().await;
        sleep(Duration::from_secs(1)).await;
        scene.confirmed_flush().await == before
    })
    .await;
}

async fn signalled_while_opening(account: Account, signals: u32) {
    let (scene, walpost, _proxy, before) = moved_while_away().await;
    announced(&scene).await;
    for _ in 0..signals {
        walpost.terminate();
    }
    let text = account.ends(&walpost, 3).await;
    assert!(text.contains("by somebody else"), "{text}");
    account.exact(&before);
}

async fn signalled_while_judging(account: Account, signals: u32) {
    let (scene, walpost, _proxy, before) = moved_while_away().await;
    let line = walpost.await_line("waiting to see whether it is a walpost", SOON).await;
    for part in ["WARN", "\"confirmed\"", "\"stands\""] {
        assert!(line.contains(part), "{line}");
    }
    let second = scene.command("run").start();
    second.await_line("is in use by", SOON).await;
    for _ in 0..signals {
        walpost.terminate();
    }
    if signals == 1 {
        let text = account.ends(&second, 3).await;
        assert!(text.contains("has halted, and a person has to decide"), "{text}");
    }
    let text = account.ends(&walpost, 3).await;
    assert!(text.contains("by somebody else"), "{text}");
    account.exact(&before);
}

/// walpost on a scene whose slot somebody moved while it was cut off.
async fn moved_while_away() -> (Scene, Walpost, Proxy, Verdict) {
    let mut scene = Scene::new().await;
    let proxy = Proxy::to(scene.postgres.port()).await;
    scene.source = proxied(&proxy);
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    let before = scene.judge().await;
    proxy.refuse();
    proxy.cut();
    eventually(SOON, "the slot is free", async || scene.walsender().await.is_none()).await;
    scene.postgres.execute(&insert(5, 3)).await;
    scene.postgres.execute(&at_rest(ADVANCE)).await;
    proxy.restore();
    (scene, walpost, proxy, before)
}

async fn signalled_in_a_session(account: Account) {
    let scene = Scene::new().await;
    let walpost = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    take_out_and_put_back(&scene).await;
    announced(&scene).await;
    walpost.terminate();
    walpost.terminate();
    let text = account.ends(&walpost, 3).await;
    assert!(text.contains("the publication was changed"), "{text}");
}

async fn take_out_and_put_back(scene: &Scene) {
    scene.postgres.execute("ALTER PUBLICATION walpost DROP TABLE public.outbox").await;
    scene.postgres.execute(&insert(7, 3)).await;
    scene.postgres.execute("ALTER PUBLICATION walpost ADD TABLE public.outbox").await;
}

/// Kafka is away, so that nothing is confirmed and nothing looked at before the end; the next
/// instance waits already.
async fn found_at_the_end(account: Account) {
    let (kafka, scene) = with_kafka().await;
    let first = scene.run_with(&["--drain-timeout", "4s"]).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    kafka.pause();
    scene.postgres.execute(&insert(10, 3)).await;
    take_out_and_put_back(&scene).await;
    let second = scene.command("run").start();
    second.await_line("is in use by", SOON).await;
    first.terminate();
    let text = account.ends(&first, 3).await;
    assert!(text.contains("the publication was changed"), "{text}");
    let text = account.ends(&second, 3).await;
    let words = ["the publication was changed", "has halted, and a person has to decide"];
    assert!(words.iter().any(|words| text.contains(words)), "{text}");
    kafka.resume();
}

/// It never looks: the halt is announced for a minute otherwise.
async fn beside_a_frozen_one(account: Account) {
    let scene = Scene::new().await;
    let first = scene.run_with(&["--drain-timeout", "4s"]).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    let second = scene.command("run").start();
    second.await_line("is in use by", SOON).await;
    // Until the session of its first look is kept.
    second.await_line("is in use by", SOON).await;
    second.pause();
    take_out_and_put_back(&scene).await;
    announced(&scene).await;
    first.terminate();
    let told = Instant::now();
    let text = account.ends(&first, 3).await;
    assert!(text.contains("the publication was changed"), "{text}");
    assert!(told.elapsed() < Duration::from_secs(12), "{:?}: {text}", told.elapsed());
    second.resume();
}

/// PostgreSQL says nothing any more while a halt is announced.
async fn shown_to_a_silent_server(account: Account, is_told: bool) {
    let mut scene = Scene::new().await;
    let proxy = Proxy::to(scene.postgres.port()).await;
    scene.source = proxied(&proxy);
    let walpost = scene.run_with(&["--drain-timeout", "4s"]).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    take_out_and_put_back(&scene).await;
    announced(&scene).await;
    proxy.blackhole();
    if is_told {
        walpost.terminate();
    }
    let status = walpost.wait(if is_told { SOON } else { LATER }).await;
    let text = format!("{:?}", walpost.stderr());
    assert_eq!(status.and_then(|status| status.code()), Some(3), "{text}");
    account.did("exit 3");
    assert!(text.contains("the publication was changed"), "{text}");
}

async fn stopped_in_the_copy(account: Account) {
    let scene = Scene::new().await;
    scene.postgres.execute(&many_transactions(600)).await;
    let first = slow_in_batches(&scene);
    first.await_line("reading the backlog in batches", SOON).await;
    let second = slow_in_batches(&scene);
    second.await_line("is in use by", SOON).await;
    eventually(SOON, "some come", async || scene.records().await.len() > 500).await;
    scene.postgres.execute(&at_rest(ADVANCE)).await;
    first.await_line("publishing what its temporary copy has", SOON).await;
    first.terminate();
    let text = account.ends(&first, 3).await;
    assert!(text.contains("by somebody else"), "{text}");
    assert!(text.contains("what follows is in no slot"), "{text}");
    let text = account.ends(&second, 3).await;
    assert!(text.contains("has halted, and a person has to decide"), "{text}");
    published_so_far(&account, &scene).await;
}

/// Anybody who may connect may hold the lock by which an instance says that it halts.
async fn announced_despite_a_lock(account: Account) {
    let scene = Scene::new().await;
    scene.postgres.execute("CREATE ROLE stranger LOGIN").await;
    let url = scene.postgres.url_for("stranger");
    let (stranger, connection) = connect(&url, NoTls).await.expect("it may connect");
    tokio::spawn(connection);
    let lock = "SELECT pg_advisory_lock(2002873448, hashtext('walpost'))";
    stranger.batch_execute(lock).await.expect("PUBLIC may");
    scene.postgres.execute(&many_transactions(600)).await;
    let first = slow_in_batches(&scene);
    first.await_line("reading the backlog in batches", SOON).await;
    let second = slow_in_batches(&scene);
    second.await_line("is in use by", SOON).await;
    scene.postgres.execute(&at_rest(ADVANCE)).await;
    let texts = (account.ends(&first, 3).await, account.ends(&second, 3).await);
    assert!(texts.0.contains("by somebody else"), "{texts:?}");
    assert!(texts.1.contains("has halted, and a person has to decide"), "{texts:?}");
    let warning = first.await_line("holds the advisory lock", SOON).await;
    assert!(warning.contains("pg_terminate_backend("), "{warning}");
    account.exact(&scene.judge().await);
    drop(stranger);
}

/// A halt is seen where both instances log in with the same role, whatever role they take on then.
async fn with_roles(account: Account, active: &str, standby: &str) {
    let mut scene = Scene::new().await;
    let roles = "CREATE ROLE one LOGIN REPLICATION; CREATE ROLE other LOGIN REPLICATION;
                 CREATE ROLE same LOGIN REPLICATION; CREATE ROLE taken_on REPLICATION;
                 GRANT taken_on TO same; ALTER ROLE same SET role = 'taken_on'";
    scene.postgres.execute(roles).await;
    scene.postgres.execute(&many_transactions(300)).await;
    scene.source = scene.postgres.url_for(active);
    let first = slow_in_batches(&scene);
    first.await_line("reading the backlog in batches", SOON).await;
    scene.source = scene.postgres.url_for(standby);
    let second = slow_in_batches(&scene);
    second.await_line("is in use by", SOON).await;
    if active != standby {
        let line = second.await_line("cannot see whether it halts", SOON).await;
        assert!(line.contains(active), "{line}");
        published_so_far(&account, &scene).await;
        return;
    }
    scene.postgres.execute(&at_rest(ADVANCE)).await;
    let texts = (account.ends(&first, 3).await, account.ends(&second, 3).await);
    assert!(texts.0.contains("by somebody else"), "{texts:?}");
    assert!(texts.1.contains("has halted, and a person has to decide"), "{texts:?}");
    assert!(!second.said("cannot see whether it halts"), "{texts:?}");
    account.exact(&scene.judge().await);
}

/// Instances recognise each other, whatever names their connection strings give them.
async fn with_names(account: Account) {
    let mut scene = Scene::new().await;
    scene.postgres.execute(&many_transactions(600)).await;
    let url = scene.source.clone();
    scene.source = format!("{url}?application_name=orders-relay");
    let first = slow_in_batches(&scene);
    first.await_line("reading the backlog in batches", SOON).await;
    let line = first.await_line("application_name is ignored", SOON).await;
    assert!(line.contains("orders-relay"), "{line}");
    scene.source = url;
    let second = slow_in_batches(&scene);
    second.await_line("is in use by", SOON).await;
    scene.postgres.execute(&at_rest(ADVANCE)).await;
    let texts = (account.ends(&first, 3).await, account.ends(&second, 3).await);
    assert!(texts.0.contains("by somebody else"), "{texts:?}");
    assert!(texts.1.contains("has halted, and a person has to decide"), "{texts:?}");
    account.exact(&scene.judge().await);
}

/// Nothing out of order among what was published before it was stopped.
async fn published_so_far(account: &Account, scene: &Scene) {
    let (mut rows, records) = (scene.committed().await, scene.records().await);
    retain_published(&mut rows, &records);
    account.ok(&judge(&rows, std::iter::empty(), &records));
}

async fn stopped_unseen(account: Account) {
    let (kafka, scene) = with_kafka().await;
    scene.postgres.execute(&many_transactions(600)).await;
    let walpost = slow_in_batches(&scene);
    eventually(SOON, "some come", async || scene.records().await.len() > 500).await;
    freeze(&kafka, &scene).await;
    scene.postgres.execute(&at_rest(ADVANCE)).await;
    walpost.terminate();
    let text = account.ends(&walpost, 3).await;
    assert!(text.contains("by somebody else"), "{text}");
    assert!(!text.contains("confirmed to PostgreSQL"), "{text}");
    kafka.resume();
    published_so_far(&account, &scene).await;
}

/// A client that is not walpost, and streams from the slot until it is dropped.
struct OtherClient(TcpStream);

impl OtherClient {
    fn begin(port: u16) -> Self {
        let mut client = Self(TcpStream::connect(("127.0.0.1", port)).expect("it listens"));
        let login = b"\0\x03\0\0user\0postgres\0database\0postgres\0replication\0database\0\0";
        client.say(None, login);
        client.await_message(b'Z');
        let options = "proto_version '1', publication_names 'walpost'";
        let start = format!("START_REPLICATION SLOT walpost LOGICAL 0/0 ({options})\0");
        client.say(Some(b'Q'), start.as_bytes());
        client.await_message(b'W');
        client
    }

    fn say(&mut self, kind: Option<u8>, body: &[u8]) {
        let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
        let message: Vec<u8> = kind.into_iter().chain(length).chain(body.iter().copied()).collect();
        self.0.write_all(&message).expect("it reads");
    }

    fn await_message(&mut self, kind: u8) {
        loop {
            let mut header = [0; 5];
            self.0.read_exact(&mut header).expect("an answer");
            let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
            let mut body = vec![0; usize::try_from(length).expect("short") - 4];
            self.0.read_exact(&mut body).expect("the rest of it");
            assert_ne!(header[0], b'E', "{}", String::from_utf8_lossy(&body));
            if header[0] == kind {
                return;
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
async fn read_between(account: Account, is_back: bool) {
    let scene = Scene::new().await;
    let first = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    account.exact(&scene.judge().await);
    let second = scene.command("run").start();
    second.await_line("is in use by", SOON).await;
    first.pause();
    second.pause();
    let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots";
    scene.postgres.execute(end).await;
    eventually(SOON, "the slot is free", async || scene.walsender().await.is_none()).await;
    let mut other = OtherClient::begin(scene.postgres.port());
    let pid = "SELECT active_pid::text FROM pg_replication_slots";
    let pid = scene.postgres.query_text(pid).await.expect("it has the slot");
    second.resume();
    second.await_line(&format!("is in use by server process {pid}"), SOON).await;
    if is_back {
        first.resume();
        first.await_line(&format!("is in use by server process {pid}"), SOON).await;
    }
    scene.postgres.execute(&insert(5, 3)).await;
    let end = "SELECT pg_current_wal_lsn()::text";
    let end = scene.postgres.query_text(end).await.expect("a position");
    other.confirm(&end);
    eventually(SOON, "it is confirmed", async || {
        scene.confirmed_flush().await.as_ref() == Some(&end)
    })
    .await;
    drop(other);
    let text = account.ends(&second, 3).await;
    let says = |text: &str| {
        text.contains("has halted, and a person has to decide") || text.contains("by somebody else")
    };
    assert!(says(&text), "{text}");
    if !is_back {
        assert!(text.contains(&format!("is confirmed up to {end}")), "{end} in {text}");
        first.resume();
    }
    let text = account.ends(&first, 3).await;
    assert!(says(&text), "{text}");
    assert_eq!(scene.confirmed_flush().await, Some(end), "nobody continued");
}

async fn dropped_and_away(account: Account) {
    let (kafka, scene) = with_kafka().await;
    scene.postgres.execute(&many_transactions(600)).await;
    let walpost = slow_in_batches(&scene);
    eventually(SOON, "some come", async || scene.records().await.len() > 500).await;
    freeze(&kafka, &scene).await;
    scene.postgres.execute(&at_rest(DROP)).await;
    // Longer than a feed of which nothing is taken holds the slot by itself.
    walpost.await_line("publishing what its temporary copy has", SOON).await;
    kafka.resume();
    let text = account.ends(&walpost, 3).await;
    assert!(text.contains("was read from a copy of the slot"), "{text}");
    account.ok(&scene.judge().await);
}

/// The slot goes while a hundred records are in flight to a Kafka that is away.
async fn dropped_in_flight() -> (Kafka, Scene, Walpost) {
    let (kafka, scene) = with_kafka().await;
    let walpost = scene.run_with(&["--drain-timeout", "1s"]).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    kafka.pause();
    scene.postgres.execute(&insert(100, 3)).await;
    let sent = "SELECT sent_lsn >= pg_current_wal_lsn() FROM pg_stat_replication";
    eventually(SOON, "all is sent", async || {
        scene.postgres.query_text(sent).await.as_deref() == Some("t")
    })
    .await;
    let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots";
    scene.postgres.execute(end).await;
    scene.postgres.execute(&at_rest(DROP)).await;
    walpost.await_line("PostgreSQL cannot be used any more", SOON).await;
    (kafka, scene, walpost)
}

async fn in_flight(account: Account) {
    let (kafka, scene, walpost) = dropped_in_flight().await;
    announced(&scene).await;
    eventually(SOON, "it is announced no more", async || {
        scene.postgres.query_text(ANNOUNCED).await.as_deref() == Some("0")
    })
    .await;
    // Nothing is to happen, long after the time for a stop.
    sleep(Duration::from_secs(3)).await;
    kafka.resume();
    let text = account.ends(&walpost, 3).await;
    assert!(text.contains("find out who dropped it"), "{text}");
    account.exact(&scene.judge().await);
}

async fn given_up(account: Account) {
    let (kafka, scene, walpost) = dropped_in_flight().await;
    walpost.terminate();
    let (code, text) = ended(&walpost).await;
    assert_eq!(code, Some(3), "{text}");
    account.did("exit 3");
    assert!(text.contains("100 records that were read from it were not delivered"), "{text}");
    kafka.resume();
    published_so_far(&account, &scene).await;
}
