//! Every way in, used to deliver, as `docs/security.md` shows it.

use walpost_bed::scene::{SOON, insert};

use super::examples::{file, hba};
use super::place::{Place, ROLE_PASSWORD, USER, showing};
use super::token::token;

/// Twenty rows through a walpost that comes in by these examples.
async fn delivers(place: &Place, bootstrap: &str, database: &str, broker: &str, password: &str) {
    place.file("pgpass", "");
    file(place, "pgpass", "A password", "pgpass", "p0stgres-s3cret");
    place.file("token", &token(3600));
    let source = file(place, "url", database, "url", "p0stgres-s3cret");
    let kafka = file(place, "kafka", broker, "properties", password);
    let walpost = place.command("run", bootstrap, &source, &kafka).start();
    walpost.await_line("streaming from PostgreSQL", SOON).await;
    place.scene.postgres.execute(&insert(20, 3)).await;
    place.scene.assert_exact(SOON).await;
    walpost.terminate();
    let status = walpost.wait(SOON).await.expect("it stops");
    assert!(status.success(), "{:?}", walpost.stderr());
    // And the first look at such a place finds nothing wrong.
    let check = place.command("check", bootstrap, &source, &kafka).start();
    let status = check.wait(SOON).await.expect("it ends");
    assert!(status.success(), "{:?} {:?}", check.stdout(), check.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_delivered_with_passwords_inside_tls_on_both_ends() {
    let place = Place::new(&hba("A password")).await;
    let secure = place.kafka.kafka.secure_bootstrap();
    delivers(&place, &secure, "A password", "SCRAM", "scr4m-s3cret").await;
    delivers(&place, &secure, "A password", "PLAIN", "pl4in-s3cret").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_delivered_by_certificates_alone_on_both_ends_and_by_tokens() {
    let place = Place::new(&hba("A certificate")).await;
    let broker = &place.kafka.kafka;
    let mutual = broker.mutual_bootstrap();
    delivers(&place, &mutual, "A certificate", "A client certificate", "").await;
    delivers(&place, &broker.secure_bootstrap(), "A certificate", "OAUTHBEARER", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_delivered_with_a_password_and_a_certificate_beside_it() {
    let both = "hostssl all walpost 127.0.0.1/32 scram-sha-256 clientcert=verify-full";
    let place = Place::new(both).await;
    let pair = place.kafka.authority.client("beside", USER);
    let source = place.file("url", &place.source_with(ROLE_PASSWORD, &showing(&pair)));
    let kafka = place.file("kafka", &place.login("SCRAM-SHA-512", USER, "scr4m-s3cret"));
    let secure = place.kafka.kafka.secure_bootstrap();
    let walpost = place.command("run", &secure, &source, &kafka).start();
    place.scene.postgres.execute(&insert(20, 3)).await;
    place.scene.assert_exact(SOON).await;
    drop(walpost);
}
