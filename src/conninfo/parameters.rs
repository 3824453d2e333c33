//! libpq's connection parameters: names, environment variables, and how walpost handles each. The
//! list is that of PostgreSQL 18.

use super::error::{ConnInfoError, Origin};

/// How a parameter is handled.
pub(super) enum Treatment {
    /// A parameter that walpost uses.
    Used,
    /// Accepted and ignored, without consequences.
    Ignored,
    /// Accepted with these values, which have no effect; any other is rejected with this reason.
    Only(&'static [&'static str], &'static str),
}

use Treatment::{Ignored, Only, Used};

/// A parameter of libpq.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) variable: Option<&'static str>,
    pub(super) treatment: Treatment,
}

const fn parameter(name: &'static str, variable: &'static str, treatment: Treatment) -> Parameter {
    Parameter { name, variable: Some(variable), treatment }
}

const fn without_variable(name: &'static str, treatment: Treatment) -> Parameter {
    Parameter { name, variable: None, treatment }
}

const NO_REVOCATION: &str = "certificate revocation lists are not checked; remove it";
const NO_OAUTH: &str = "OAuth authentication is not supported";
const NO_SCRAM_KEYS: &str = "SCRAM keys are not supported; give the password";

/// All of libpq's parameters.
pub(super) const PARAMETERS: &[Parameter] = &[
    parameter("service", "PGSERVICE", Used),
    parameter("user", "PGUSER", Used),
    parameter("password", "PGPASSWORD", Used),
    parameter("passfile", "PGPASSFILE", Used),
    parameter("connect_timeout", "PGCONNECT_TIMEOUT", Used),
    parameter("dbname", "PGDATABASE", Used),
    parameter("host", "PGHOST", Used),
    parameter("hostaddr", "PGHOSTADDR", Used),
    parameter("port", "PGPORT", Used),
    parameter("options", "PGOPTIONS", Used),
    parameter("application_name", "PGAPPNAME", Used),
    without_variable("fallback_application_name", Used),
    without_variable("keepalives", Used),
    without_variable("keepalives_idle", Used),
    without_variable("keepalives_interval", Used),
    without_variable("keepalives_count", Used),
    without_variable("tcp_user_timeout", Used),
    parameter("sslmode", "PGSSLMODE", Used),
    parameter("sslrootcert", "PGSSLROOTCERT", Used),
    parameter("sslcert", "PGSSLCERT", Used),
    parameter("sslkey", "PGSSLKEY", Used),
    parameter(
        "sslcertmode",
        "PGSSLCERTMODE",
        Only(
            &["disable", "allow"],
            "whether the server asked for the certificate is not checked; use allow",
        ),
    ),
    parameter("target_session_attrs", "PGTARGETSESSIONATTRS", Used),
    parameter("client_encoding", "PGCLIENTENCODING", Ignored),
    parameter("sslcompression", "PGSSLCOMPRESSION", Ignored),
    parameter("krbsrvname", "PGKRBSRVNAME", Ignored),
    parameter("gsslib", "PGGSSLIB", Ignored),
    parameter("gssdelegation", "PGGSSDELEGATION", Ignored),
    parameter("load_balance_hosts", "PGLOADBALANCEHOSTS", Ignored),
    parameter("sslkeylogfile", "PGSSLKEYLOGFILE", Ignored),
    parameter("channel_binding", "PGCHANNELBINDING", Used),
    parameter(
        "gssencmode",
        "PGGSSENCMODE",
        Only(&["disable", "prefer"], "GSSAPI encryption is not supported; use TLS"),
    ),
    parameter(
        "sslnegotiation",
        "PGSSLNEGOTIATION",
        Only(&["postgres"], "only the negotiation named postgres is supported"),
    ),
    parameter("sslsni", "PGSSLSNI", Only(&["1"], "the server's name is always sent")),
    without_variable(
        "sslpassword",
        Only(&[], "encrypted private keys are not supported; decrypt the key"),
    ),
    parameter("sslcrl", "PGSSLCRL", Only(&[], NO_REVOCATION)),
    parameter("sslcrldir", "PGSSLCRLDIR", Only(&[], NO_REVOCATION)),
    parameter(
        "requirepeer",
        "PGREQUIREPEER",
        Only(&[], "the owner of the server process is not checked"),
    ),
    parameter("require_auth", "PGREQUIREAUTH", Used),
    parameter(
        "ssl_min_protocol_version",
        "PGSSLMINPROTOCOLVERSION",
        Only(
            &["TLSv1", "TLSv1.1", "TLSv1.2"],
            "TLS 1.2 is the least, and TLS 1.3 cannot be demanded",
        ),
    ),
    parameter(
        "ssl_max_protocol_version",
        "PGSSLMAXPROTOCOLVERSION",
        Only(&["TLSv1.3"], "TLS 1.3 is always offered"),
    ),
    parameter(
        "min_protocol_version",
        "PGMINPROTOCOLVERSION",
        Only(&["3.0"], "protocol 3.0 is spoken"),
    ),
    parameter("max_protocol_version", "PGMAXPROTOCOLVERSION", Ignored),
    without_variable(
        "replication",
        Only(&["false", "off", "no", "0"], "walpost opens the replication session itself"),
    ),
    without_variable("scram_client_key", Only(&[], NO_SCRAM_KEYS)),
    without_variable("scram_server_key", Only(&[], NO_SCRAM_KEYS)),
    without_variable("oauth_issuer", Only(&[], NO_OAUTH)),
    without_variable("oauth_client_id", Only(&[], NO_OAUTH)),
    without_variable("oauth_client_secret", Only(&[], NO_OAUTH)),
    without_variable("oauth_scope", Only(&[], NO_OAUTH)),
];

/// Whether libpq has a parameter of that name.
pub(crate) fn is_known(name: &str) -> bool {
    known(name).is_some()
}

/// The parameter with that name.
pub(super) fn known(name: &str) -> Option<&'static Parameter> {
    PARAMETERS.iter().find(|parameter| parameter.name == name)
}

/// The error for a name that libpq does not know. With `may_be_secret`, the name may be part of a
/// password and is not shown.
pub(super) fn unknown(name: &str, may_be_secret: bool) -> ConnInfoError {
    if may_be_secret {
        return ConnInfoError::UnknownParameter { name: None, nearest: None };
    }
    let nearest = PARAMETERS
        .iter()
        .map(|parameter| (strsim::jaro_winkler(name, parameter.name), parameter.name))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, nearest)| nearest);
    ConnInfoError::UnknownParameter { name: Some(name.to_owned()), nearest }
}

impl Parameter {
    /// Rejects an unsupported value. An empty value counts as not set, as in libpq.
    pub(super) fn check(&self, value: &str, origin: Origin) -> Result<(), ConnInfoError> {
        match self.treatment {
            Only(accepted, reason) if !value.is_empty() && !accepted.contains(&value) => {
                Err(ConnInfoError::NotHonoured { parameter: self.name, origin, reason })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_and_no_variable_is_listed_twice() {
        for (at, parameter) in PARAMETERS.iter().enumerate() {
            for other in &PARAMETERS[at + 1..] {
                assert_ne!(parameter.name, other.name);
                assert!(parameter.variable.is_none() || parameter.variable != other.variable);
            }
        }
    }

    #[test]
    fn an_unknown_name_yields_the_nearest_known_one() {
        let said = |name| unknown(name, false).to_string();
        assert_eq!(
            said("ssl_mode"),
            "unknown connection parameter `ssl_mode`: is `sslmode` meant?"
        );
        assert_eq!(said("datbase"), "unknown connection parameter `datbase`");
        assert!(said("usr").contains("`user`"));
        assert!(!unknown("hunter2", true).to_string().contains("hunter2"));
    }
}
