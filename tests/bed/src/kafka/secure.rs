//! TLS listeners of a broker, and their certificates.

use std::fs;
use std::path::{Path, PathBuf};

use super::Kafka;
use crate::ca::{CertificateAuthority, KeyPair};
use crate::error::{BedError, Doing};

/// The lines of `server.properties`, without those for authentication.
pub(super) fn text(kafka: &Kafka) -> String {
    let (own, roots) = (kafka.certificate_path(), kafka.roots_path());
    format!(
        "ssl.keystore.type=PEM\n\
         ssl.keystore.location={}\n\
         ssl.truststore.type=PEM\n\
         ssl.truststore.location={}\n\
         listener.name.mutual.ssl.client.auth=required\n",
        own.display(),
        roots.display()
    )
}

impl Kafka {
    /// Replaces the broker's certificate, in force for new connections on return.
    pub async fn change_certificate(&self, pair: &KeyPair) {
        self.write_certificate(pair).unwrap_or_else(|error| panic!("{error}"));
        let node = self.node.to_string();
        let entity = ["--entity-type", "brokers", "--entity-name", &node];
        for listener in ["secure", "mutual"] {
            let location = self.certificate_path();
            // The same name: the broker sees that the file is another.
            let change =
                format!("listener.name.{listener}.ssl.keystore.location={}", location.display());
            let arguments = [&["--alter", "--add-config", &change], &entity[..]].concat();
            self.tool("kafka.admin.ConfigCommand", &arguments).await;
        }
    }

    pub(super) fn write_certificates(&self, pair: &KeyPair, root: &Path) -> Result<(), BedError> {
        fs::copy(root, self.roots_path()).doing(|| format!("copying {}", root.display()))?;
        self.write_certificate(pair)
    }

    fn write_certificate(&self, pair: &KeyPair) -> Result<(), BedError> {
        let path = self.certificate_path();
        let text = CertificateAuthority::together(pair).doing(|| "reading a certificate".into())?;
        fs::write(&path, text).doing(|| format!("writing {}", path.display()))
    }

    fn certificate_path(&self) -> PathBuf {
        self.directory().join("certificate.pem")
    }

    fn roots_path(&self) -> PathBuf {
        self.directory().join("roots.pem")
    }
}
