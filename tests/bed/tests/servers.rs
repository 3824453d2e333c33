//! The bed's servers start, stop, die and recover as tests request.

use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use walpost_bed::{Follower, Kafka, Major, Postgres, Proxy, Stop, Topics, eventually, read_all};

const MINUTE: Duration = Duration::from_secs(60);

fn producer(bootstrap: &str) -> FutureProducer {
    ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap()
}

async fn produce(producer: &FutureProducer, topic: &str, key: &str, value: &str) {
    let record = FutureRecord::to(topic).key(key).payload(value);
    producer.send(record, MINUTE).await.unwrap();
}

#[tokio::test]
async fn postgresql_keeps_commits_after_every_kind_of_stop() {
    let postgres = Postgres::start(Major::V15).await;
    assert_eq!(postgres.query_text("SHOW wal_level").await.unwrap(), "logical");
    postgres.execute("CREATE TABLE seen (how text)").await;
    for how in [Stop::Smart, Stop::Fast, Stop::Immediate] {
        let before = postgres.pid();
        postgres.execute(&format!("INSERT INTO seen VALUES ('{how:?}')")).await;
        postgres.restart(how).await;
        assert_ne!(postgres.pid(), before);
    }
    postgres.execute("INSERT INTO seen VALUES ('killed')").await;
    postgres.kill9().await;
    assert_eq!(postgres.pid(), None);
    postgres.start_again().await;
    let rows = postgres.query_rows("SELECT how FROM seen").await;
    let rows: Vec<_> = rows.into_iter().flatten().flatten().collect();
    assert_eq!(rows, ["Smart", "Fast", "Immediate", "killed"]);
}

#[tokio::test]
async fn smart_shutdown_waits_for_a_session() {
    let postgres = Postgres::start(Major::V15).await;
    let session = postgres.client().await;
    assert!(!postgres.stop(Stop::Smart, Duration::from_millis(300)).await);
    assert!(postgres.pid().is_some());
    drop(session);
    assert!(postgres.stopped(MINUTE).await);
}

#[tokio::test]
async fn builder_sets_encoding_settings_and_pg_hba() {
    let postgres = Postgres::builder(Major::V15)
        .encoding("LATIN1")
        .wal_sender_timeout(Duration::from_secs(1))
        .hba("host all barred 127.0.0.1/32 reject\nhost all all 127.0.0.1/32 trust")
        .start()
        .await;
    assert_eq!(postgres.query_text("SHOW server_encoding").await.unwrap(), "LATIN1");
    assert_eq!(postgres.query_text("SHOW wal_sender_timeout").await.unwrap(), "1s");
    postgres.execute("CREATE ROLE barred LOGIN; CREATE ROLE guest LOGIN").await;
    let connect = async |user| {
        let url = postgres.url_for(user);
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.map(drop)
    };
    assert!(connect("barred").await.is_err());
    connect("guest").await.unwrap();
    postgres.change_hba("host all all 127.0.0.1/32 reject").await;
    assert!(connect("guest").await.is_err());
}

#[tokio::test]
async fn servers_share_a_system_identifier_unless_configured() {
    let ask = async |postgres: &Postgres| {
        let sql = "SELECT system_identifier FROM pg_control_system()";
        postgres.query_text(sql).await.unwrap()
    };
    let first = ask(&Postgres::start(Major::V15).await).await;
    let second = ask(&Postgres::start(Major::V15).await).await;
    let own = Postgres::builder(Major::V15).own_identity().start().await;
    assert_eq!(first, second);
    assert_ne!(first, ask(&own).await);
}

#[tokio::test]
async fn rejected_setting_is_reported_with_the_server_log() {
    let refused = Postgres::builder(Major::V15).setting("wal_level", "nonsense");
    let error = refused.try_start().await.unwrap_err().to_string();
    assert!(error.contains("PostgreSQL 15 did not start"), "{error}");
    assert!(error.contains("nonsense"), "{error}");
}

#[tokio::test]
async fn produced_record_is_read_back_with_its_key() {
    let kafka = Kafka::shared().await;
    let producer = producer(&kafka.bootstrap());
    produce(&producer, "read-back", "k", "v").await;
    let records = read_all(&kafka.bootstrap(), "read-back").await;
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].key_text(), Some("k"));
    assert_eq!(records[0].value_text(), Some("v"));
}

#[tokio::test]
async fn follower_reads_topics_created_later() {
    let kafka = Kafka::shared().await;
    let follower = Follower::start(&kafka.bootstrap(), Topics::starting_with("late-"));
    kafka.create_topic("late-1", 2).await;
    let producer = producer(&kafka.bootstrap());
    for at in 0..10 {
        produce(&producer, "late-1", &format!("k{at}"), "v").await;
    }
    follower.until_count(10, MINUTE).await;
    produce(&producer, "late-2", "k", "v").await;
    let records = follower.until_count(11, MINUTE).await;
    assert!(records.iter().any(|record| record.topic == "late-2"));
    let both = read_all(&kafka.bootstrap(), Topics::starting_with("late-")).await;
    assert_eq!(both.len(), 11);
}

#[tokio::test]
async fn only_committed_records_are_read() {
    use rdkafka::producer::Producer;
    let kafka = Kafka::shared().await;
    kafka.create_topic("transacted", 1).await;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka.bootstrap()).set("transactional.id", "bed");
    let producer: FutureProducer = config.create().unwrap();
    let (begun, done) = std::sync::mpsc::channel();
    let handle = tokio::runtime::Handle::current();
    std::thread::spawn(move || {
        producer.init_transactions(MINUTE).unwrap();
        for (value, commits) in [("kept", true), ("dropped", false)] {
            producer.begin_transaction().unwrap();
            handle.block_on(produce(&producer, "transacted", "k", value));
            if commits {
                producer.commit_transaction(MINUTE).unwrap();
            } else {
                producer.abort_transaction(MINUTE).unwrap();
            }
        }
        begun.send(()).unwrap();
    });
    eventually(MINUTE, "two transactions", async || done.try_recv()).await;
    let records = read_all(&kafka.bootstrap(), "transacted").await;
    let values: Vec<_> = records.iter().map(|record| record.value_text().unwrap()).collect();
    assert_eq!(values, ["kept"]);
}

#[tokio::test]
async fn broker_keeps_records_after_a_stop_and_a_kill() {
    let kafka = Kafka::builder().user("alice", "secret").start().await;
    let address = kafka.bootstrap();
    let plain = producer(&address);
    produce(&plain, "kept", "k", "before").await;
    assert!(kafka.stop(MINUTE).await);
    kafka.start_again().await;
    assert_eq!(kafka.bootstrap(), address);
    produce(&plain, "kept", "k", "between").await;
    kafka.kill9().await;
    assert_eq!(kafka.pid(), None);
    kafka.start_again().await;
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", kafka.sasl_bootstrap().unwrap())
        .set("security.protocol", "SASL_PLAINTEXT")
        .set("sasl.mechanism", "PLAIN")
        .set("sasl.username", "alice")
        .set("sasl.password", "secret");
    produce(&config.create().unwrap(), "kept", "k", "as alice").await;
    let records = read_all(&address, "kept").await;
    let values: Vec<_> = records.iter().map(|record| record.value_text().unwrap()).collect();
    assert_eq!(values, ["before", "between", "as alice"]);
}

#[tokio::test]
async fn paused_broker_responds_after_resume() {
    let kafka = Kafka::start().await;
    let producer = producer(&kafka.bootstrap());
    produce(&producer, "slow", "k", "1").await;
    kafka.pause();
    let sent = producer.send_result(FutureRecord::to("slow").key("k").payload("2")).unwrap();
    let mut sent = Box::pin(sent);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut sent).await;
    assert!(early.is_err(), "a frozen broker acknowledged");
    kafka.resume();
    sent.await.unwrap().unwrap();
    assert_eq!(read_all(&kafka.bootstrap(), "slow").await.len(), 2);
}

#[tokio::test]
async fn clients_stay_on_the_brokers_proxied_listener() {
    let proxy = Proxy::start().await;
    let kafka = Kafka::builder().behind(proxy.port()).start().await;
    proxy.point_at(kafka.proxied_port().unwrap());
    let producer = producer(&format!("127.0.0.1:{}", proxy.port()));
    produce(&producer, "proxied", "k", "1").await;
    proxy.blackhole();
    let record = FutureRecord::to("proxied").key("k").payload("2");
    let mut sent = Box::pin(producer.send_result(record).unwrap());
    let early = tokio::time::timeout(Duration::from_millis(300), &mut sent).await;
    assert!(early.is_err(), "an acknowledgement came through a black hole");
    proxy.restore();
    sent.await.unwrap().unwrap();
    assert_eq!(read_all(&kafka.bootstrap(), "proxied").await.len(), 2);
}
