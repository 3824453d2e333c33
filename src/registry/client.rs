//! Asks a registry over HTTP: a connection for each question, since there are few.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1::handshake;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret as _;
use tokio::time::timeout;

use super::answer::{Failure, read};
use super::settings::{RegistryConfig, RegistryUrl};
use crate::destination::parts::attempts::chain;
use crate::destination::parts::dial::{dial, secured};
use crate::record::{Known, SchemaRef};

/// Maximum length of an answer, in bytes.
const ANSWER_MAX: usize = 4 << 20;

/// Of what the registry's answers are, by its documentation.
const MEDIA_TYPES: &str = "application/vnd.schemaregistry.v1+json, application/json";

/// Asks the registry for a schema: each of its addresses in turn, until one has it. It is missing only if each of
/// them says so.
pub(super) async fn ask(config: &RegistryConfig, schema: &SchemaRef) -> Result<Known, Failure> {
    let path = path(schema);
    let mut last = Err(Failure::Unusable("registry.url has no address".to_owned()));
    for url in &config.urls {
        let answer = get(config, url, &path).await;
        let answer = answer.and_then(|(status, body)| read(schema, status, &body));
        match answer.map_err(|failure| failure.of(url)) {
            Ok(missing @ Known::Missing(_)) if !matches!(last, Err(Failure::Unavailable(_))) => {
                last = Ok(missing);
            }
            Ok(Known::Missing(_)) => {}
            Ok(known) => return Ok(known),
            Err(failure) => last = Err(failure),
        }
    }
    last
}

/// Whether one of the registry's addresses answers to that path.
pub(super) async fn answers(config: &RegistryConfig, path: &str) -> Result<StatusCode, Failure> {
    let mut last = Err(Failure::Unusable("registry.url has no address".to_owned()));
    for url in &config.urls {
        match get(config, url, path).await {
            Ok((status, _)) if status.is_success() => return Ok(status),
            Ok((status, _)) => last = Ok(status),
            Err(failure) => last = Err(failure.of(url)),
        }
    }
    last
}

/// The answer of an address to `GET` of a path behind its own.
async fn get(
    config: &RegistryConfig,
    url: &RegistryUrl,
    path: &str,
) -> Result<(StatusCode, Bytes), Failure> {
    let late = |limit: Duration| Failure::Unavailable(format!("no answer within {limit:?}"));
    let answered = timeout(config.timeout, get_from(config, url, path)).await;
    answered.unwrap_or_else(|_| Err(late(config.timeout)))
}

impl Failure {
    /// The failure, with the address that has it.
    fn of(self, url: &RegistryUrl) -> Self {
        match self {
            Self::Unavailable(reason) => Self::Unavailable(format!("{}: {reason}", url.address())),
            other => other,
        }
    }
}

async fn get_from(
    config: &RegistryConfig,
    url: &RegistryUrl,
    path: &str,
) -> Result<(StatusCode, Bytes), Failure> {
    let failed = |error: &(dyn std::error::Error + 'static)| Failure::Unavailable(chain(error));
    let server = (&*url.server.host, url.server.port);
    let stream = dial(server).await;
    let tls = url.server.tls.then_some(&config.tls);
    let stream = secured(stream.map_err(unreachable)?, server, tls).await.map_err(unreachable)?;
    let opened = handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = opened.map_err(|error| failed(&error))?;
    let mut request = Request::get(format!("{}{path}", url.path))
        .header(HOST, &url.server.authority)
        .header(ACCEPT, MEDIA_TYPES);
    if let Some(authorization) = &config.authorization {
        let mut value = HeaderValue::from_str(authorization.expose_secret())
            .map_err(|_| Failure::Unusable("registry.authorization is not a header".to_owned()))?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    let request = request.body(Empty::<Bytes>::new());
    let request = request.map_err(|error| Failure::Unusable(error.to_string()))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        let body = body.map_err(|error| Failure::Unavailable(format!("its answer: {error}")))?;
        Ok((status, body.to_bytes()))
    };
    let (mut connection, mut exchange) = (std::pin::pin!(connection), std::pin::pin!(exchange));
    tokio::select! {
        // The answer first: a server may close the connection right after it.
        biased;
        answer = &mut exchange => answer,
        ended = &mut connection => match ended {
            // What was received may be complete.
            Ok(()) => exchange.await,
            Err(error) => Err(failed(&error)),
        },
    }
}

fn unreachable(failure: crate::destination::parts::Failure) -> Failure {
    use crate::destination::parts::Failure as Dialed;
    match failure {
        Dialed::Unusable(reason) => Failure::Unusable(reason),
        other => Failure::Unavailable(other.to_string()),
    }
}

/// The path of a schema.
fn path(schema: &SchemaRef) -> String {
    match schema {
        SchemaRef::Version(subject, version) => {
            let version = version.map_or("latest".to_owned(), |version| version.to_string());
            format!("/subjects/{}/versions/{version}", encoded(subject))
        }
        SchemaRef::Id(id) => format!("/schemas/ids/{id}"),
    }
}

/// A segment of a path, percent-encoded (RFC 3986, section 2.3).
fn encoded(segment: &str) -> String {
    let mut encoded = String::new();
    // As it is, such a segment leads elsewhere.
    let is_dots = matches!(segment, "." | "..");
    for byte in segment.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if is_plain && !is_dots {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_is_one_segment_of_the_path() {
        for (subject, version, expected) in [
            ("orders-value", None, "/subjects/orders-value/versions/latest"),
            ("a/b:c ü", Some(3), "/subjects/a%2Fb%3Ac%20%C3%BC/versions/3"),
            ("..", None, "/subjects/%2E%2E/versions/latest"),
        ] {
            assert_eq!(path(&SchemaRef::Version(subject.to_owned(), version)), expected);
        }
        assert_eq!(path(&SchemaRef::Id(7)), "/schemas/ids/7");
    }
}
