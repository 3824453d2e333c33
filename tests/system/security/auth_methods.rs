//! Every method of `pg_hba.conf` that walpost supports, how it reports each, and the effect of
//! `require_auth` and `channel_binding`.

use walpost_bed::Endpoints;
use walpost_bed::fixture::{SHORT_TIMEOUT, ended};

use super::fixture::{ROLE_PASSWORD, SecureFixture, showing};

/// Users by authentication method, and one that may connect without TLS.
const HBA: &str = "hostssl all scram 127.0.0.1/32 scram-sha-256\n\
                   hostssl all by_md5 127.0.0.1/32 md5\n\
                   hostssl all clear 127.0.0.1/32 password\n\
                   hostssl all trusted 127.0.0.1/32 trust\n\
                   hostssl all shown 127.0.0.1/32 cert\n\
                   host all open 127.0.0.1/32 password";

async fn fixture() -> SecureFixture {
    let fixture = SecureFixture::new(HBA).await;
    for user in ["scram", "by_md5", "clear", "trusted", "shown", "open"] {
        let encryption = if user == "by_md5" { "md5" } else { "scram-sha-256" };
        let sql = format!(
            "SET password_encryption = '{encryption}'; \
             CREATE ROLE {user} LOGIN REPLICATION PASSWORD '{ROLE_PASSWORD}'"
        );
        fixture.fixture.postgres.execute(&sql).await;
    }
    fixture
}

fn source(fixture: &SecureFixture, user: &str, parameters: &str) -> String {
    let source = fixture.source_with(ROLE_PASSWORD, parameters);
    source.replace("walpost:", &format!("{user}:"))
}

/// What `walpost check` prints for this source.
async fn checked(fixture: &SecureFixture, source: &str) -> String {
    let (source, kafka) = (fixture.file("url", source), fixture.file("kafka", ""));
    let check = fixture.command("check", &fixture.kafka.kafka.bootstrap(), &source, &kafka).start();
    check.wait(SHORT_TIMEOUT).await.expect("it ends");
    check.stdout().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_auth_method_is_reported_for_both_connections() {
    let fixture = fixture().await;
    let pair = fixture.kafka.authority.client("shown", "shown");
    for (user, parameters, method) in [
        ("scram", String::new(), "scram-sha-256-plus"),
        ("scram", "&channel_binding=disable".to_owned(), "scram-sha-256"),
        ("scram", "&channel_binding=require".to_owned(), "scram-sha-256-plus"),
        ("scram", "&require_auth=scram-sha-256".to_owned(), "scram-sha-256-plus"),
        ("by_md5", String::new(), "md5"),
        ("clear", "&require_auth=!md5".to_owned(), "password"),
        ("trusted", "&require_auth=none".to_owned(), "none"),
        ("shown", showing(&pair), "none"),
    ] {
        let text = checked(&fixture, &source(&fixture, user, &parameters)).await;
        let said = format!("(TLSv1.3, authentication {method})");
        assert!(text.contains(&said), "{user}{parameters}: {text}");
        assert!(text.contains("may replicate"), "{user}{parameters}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unmet_require_auth_is_rejected_with_a_fix() {
    let fixture = fixture().await;
    for (user, parameters, code) in [
        ("by_md5", "&require_auth=scram-sha-256", "require_auth"),
        ("clear", "&require_auth=!password,!md5", "require_auth"),
        ("trusted", "&require_auth=scram-sha-256", "require_auth"),
        ("by_md5", "&channel_binding=require", "channel_binding"),
        ("trusted", "&channel_binding=require", "channel_binding"),
    ] {
        let text = checked(&fixture, &source(&fixture, user, parameters)).await;
        assert!(
            text.contains(code) && text.contains("scram-sha-256"),
            "{user}{parameters}: {text}"
        );
        let (file, kafka) =
            (fixture.file("url", &source(&fixture, user, parameters)), fixture.file("kafka", ""));
        let run = fixture.command("run", &fixture.kafka.kafka.bootstrap(), &file, &kafka).start();
        let (status, text) = ended(&run).await;
        assert_eq!(status, Some(78), "{user}{parameters}: {text}");
        assert!(text.contains(code), "{user}{parameters}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleartext_password_is_reported_and_not_sent_where_forbidden() {
    let fixture = fixture().await;
    let open = fixture.fixture.postgres.url_for("open").replace("open@", "open:p0stgres-s3cret@");
    let text = checked(&fixture, &format!("{open}?sslmode=disable")).await;
    assert!(text.contains("(no TLS, authentication password)"), "{text}");
    // A Unix-domain socket cannot be eavesdropped on.
    assert!(!text.contains("without TLS"), "{text}");
    let text = checked(&fixture, &format!("{open}?sslmode=disable&require_auth=!password")).await;
    assert!(text.contains("require_auth does not allow"), "{text}");
    let text = checked(&fixture, &format!("{open}?sslmode=disable&channel_binding=require")).await;
    assert!(text.contains("without TLS"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_and_status_name_tls_and_auth_method() {
    let fixture = fixture().await;
    let (file, kafka) =
        (fixture.file("url", &source(&fixture, "scram", "")), fixture.file("kafka", ""));
    let walpost = fixture
        .command("run", &fixture.kafka.kafka.bootstrap(), &file, &kafka)
        .args(["--admin-listen", "127.0.0.1:0"])
        .start();
    let line = walpost.await_line("connected to PostgreSQL", SHORT_TIMEOUT).await;
    let line: serde_json::Value = serde_json::from_str(&line).expect("a JSON line");
    assert_eq!(
        (&line["tls"], &line["authentication"]),
        (&"TLSv1.3".into(), &"scram-sha-256-plus".into())
    );
    assert!(!walpost.said("without TLS"), "{:?}", walpost.stderr());
    let status = Endpoints::of(&walpost).await.status().await;
    assert_eq!(status["tls"], "TLSv1.3", "{status}");
    assert_eq!(status["authentication"], "scram-sha-256-plus", "{status}");
}
