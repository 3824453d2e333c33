//! No secret in any output of walpost, however it is run and however wrong its input is. Every
//! secret here contains the same six characters.

use walpost_bed::fixture::{SHORT_TIMEOUT, insert};
use walpost_bed::{Endpoints, Walpost, WalpostBuilder};

use super::fixture::{PASSWORD, ROLE_PASSWORD, SecureFixture, USER, showing};

const SECRET: &str = "s3cret";

/// All output of a command until it exits, which must not be empty.
async fn written(builder: WalpostBuilder, what: &str) -> String {
    let walpost = builder.start();
    assert!(
        walpost.wait(SHORT_TIMEOUT).await.is_some(),
        "{what}: it still runs: {:?}",
        walpost.stderr()
    );
    let text = [walpost.stdout(), walpost.stderr()].concat().join("\n");
    assert!(!text.is_empty(), "{what}");
    text
}

#[track_caller]
fn assert_silent(text: &str, what: &str) {
    let line = text.lines().find(|line| line.contains(SECRET));
    assert_eq!(line, None, "{what}");
}

/// walpost with no environment except what the test sets.
fn bare(name: &str) -> WalpostBuilder {
    Walpost::builder(walpost_bed::fixture::program()).arg(name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivering_walpost_logs_no_secret_at_any_level() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let pair = fixture.kafka.authority.client("silent", USER);
    let source = fixture.file("url", &fixture.source_with(ROLE_PASSWORD, &showing(&pair)));
    let (encrypted, password) = fixture.kafka.authority.encrypted(&pair);
    let certificate = format!(
        "ssl.certificate.location={}\nssl.key.location={}\nssl.key.password={password}\n",
        encrypted.certificate.display(),
        encrypted.key.display()
    );
    // librdkafka's debug log contains everything it does.
    for login in [
        fixture.login("SCRAM-SHA-512", USER, "scr4m-s3cret"),
        fixture.login("PLAIN", USER, "pl4in-s3cret"),
    ] {
        let kafka = fixture.file("kafka", &format!("{login}{certificate}debug=all\n"));
        let secure = fixture.kafka.kafka.secure_bootstrap();
        let command = |name: &str| {
            let levels = ["--log-level", "trace", "--log-format", "json"];
            let command = fixture.command(name, &secure, &source, &kafka).args(levels);
            // No server listens there.
            let collector = "http://u:s3cret@127.0.0.1:1";
            command
                .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
                .env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret")
                .env("OTEL_BSP_SCHEDULE_DELAY", "200")
        };
        let walpost = command("run").args(["--admin-listen", "127.0.0.1:0"]).start();
        let endpoints = Endpoints::of(&walpost).await;
        let address = &endpoints.address();
        walpost.await_line("streaming from PostgreSQL", SHORT_TIMEOUT).await;
        fixture.fixture.postgres.execute(&insert(20, 3)).await;
        fixture.fixture.confirmed(SHORT_TIMEOUT).await;
        walpost.await_line("cannot export spans", SHORT_TIMEOUT).await;
        for page in ["/status", "/metrics", "/livez", "/readyz", "/s3cret"] {
            let (_, body) = endpoints.page(page).await;
            assert!(!body.is_empty() || page == "/s3cret", "{page}");
            assert_silent(&body, page);
        }
        for arguments in [&["status"][..], &["status", "--json"], &["health"]] {
            let what = arguments.join(" ");
            let asks = command(arguments[0]).args(&arguments[1..]);
            assert_silent(&written(asks.args(["--admin-listen", address]), &what).await, &what);
        }
        let mark = walpost.mark();
        walpost.hangup();
        walpost.await_line_after(mark, "their files: unchanged", SHORT_TIMEOUT).await;
        fixture.file("kafka", &format!("{login}{certificate}debug=all\nlinger.ms=s3cret\n"));
        walpost.hangup();
        walpost
            .await_line_after(mark, "cannot use the reloaded Kafka properties", SHORT_TIMEOUT)
            .await;
        fixture.file("kafka", &format!("{login}{certificate}debug=all\nlinger.ms=6\n"));
        walpost.hangup();
        walpost.await_line_after(mark, "are in effect", SHORT_TIMEOUT).await;
        walpost.terminate();
        assert!(walpost.wait(SHORT_TIMEOUT).await.is_some(), "walpost stops");
        assert!(walpost.said("librdkafka"), "the library's lines are there");
        let text = [walpost.stdout(), walpost.stderr()].concat().join("\n");
        assert_silent(&text, "run");
        for arguments in [&["config"][..], &["config", "--json"], &["check"], &["check", "--json"]]
        {
            let what = arguments.join(" ");
            let text = written(command(arguments[0]).args(&arguments[1..]), &what).await;
            assert_silent(&text, &what);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_walpost_logs_no_secret() {
    let fixture = SecureFixture::new(PASSWORD).await;
    let secure = fixture.kafka.kafka.secure_bootstrap();
    let right = fixture.source_with(ROLE_PASSWORD, "");
    let wrong = fixture.source_with("wrong-s3cret", "");
    let good = fixture.login("SCRAM-SHA-512", USER, "scr4m-s3cret");
    let bad = fixture.login("SCRAM-SHA-512", USER, "wrong-s3cret");
    let plain = fixture.login("PLAIN", USER, "wrong-s3cret");
    for (source, kafka) in [(&wrong, &good), (&right, &bad), (&right, &plain)] {
        let (source, kafka) = (fixture.file("url", source), fixture.file("kafka", kafka));
        for name in ["run", "check"] {
            let command = fixture.command(name, &secure, &source, &kafka);
            let text = written(command.args(["--log-level", "trace"]), name).await;
            assert!(text.contains("refuse") || text.contains("password"), "{text}");
            assert_silent(&text, name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unparsable_values_are_not_printed_if_they_may_be_secret() {
    for url in [
        "postgres://u:s3cret@h:x/db",
        "postgres://u:a/s3cret@h/db",
        "postgres://u:a%zzs3cret@h/db",
        "postgres://u:s3cret@[::1/db",
        "postgres://u:s3cret",
        "postgres://h/db?passwrd=s3cret",
        "postgres://h/db?password=%s3cret",
        "postgres://h/db?sslpassword=s3cret&sslmode=x",
        "postgres://u:s3cret@h/db?sslmode=x",
        "postgres://u:s3cret@h/db?sslrootcert=/nowhere&sslmode=verify-full",
        "host=h password='s3cret",
        "host=h password=s3cret passwrd=s3cret",
        "host=h pass word=s3cret",
        "s3cret",
        "jdbc:postgresql://h/db?user=u&password=s3cret",
    ] {
        for name in ["config", "run"] {
            let command = bare(name).env("WALPOST_SOURCE_URL", url);
            let command = command.args(["--bootstrap-servers", "127.0.0.1:1"]);
            let command = command.args(["--log-level", "trace"]).start();
            // A usable command line keeps retrying.
            let _ = walpost_bed::within(SHORT_TIMEOUT, async || {
                command.pid().is_none() || command.said("PostgreSQL")
            })
            .await;
            command.kill9().await;
            let text = [command.stdout(), command.stderr()].concat().join("\n");
            assert!(!text.is_empty(), "{name} {url}");
            assert_silent(&text, &format!("{name} {url}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misplaced_arguments_are_not_printed_if_they_may_be_secret() {
    for arguments in [
        // Without --source.
        &["config", "postgres://u:s3cret@h/db"][..],
        &["config", "postgres://u:a s3cret@h/db"],
        &["config", "postgres://u@h/db?password=s3cret"],
        &["config", "host=h password=s3cret"],
        &["config", "--source", "postgres://h/db", "postgres://u:s3cret@h/db"],
        &["run", "--sauce=postgres://u:s3cret@h/db"],
        &["postgres://u:s3cret@h/db"],
        &["status", "--watch", "postgres://u:s3cret@h/db"],
        &["completions", "postgres://u:s3cret@h/db"],
    ] {
        let what = arguments.join(" ");
        let text =
            written(Walpost::builder(walpost_bed::fixture::program()).args(arguments), &what);
        let text = text.await;
        assert!(text.contains("Usage:") || text.contains("--help"), "{what}: {text}");
        assert_silent(&text, &what);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_configuration_is_not_printed_if_it_may_be_secret() {
    let properties = [
        "s3cret",
        "sasl.pasword=s3cret",
        "linger.ms=s3cret",
        "sasl.mechanism=s3cret",
        "acks=s3cret",
        "ssl.key.password=s3cret\nssl.key.location=/nowhere",
        "ssl.key.pem=s3cret",
        "sasl.oauthbearer.config=s3cret",
        "sasl.jaas.config=s3cret",
        "sasl.password=s3cret\nsecurity.protocol=SASL_SSL\nsasl.mechanism=GSSAPI",
    ];
    for given in properties {
        for name in ["config", "run"] {
            let command = bare(name).env("WALPOST_KAFKA_PROPERTIES", given);
            let command = command.env("WALPOST_SOURCE_URL", "postgres://u@127.0.0.1:1/db").start();
            let _ = walpost_bed::within(SHORT_TIMEOUT, async || {
                command.pid().is_none() || command.said("PostgreSQL")
            })
            .await;
            command.kill9().await;
            let text = [command.stdout(), command.stderr()].concat().join("\n");
            assert!(!text.is_empty(), "{name} {given}");
            // Names of mechanisms and the like are not secret, and are shown.
            let shown = ["acks=", "linger.ms=", "sasl.mechanism="];
            if name == "run" || !shown.iter().any(|one| given.starts_with(one)) {
                assert_silent(&text, &format!("{name} {given}"));
            }
        }
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("walpost.toml");
    for toml in [
        "source.url = \"postgres://u:s3cret@h/db\nslot = 'x'",
        "[source]\nurl = s3cret",
        "[source]\nurl = ['postgres://u:s3cret@h/db']",
        "[source]\npassword = 's3cret'",
        "[kafka.properties]\nsasl.password = ['s3cret']",
        "[kafka.properties]\nsasl.password = s3cret",
        "[kafka.properties]\n'https://u:s3cret@h' = 1.5",
        "[kafka.properties]\nsasl.oauthbearer.token.endpoint.url = 'https://idp/token?client_secret=s3cret'",
        "'postgres://u:s3cret@h/db' = 1",
        "[source]\n'postgres://u:s3cret@h/db' = 1",
        "[kafka.properties]\n'sasl.password' = 's3cret'\n'acks' = '1'",
        "s3cret",
    ] {
        std::fs::write(&file, toml).expect("written");
        let text = written(bare("config").arg("--config").arg(&file), toml).await;
        assert_silent(&text, toml);
    }
}
