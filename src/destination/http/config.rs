//! The configuration of the sink, and where it is read again.

use std::time::Duration;

use secrecy::SecretString;

use super::signature::Signers;
use super::url::HttpUrl;
use crate::destination::parts::Reread;
use crate::destination::parts::dial::Tls;

/// The endpoint, and what it is sent.
#[derive(Debug, Clone)]
pub(crate) struct HttpConfig {
    /// The endpoint.
    pub url: HttpUrl,
    /// How TLS is set up, if the URL asks for it.
    pub tls: Tls,
    /// What signs the requests.
    pub signers: Signers,
    /// The value of the header `authorization`.
    pub authorization: Option<SecretString>,
    /// How many requests may be in flight.
    pub lanes: u16,
    /// How long an answer may take.
    pub timeout: Duration,
    /// After which time an event that gets errors which usually pass is a suspect; `None`: never.
    pub give_up_after: Option<Duration>,
    /// Whether a topic is waited for if nothing takes it.
    pub waits_for_topic: bool,
    /// The topic of dead letters.
    pub dead_letters: String,
}

/// The configuration of the endpoint, which can be read again.
pub(crate) type HttpSource = Reread<HttpConfig>;
