//! The transport: a socket with its options, and optionally TLS.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ProtocolVersion};
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::oid::db::rfc5912;

use super::error::WireError;
use super::policy::Binding;
use crate::conninfo::{Host, HostAddress, Keepalive};

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects; `address` is `None` for a Unix socket.
    ///
    /// With `user_timeout`, the connection fails if the server does not acknowledge data for the
    /// connection string's `tcp_user_timeout`. A connection whose receiver may pause must not set
    /// it: Linux applies the timeout also while the peer's receive window is closed.
    pub(crate) async fn connect(
        host: &Host,
        address: Option<IpAddr>,
        keepalive: &Keepalive,
        user_timeout: bool,
    ) -> io::Result<Self> {
        let socket = match (&host.address, address) {
            (HostAddress::Unix(directory), _) => {
                let path = directory.join(format!(".s.PGSQL.{}", host.port));
                return UnixStream::connect(path).await.map(Self::Unix);
            }
            (HostAddress::Tcp { .. }, Some(address)) => {
                TcpStream::connect((address, host.port)).await?
            }
            (HostAddress::Tcp { name, .. }, None) => {
                TcpStream::connect((name.as_str(), host.port)).await?
            }
        };
        socket.set_nodelay(true)?;
        let options = SockRef::from(&socket);
        if user_timeout {
            options.set_tcp_user_timeout(Some(keepalive.user_timeout))?;
        }
        if keepalive.enabled {
            let times = TcpKeepalive::new()
                .with_time(keepalive.idle)
                .with_interval(keepalive.interval)
                .with_retries(keepalive.retries);
            options.set_tcp_keepalive(&times)?;
        }
        Ok(Self::Tcp(socket))
    }

    /// The address on this machine; `None` for a Unix socket.
    pub(crate) fn local_address(&self) -> Option<IpAddr> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp(socket) => socket.local_addr().ok().map(|address| address.ip()),
        }
    }
}

/// A connection, with or without TLS.
#[derive(Debug)]
pub(crate) enum Line<S> {
    Plain(S),
    Tls {
        stream: Box<TlsStream<S>>,
        /// The data for `tls-server-end-point` channel binding, if the certificate allows any.
        end_point: Option<Vec<u8>>,
    },
}

/// Negotiates TLS as `config` says, for a server of that name; `None` means no TLS.
pub(crate) async fn secure<S>(
    mut stream: S,
    tls: Option<(Arc<ClientConfig>, &str)>,
) -> Result<Line<S>, WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Some((config, name)) = tls else {
        return Ok(Line::Plain(stream));
    };
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    stream.flush().await?;
    // Reads exactly one byte: anything after it must be encrypted.
    match stream.read_u8().await? {
        b'S' => {}
        b'N' => return Err(WireError::NoTls),
        // The error message is not authenticated, so it is not shown.
        b'E' => return Err(WireError::Closed),
        _ => return Err(WireError::Protocol("no answer to a request for TLS".to_owned())),
    }
    let name = ServerName::try_from(name.to_owned())
        .map_err(|error| WireError::Protocol(format!("the host's name: {error}")))?;
    let stream = Box::new(TlsConnector::from(config).connect(name, stream).await?);
    let certificates = stream.get_ref().1.peer_certificates();
    let end_point = certificates.and_then(<[_]>::first).and_then(|first| end_point(first));
    Ok(Line::Tls { stream, end_point })
}

impl<S> Line<S> {
    /// The channel binding that a SCRAM exchange can use.
    pub(super) fn binding(&self) -> Binding {
        match (self.is_encrypted(), self.end_point()) {
            (false, _) => Binding::Unencrypted,
            (true, None) => Binding::Unknown,
            (true, Some(_)) => Binding::EndPoint,
        }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls { .. })
    }

    /// The data for `tls-server-end-point`.
    pub(crate) fn end_point(&self) -> Option<&[u8]> {
        match self {
            Self::Plain(_) => None,
            Self::Tls { end_point, .. } => end_point.as_deref(),
        }
    }

    /// The TLS version, as PostgreSQL names it.
    pub(crate) fn tls_version(&self) -> Option<&'static str> {
        let Self::Tls { stream, .. } = self else { return None };
        Some(match stream.get_ref().1.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "TLS",
        })
    }
}

/// The certificate's digest by the hash function of its signature, at least SHA-256
/// (<https://www.rfc-editor.org/rfc/rfc5929#section-4.1>). `None` if the signature algorithm has no
/// hash function.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let parsed = Certificate::from_der(certificate).ok()?;
    let by: fn(&[u8]) -> Vec<u8> = match parsed.signature_algorithm.oid {
        rfc5912::SHA_1_WITH_RSA_ENCRYPTION
        | rfc5912::SHA_256_WITH_RSA_ENCRYPTION
        | rfc5912::ECDSA_WITH_SHA_256
        | MD5_WITH_RSA
        | ECDSA_WITH_SHA_1 => |bytes| Sha256::digest(bytes).to_vec(),
        rfc5912::SHA_384_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_384 => {
            |bytes| Sha384::digest(bytes).to_vec()
        }
        rfc5912::SHA_512_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_512 => {
            |bytes| Sha512::digest(bytes).to_vec()
        }
        _ => return None,
    };
    Some(by(certificate))
}

const MD5_WITH_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.4");
const ECDSA_WITH_SHA_1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.1");
const ECDSA_WITH_SHA_512: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.4");

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Line<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls { stream, .. } => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Line<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls { stream, .. } => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls { stream, .. } => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls { stream, .. } => Pin::new(stream).poll_shutdown(context),
        }
    }
}
