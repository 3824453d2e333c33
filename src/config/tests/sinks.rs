//! The settings of the destinations beside Kafka.

use std::time::Duration;

use super::*;

#[test]
fn every_key_of_nats_is_read_and_its_password_is_hidden() {
    let config = of_toml(
        r#"
        [sink]
        kind = "nats"
        [nats]
        url = "tls://u:s3cret@h:7"
        stream = "orders"
        subject = "eu.{topic}.{key}"
        sync_interval = "5s"
        credentials_file = "user.creds"
        ca_file = "ca.pem"
        cert_file = "own.pem"
        key_file = "own.key"
        "#,
    )
    .unwrap();
    assert_eq!(config.sink, SinkKind::Nats);
    let nats = &config.nats;
    assert_eq!(nats.url.expose_secret(), "tls://u:s3cret@h:7");
    assert_eq!((nats.stream.as_str(), nats.subject.as_str()), ("orders", "eu.{topic}.{key}"));
    assert_eq!(nats.credentials_file.clone(), Some("user.creds".into()));
    let files = [&nats.ca_file, &nats.cert_file, &nats.key_file];
    assert_eq!(files.map(Clone::clone), ["ca.pem", "own.pem", "own.key"].map(|it| Some(it.into())));
    assert_eq!(nats.sync_interval, Duration::from_secs(5));
    let is_set = |row: &&Displayed| row.key.starts_with("nats.") && row.origin != Origin::Default;
    assert_eq!(config.display().iter().filter(is_set).count(), 8);
    assert!(!format!("{:?} {config:?}", config.display()).contains("s3cret"));
}

#[test]
fn every_key_of_http_is_read_and_its_secrets_are_hidden() {
    let config = of_toml(
        r#"
        [sink]
        kind = "http"
        [http]
        url = "https://h/s3cret"
        secret = "s3cret"
        authorization = "Bearer s3cret"
        lanes = 3
        timeout = "2s"
        give_up_after = "1h"
        ca_file = "ca.pem"
        cert_file = "own.pem"
        key_file = "own.key"
        "#,
    )
    .unwrap();
    assert_eq!(config.sink, SinkKind::Http);
    let http = &config.http;
    assert_eq!(http.url.as_ref().map(ExposeSecret::expose_secret), Some("https://h/s3cret"));
    assert_eq!(http.secret.as_ref().map(ExposeSecret::expose_secret), Some("s3cret"));
    assert_eq!(http.authorization.as_ref().map(ExposeSecret::expose_secret), Some("Bearer s3cret"));
    assert_eq!((http.lanes, http.timeout.as_secs()), (3, 2));
    assert_eq!(http.give_up_after, Some(Duration::from_secs(3600)));
    let files = [&http.ca_file, &http.cert_file, &http.key_file];
    assert_eq!(files.map(Clone::clone), ["ca.pem", "own.pem", "own.key"].map(|it| Some(it.into())));
    let unset = |row: &&Displayed| row.key.starts_with("http.") && row.origin == Origin::Default;
    assert_eq!(config.display().iter().filter(unset).count(), 0);
    let shown = format!("{:?} {config:?}", config.display()).replace("https://h/s3cret", "");
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[test]
fn every_key_of_rabbitmq_is_read_and_its_password_is_hidden() {
    let config = of_toml(
        r#"
        [sink]
        kind = "rabbitmq"
        [rabbitmq]
        url = "amqps://u:s3cret@h:7/eu"
        exchange = "orders"
        routing_key = "{topic}.{key}"
        ca_file = "ca.pem"
        cert_file = "own.pem"
        key_file = "own.key"
        "#,
    )
    .unwrap();
    assert_eq!(config.sink, SinkKind::RabbitMq);
    let rabbit = &config.rabbitmq;
    assert_eq!(rabbit.url.expose_secret(), "amqps://u:s3cret@h:7/eu");
    assert_eq!((rabbit.exchange.as_str(), &*rabbit.routing_key), ("orders", "{topic}.{key}"));
    let files = [&rabbit.ca_file, &rabbit.cert_file, &rabbit.key_file];
    assert_eq!(files.map(Clone::clone), ["ca.pem", "own.pem", "own.key"].map(|it| Some(it.into())));
    let unset =
        |row: &&Displayed| row.key.starts_with("rabbitmq.") && row.origin == Origin::Default;
    assert_eq!(config.display().iter().filter(unset).count(), 0);
    assert!(!format!("{:?} {config:?}", config.display()).contains("s3cret"));
}

#[test]
fn every_key_of_redis_is_read_and_its_password_is_hidden() {
    let config = of_toml(
        r#"
        [sink]
        kind = "redis"
        [redis]
        url = "rediss://u:s3cret@h:7/2"
        stream = "{eu}.orders"
        maxlen = 1_000_000
        wait_replicas = 2
        ca_file = "ca.pem"
        cert_file = "own.pem"
        key_file = "own.key"
        "#,
    )
    .unwrap();
    assert_eq!(config.sink, SinkKind::Redis);
    let redis = &config.redis;
    assert_eq!(redis.url.expose_secret(), "rediss://u:s3cret@h:7/2");
    assert_eq!((redis.stream.as_str(), redis.maxlen), ("{eu}.orders", Some(1_000_000)));
    assert_eq!(redis.wait_replicas, 2);
    let files = [&redis.ca_file, &redis.cert_file, &redis.key_file];
    assert_eq!(files.map(Clone::clone), ["ca.pem", "own.pem", "own.key"].map(|it| Some(it.into())));
    let unset = |row: &&Displayed| row.key.starts_with("redis.") && row.origin == Origin::Default;
    assert_eq!(config.display().iter().filter(unset).count(), 0);
    assert!(!format!("{:?} {config:?}", config.display()).contains("s3cret"));
}

#[test]
fn settings_of_another_destination_are_rejected_where_they_are_given() {
    for (toml, part) in [
        ("redis.stream = 'x'", "walpost.toml:1: `redis.stream`"),
        ("redis.wait_replicas = 0", "sink.kind = \"kafka\""),
        ("sink.kind = 'rabbit'", "`rabbit` is not one of `kafka`, `nats`, `rabbitmq`"),
        ("nats.stream = 'x'", "walpost.toml:1: `nats.stream`"),
        ("sink.kind = 'nats'\nredis.maxlen = 1", "walpost.toml:2: `redis.maxlen`"),
        ("sink.kind = 'nats'\nnats.stream = 'a.b'", "`nats.stream`"),
        ("sink.kind = 'redis'\nkafka.max_producers = 8", "walpost.toml:2: `kafka.max_producers`"),
        ("sink.kind = 'redis'\nredis.maxlen = 0", "`redis.maxlen`"),
        ("sink.kind = 'redis'\nredis.stream = 'a b'", "`redis.stream`"),
    ] {
        let error = of_toml(toml).err().unwrap().to_string();
        assert!(error.contains(part), "{toml}: {error}");
    }
}

#[test]
fn variables_for_other_programs_are_no_settings_of_another_destination() {
    let around = [("KAFKA_BOOTSTRAP_SERVERS", "around:1")];
    let file = directory("sink.kind = 'redis'");
    assert_eq!(load(&Flags::default(), &around, file.path()).unwrap().sink, SinkKind::Redis);
}
