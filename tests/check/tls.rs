//! TLS with PostgreSQL proves nothing, or is not to be had.

use std::time::{Duration, SystemTime};

use walpost_bed::{Authority, Major, Pair};

use crate::stage::{Stage, sound};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_has_no_tls() {
    let mut stage = Stage::new().await;
    stage.source.push_str("?sslmode=require");
    let follow = async |stage: &mut Stage, _: &str| {
        stage.source = stage.source.replace("sslmode=require", "sslmode=prefer");
    };
    stage.advised("error", "tls_unsupported", &["ssl on"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_of_roots_has_none() {
    let mut stage = Stage::new().await;
    let right = stage.source.clone();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let roots = format!("?sslmode=verify-full&sslrootcert={}", file.path().display());
    stage.source.push_str(&roots);
    let follow = async |stage: &mut Stage, _: &str| stage.source.clone_from(&right);
    stage.advised("error", "tls_files", &["sslrootcert"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_certificate_is_for_others_or_too_old() {
    let authority = Authority::new();
    let good = authority.server("good");
    let builder = sound(Major::V15).tls(&good.certificate, &good.key);
    let mut stage = Stage::on(builder).await;
    stage.source.push_str("?sslmode=verify-full&sslrootcert=");
    let without_roots = stage.source.clone();
    stage.source.push_str(&authority.root().display().to_string());
    stage.check().await.is_clean();
    let show = async |stage: &Stage, pair: &Pair| {
        stage.postgres.change_certificate(&pair.certificate, &pair.key).await;
    };

    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    show(&stage, &authority.server_until("expired", yesterday)).await;
    let follow = async |stage: &mut Stage, _: &str| show(stage, &good).await;
    stage.advised("error", "tls_certificate_expired", &["renew"], follow).await;

    show(&stage, &authority.server_of("named", "DNS:localhost")).await;
    let follow = async |stage: &mut Stage, _: &str| {
        stage.source = stage.source.replace("127.0.0.1", "localhost");
    };
    stage.advised("error", "tls_name_mismatch", &["subjectAltName"], follow).await;

    show(&stage, &authority.client("nameless", "server")).await;
    let follow = async |stage: &mut Stage, _: &str| show(stage, &good).await;
    stage.advised("error", "tls_nameless", &["subjectAltName"], follow).await;

    show(&stage, &authority.own()).await;
    let follow = async |stage: &mut Stage, _: &str| show(stage, &good).await;
    stage.advised("error", "tls_authority", &["sign one"], follow).await;

    let right = stage.source.clone();
    // The second was made anew under the old name.
    for root in [other_authority(), Authority::new().root().display().to_string()] {
        stage.source = without_roots.replace("127.0.0.1", "localhost") + &root;
        let follow = async |stage: &mut Stage, _: &str| stage.source.clone_from(&right);
        stage.advised("error", "tls_unknown_authority", &["sslrootcert"], follow).await;
    }
    stage.check().await.is_clean();
}

/// The certificate of an authority that signs nothing here.
pub fn other_authority() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/src/source/connection/testdata/other-ca.pem").to_owned()
}
