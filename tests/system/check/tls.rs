//! TLS to PostgreSQL that authenticates no server, or is not available.

use std::time::{Duration, SystemTime};

use walpost_bed::{CertificateAuthority, KeyPair, Major, repository};

use crate::fixture::{Fixture, sound};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_tls_is_reported() {
    let mut fixture = Fixture::new().await;
    fixture.source.push_str("?sslmode=require");
    let follow = async |fixture: &mut Fixture, _: &str| {
        fixture.source = fixture.source.replace("sslmode=require", "sslmode=prefer");
    };
    fixture.finding_with_advice("error", "tls_unsupported", &["ssl on"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_root_certificate_file_is_reported() {
    let mut fixture = Fixture::new().await;
    let right = fixture.source.clone();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let roots = format!("?sslmode=verify-full&sslrootcert={}", file.path().display());
    fixture.source.push_str(&roots);
    let follow = async |fixture: &mut Fixture, _: &str| fixture.source.clone_from(&right);
    fixture.finding_with_advice("error", "tls_files", &["sslrootcert"], follow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_host_or_expired_certificate_is_reported() {
    let authority = CertificateAuthority::new();
    let good = authority.server("good");
    let builder = sound(Major::V15).tls(&good.certificate, &good.key);
    let mut fixture = Fixture::on(builder).await;
    fixture.source.push_str("?sslmode=verify-full&sslrootcert=");
    let without_roots = fixture.source.clone();
    fixture.source.push_str(&authority.root().display().to_string());
    fixture.check().await.is_clean();
    let show = async |fixture: &Fixture, pair: &KeyPair| {
        fixture.postgres.change_certificate(&pair.certificate, &pair.key).await;
    };

    let yesterday = SystemTime::now() - Duration::from_secs(86_400);
    show(&fixture, &authority.server_until("expired", yesterday)).await;
    let follow = async |fixture: &mut Fixture, _: &str| show(fixture, &good).await;
    fixture.finding_with_advice("error", "tls_certificate_expired", &["renew"], follow).await;

    show(&fixture, &authority.server_of("named", "DNS:localhost")).await;
    let follow = async |fixture: &mut Fixture, _: &str| {
        fixture.source = fixture.source.replace("127.0.0.1", "localhost");
    };
    fixture.finding_with_advice("error", "tls_name_mismatch", &["subjectAltName"], follow).await;

    show(&fixture, &authority.client("nameless", "server")).await;
    let follow = async |fixture: &mut Fixture, _: &str| show(fixture, &good).await;
    fixture.finding_with_advice("error", "tls_nameless", &["subjectAltName"], follow).await;

    show(&fixture, &authority.own()).await;
    let follow = async |fixture: &mut Fixture, _: &str| show(fixture, &good).await;
    fixture.finding_with_advice("error", "tls_authority", &["sign one"], follow).await;

    let right = fixture.source.clone();
    // The second was recreated under the old name.
    for root in [other_authority(), CertificateAuthority::new().root().display().to_string()] {
        fixture.source = without_roots.replace("127.0.0.1", "localhost") + &root;
        let follow = async |fixture: &mut Fixture, _: &str| fixture.source.clone_from(&right);
        fixture
            .finding_with_advice("error", "tls_unknown_authority", &["sslrootcert"], follow)
            .await;
    }
    fixture.check().await.is_clean();
}

/// The certificate of an authority that signed no certificate here.
pub fn other_authority() -> String {
    let path = repository().join("src/source/connection/testdata/other-ca.pem");
    path.display().to_string()
}
