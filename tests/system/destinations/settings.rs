//! Settings that do not fit, commands for other destinations, and what `check` says of a server that is
//! away, with each destination.

use crate::promise::{Destination, cases, finding};

cases! {
    settings_that_do_not_fit_are_errors(new): all;
    commands_that_need_a_position_say_so(new): [rabbitmq http sqs];
    check_finds_what_cannot_be_reached_or_read(new): all;
}

async fn settings_that_do_not_fit_are_errors<D: Destination>(fixture: &mut D) {
    let (kind, url) = (fixture.kind(), fixture.url.clone());
    let other = if kind == "redis" { "nats.stream" } else { "redis.stream" };
    let own_authority = format!("{kind}.ca_file = '/ca.pem'");
    for (toml, part) in [
        ("kafka.bootstrap_servers = 'k:9092'", "`kafka.bootstrap_servers`"),
        ("kafka.properties.'linger.ms' = 5", "`kafka.properties`"),
        (&*format!("{other} = 'x'"), &*format!("`{other}`")),
        ("delivery.mode = 'exactly-once'", "`delivery.mode`"),
        ("delivery.state_topic = 'x'", "`delivery.state_topic`"),
        ("record.place = ['n:partition']", "only topics of Kafka"),
        ("poison.too_large = 'dead_letter'", "`poison.too_large`"),
        (&own_authority, "has no effect without TLS"),
    ] {
        fixture.configure(toml);
        let (code, said) = fixture.ended("run", &[]).await;
        assert_eq!(code, Some(78), "{toml}: {said}");
        assert!(said.contains(part), "{toml}: {said}");
    }
    fixture.configure("");
    // No error repeats the URL, which may have a password.
    "s3cret".clone_into(&mut fixture.url);
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains(&format!("`{kind}.")) && !said.contains("s3cret"), "{said}");
    fixture.url = url;
}

async fn commands_that_need_a_position_say_so<D: Destination>(fixture: &mut D) {
    let said_of = format!("cannot be read back with sink.kind = \"{}\"", fixture.kind());
    let position = ["--position", "0000000001926E68/00000002", "--read-topic", "x"];
    for (name, arguments) in
        [("recover", &[][..]), ("init", &["--apply", "--existing-rows"]), ("replay", &position)]
    {
        let (code, said) = fixture.ended(name, arguments).await;
        assert!(code == Some(78) && said.contains(&said_of), "{name}: {said}");
    }
    let (code, said) = fixture.ended("adopt", &["--apply"]).await;
    assert_ne!(code, Some(0));
    assert!(said.contains("no position of its own"), "{said}");
}

async fn check_finds_what_cannot_be_reached_or_read<D: Destination>(fixture: &mut D) {
    let kind = fixture.kind();
    let found = fixture.codes(&["--offline"]).await;
    assert!(found.contains(&finding("skipped", kind)), "{found:?}");
    for (url, code) in [(fixture.url_at(1), "unreachable"), ("ftp://h".to_owned(), "config")] {
        fixture.url = url;
        fixture.assert_found("error", &format!("{kind}_{code}")).await;
    }
}
