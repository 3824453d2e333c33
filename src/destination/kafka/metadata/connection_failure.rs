//! Why no broker can be used, from librdkafka's connection errors.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;

use crate::destination::kafka::error::breaks_in_handshake;

/// How long a connection attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Why no broker can be used, with librdkafka's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionFailure {
    /// The brokers reject the credentials.
    Credentials(String),
    /// A SASL mechanism that the brokers do not offer.
    Mechanism(String),
    /// TLS fails.
    Tls(TlsFailure, String),
    /// Advertised addresses at which nothing answers, of brokers that answer themselves.
    Advertised(String),
    /// Another protocol than walpost uses: with TLS, or without.
    Protocol(String),
    /// No broker answers.
    Unreachable(String),
}

/// Why TLS with a broker fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFailure {
    /// The broker's certificate cannot be verified. librdkafka does not report whether it has
    /// expired, is for other host names, or is signed by an unknown authority.
    Certificate,
    /// Anything else.
    Other,
}

/// The remedy for [`ConnectionFailure::Advertised`].
pub(crate) const CORRECT_ADVERTISED: &str = "correct advertised.listeners of the brokers for the \
     listener that --bootstrap-servers names, or name the listener that is meant for this network";

impl ConnectionFailure {
    /// The error that says most about the cause, the first of several.
    pub(super) fn most_specific(errors: &[(Code, String)]) -> Option<Self> {
        errors.iter().map(|(code, message)| Self::of(*code, message)).min_by_key(Self::rank)
    }

    /// Whether the brokers reject the login: waiting does not help.
    pub fn is_refused_login(&self) -> bool {
        matches!(self, Self::Credentials(_) | Self::Mechanism(_))
    }

    /// librdkafka's message.
    pub fn into_reason(self) -> String {
        match self {
            Self::Credentials(reason)
            | Self::Mechanism(reason)
            | Self::Tls(_, reason)
            | Self::Advertised(reason)
            | Self::Protocol(reason)
            | Self::Unreachable(reason) => reason,
        }
    }

    /// librdkafka's message, with what to do if the cause is known by it.
    pub(crate) fn into_advice(self) -> String {
        let fix = match &self {
            Self::Protocol(_) => {
                "set security.protocol as the listener has it, or name another port in --bootstrap-servers"
            }
            Self::Advertised(_) => CORRECT_ADVERTISED,
            _ => return self.into_reason(),
        };
        format!("{}; {fix}", self.into_reason())
    }

    /// The same after a look at `bootstrap_servers`. Blocks for some seconds.
    ///
    /// A server that accepts connections, and closes each at the first request, uses another
    /// protocol.
    pub(super) fn probed(self, bootstrap_servers: &str) -> Self {
        match self {
            Self::Unreachable(reason)
                if !breaks_in_handshake(&reason)
                    && bootstrap_servers.split(',').any(|one| accepts_connections(one.trim())) =>
            {
                Self::Protocol(reason)
            }
            failure => failure,
        }
    }

    /// The cause that an error means: by its code, and where the code says too little by its
    /// message, which is librdkafka's or OpenSSL's.
    ///
    /// The default is `Unreachable`, whose advice is true of every connection error. Texts
    /// depend on it, the exit code of `replay-dead-letters`, and whether it is worth waiting longer.
    pub(crate) fn of(code: Code, message: &str) -> Self {
        let lower_case = message.to_ascii_lowercase();
        let has = |part: &str| lower_case.contains(part);
        let text = message.to_owned();
        match code {
            Code::Authentication
                if has("mechanism") && (has("unsupported") || has("not supported")) =>
            {
                Self::Mechanism(text)
            }
            Code::Authentication => Self::Credentials(text),
            _ if has("wrong version number")
                || has("incorrect security.protocol")
                || has("invalid response size") =>
            {
                Self::Protocol(text)
            }
            Code::SSL if has("certificate") && has("verif") => {
                Self::Tls(TlsFailure::Certificate, text)
            }
            Code::SSL => Self::Tls(TlsFailure::Other, text),
            // An alert arrives after the handshake has ended on this side.
            _ if has("ssl routines") => Self::Tls(TlsFailure::Other, text),
            _ if breaks_in_handshake(message) => Self::Unreachable(text),
            // Such as `host:9092/7: Connect to …`: the address is from another broker's metadata.
            _ if is_of_a_broker_with_id(message) => Self::Advertised(text),
            _ => Self::Unreachable(text),
        }
    }

    /// The lower, the more it says about the cause.
    fn rank(&self) -> u8 {
        match self {
            Self::Mechanism(_) => 0,
            Self::Credentials(_) => 1,
            Self::Tls(TlsFailure::Certificate, _) => 2,
            Self::Protocol(_) => 3,
            Self::Advertised(_) => 4,
            Self::Tls(TlsFailure::Other, _) => 5,
            Self::Unreachable(_) => 6,
        }
    }
}

/// Whether an error is of a connection to a broker whose id is known.
fn is_of_a_broker_with_id(message: &str) -> bool {
    let peer = message.split_once(": ").map_or("", |(peer, _)| peer);
    peer.rsplit_once('/').is_some_and(|(_, id)| id.parse::<i32>().is_ok())
}

/// Whether something accepts connections at this `host:port`. Blocks for a few seconds at most.
pub fn accepts_connections(address: &str) -> bool {
    let bare = address.rsplit_once("://").map_or(address, |(_, bare)| bare);
    let Ok(mut found) = bare.to_socket_addrs() else {
        return false;
    };
    found.any(|one| TcpStream::connect_timeout(&one, CONNECT_TIMEOUT).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_error_explains_the_failure() {
        assert_eq!(ConnectionFailure::most_specific(&[]), None);
        let refused = "Connect to ipv6#[::1]:9092 failed: Connection refused";
        let mut errors = vec![(Code::BrokerTransportFailure, refused.to_owned())];
        let unreachable = ConnectionFailure::Unreachable(refused.to_owned());
        assert_eq!(ConnectionFailure::most_specific(&errors), Some(unreachable));
        let password = "Authentication failed: Invalid username or password";
        errors.push((Code::Authentication, password.to_owned()));
        let credentials = ConnectionFailure::Credentials(password.to_owned());
        assert_eq!(ConnectionFailure::most_specific(&errors), Some(credentials));
    }
}
