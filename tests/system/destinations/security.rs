//! TLS and logins with each destination: right, wrong, and never shown.

use std::path::Path;
use std::sync::Arc;

use tempfile::NamedTempFile;
use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT, stop};
use walpost_bed::{CertificateAuthority, SinkFixture};

use crate::promise::{Destination, cases};
use crate::tls_front::TlsFront;

cases! {
    server_is_verified_by_a_private_authority(with_tls): all;
    client_certificate_is_shown(with_mutual_tls): [redis nats http];
    user_with_the_documented_rights_is_enough_and_its_password_is_never_shown(of_user):
        [redis nats rabbitmq];
}

/// A destination with TLS, in which walpost has no position yet.
pub struct Secured<D> {
    pub fixture: D,
    /// The authority that has signed its certificate.
    pub authority: Arc<CertificateAuthority>,
    /// What speaks TLS for a server that does not, as long as this lives.
    pub _front: Option<TlsFront>,
}

fn authority_at(fixture: &SinkFixture, path: &Path) -> String {
    format!("{}.ca_file = '{}'\n", fixture.kind(), path.display())
}

async fn server_is_verified_by_a_private_authority<D: Destination>(secured: &mut Secured<D>) {
    let Secured { fixture, authority, .. } = secured;
    let (stranger, empty) = (CertificateAuthority::new(), NamedTempFile::new().expect("a file"));
    for (path, part) in
        [(&*stranger.root(), "invalid peer certificate"), (empty.path(), "no usable certificate")]
    {
        fixture.configure(&authority_at(fixture, path));
        let (code, said) = fixture.ended("check", &[]).await;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(part), "{said}");
        // With a position, the store finds it first.
        if !D::HAS_POSITION {
            let walpost = fixture.command("run").start();
            walpost.await_line(part, SHORT_TIMEOUT).await;
            stop(walpost).await;
        }
    }
    fixture.configure(&authority_at(fixture, &authority.root()));
    fixture.begins().await;
    fixture.delivers().await;
    assert_no_error(fixture).await;
}

async fn assert_no_error<D: Destination>(fixture: &D) {
    let found = fixture.codes(&[]).await;
    let is_error = |(level, _): &(String, String)| level == "error";
    assert!(!found.is_empty() && !found.iter().any(is_error), "{found:?}");
}

/// TLS 1.3 rejects a client without a certificate only after the client's handshake.
async fn client_certificate_is_shown<D: Destination>(secured: &mut Secured<D>) {
    let Secured { fixture, authority, .. } = secured;
    let root = authority_at(fixture, &authority.root());
    fixture.configure(&root);
    fixture.assert_found("error", &format!("{}_unreachable", fixture.kind())).await;
    if !D::HAS_POSITION {
        // Before the first event.
        let walpost = fixture.command("run").start();
        walpost.await_line("CertificateRequired", SHORT_TIMEOUT).await;
        stop(walpost).await;
    }
    let (own, kind) = (authority.client("walpost", "walpost"), fixture.kind());
    let certificate = format!("{root}{kind}.cert_file = '{}'\n", own.certificate.display());
    fixture.configure(&certificate);
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains(&format!("set {kind}.key_file")), "{said}");
    fixture.configure(&format!("{certificate}{kind}.key_file = '{}'\n", own.key.display()));
    fixture.begins().await;
    fixture.delivers().await;
}

async fn user_with_the_documented_rights_is_enough_and_its_password_is_never_shown<
    D: Destination,
>(
    fixture: &mut D,
) {
    let (scheme, address) = fixture.url.split_once("://").expect("a URL");
    let login = |password: &str| format!("{scheme}://walpost:{password}@{address}");
    let (wrong, right) = (login("wr0ng"), login("s3cret"));
    fixture.url = wrong;
    let (code, said) = fixture.ended("run", &[]).await;
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains(&format!("{} refuses walpost's credentials", D::NAME)), "{said}");
    assert!(!said.contains("wr0ng"), "{said}");
    fixture.url = right;
    fixture.begins().await;
    fixture.delivers().await;
    let (_, said) = fixture.ended("config", &[]).await;
    assert!(
        said.contains(&format!("{}.url", fixture.kind())) && !said.contains("s3cret"),
        "{said}"
    );
    assert_no_error(fixture).await;
    if D::HAS_POSITION {
        operators_commands_need_no_more(fixture).await;
    }
}

async fn operators_commands_need_no_more<D: Destination>(fixture: &D) {
    fixture.configure("record.topics_allowed = ['x']\npoison.invalid_topic = 'dead_letter'\n");
    let walpost = fixture.run().await;
    fixture.insert(3, 3).await;
    fixture.confirmed(LONG_TIMEOUT).await;
    stop(walpost).await;
    fixture.configure("");
    let (code, said) = fixture.ended("replay-dead-letters", &[]).await;
    assert!(code == Some(0) && said.contains("replayed 3,"), "{said}");
    let (_, said) = fixture.ended("prune", &["--older-than", "0s"]).await;
    assert!(!said.contains("cannot be used"), "{said}");
}
