//! Which server a connection reached.
//!
//! A virtual IP address or a Kubernetes Service can route two connections to two servers. A slot's
//! state or an LSN read from one of them is then not valid for the other. So two values are
//! compared on every connection before anything is read, advanced or confirmed over it: the
//! cluster's system identifier (a standby has its primary's), and the postmaster's start time in
//! microseconds, which differs between a primary and its standby.
//!
//! Sources: PostgreSQL's manual, "Session Information Functions" (`pg_postmaster_start_time`),
//! "Control Data Functions" (`pg_control_system`).

use tokio_postgres::Client;

use crate::source::error::SourceError;
use crate::source::identity::server_identity::ServerIdentity;

/// The postmaster's start time, in microseconds since 1970. A crash recovery after the loss of a
/// server process does not change it.
pub(crate) const STARTED: &str = "SELECT (pg_catalog.date_part('epoch'::pg_catalog.text, \
     pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) \
     1000000::pg_catalog.float8)::pg_catalog.int8::pg_catalog.text";

const SYSTEM: &str =
    "SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system()";

/// The server of an SQL connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    /// `None` if the role may not read it.
    system_identifier: Option<String>,
    /// The start time of the postmaster, in microseconds since 1970.
    pub(crate) postmaster_start: i64,
}

impl Instance {
    /// Reads both values from the server.
    pub(crate) async fn of(client: &Client) -> Result<Self, SourceError> {
        const WHAT: &str = "identifying the server";
        let failed = |error| SourceError::query(WHAT, &error);
        // Pipelined on one connection, always in this order.
        let (started, system) = tokio::join!(
            biased;
            client.query_typed_one(STARTED, &[]),
            client.query_typed_one(SYSTEM, &[])
        );
        let started: String = started.and_then(|row| row.try_get(0)).map_err(failed)?;
        // Any role may read it, unless an administrator has revoked that.
        let system_identifier = match system {
            Ok(row) => Some(row.try_get(0).map_err(failed)?),
            Err(error) if error.as_db_error().is_some() => None,
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { system_identifier, postmaster_start: postmaster_start(&started)? })
    }

    /// Fails if another connection of the same session reached another server.
    pub(crate) fn require_same(&self, other: &Self) -> Result<(), SourceError> {
        let systems = self.system_identifier.as_ref().zip(other.system_identifier.as_ref());
        let is_same = self.postmaster_start == other.postmaster_start
            && systems.is_none_or(|(one, other)| one == other);
        if is_same { Ok(()) } else { Err(different(self, &format!("{other}"))) }
    }

    /// The same check for the replication session.
    pub(crate) fn require_identity(&self, identity: &ServerIdentity) -> Result<(), SourceError> {
        let other = Self {
            system_identifier: Some(identity.system_identifier.clone()),
            postmaster_start: identity.postmaster_start,
        };
        self.require_same(&other)
    }
}

impl std::fmt::Display for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let system = self.system_identifier.as_deref().unwrap_or("unknown");
        write!(f, "system identifier {system}, postmaster start {} µs", self.postmaster_start)
    }
}

/// Parses the result of [`STARTED`].
pub(crate) fn postmaster_start(text: &str) -> Result<i64, SourceError> {
    text.parse().map_err(|_| {
        let why = "the time at which the server started is not a number";
        SourceError::Lost(format!("identifying the server: {why}"))
    })
}

fn different(one: &Instance, other: &str) -> SourceError {
    SourceError::Lost(format!(
        "two connections reached two servers ({one}; {other}): nothing was read or confirmed. Let \
         the address lead to one server only, for instance with target_session_attrs=read-write"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(system: Option<&str>, postmaster_start: i64) -> Instance {
        Instance { system_identifier: system.map(str::to_owned), postmaster_start }
    }

    #[test]
    fn connections_to_two_servers_are_distinguished() {
        let primary = instance(Some("7"), 1);
        assert_eq!(primary.require_same(&primary), Ok(()));
        assert_eq!(primary.require_same(&instance(None, 1)), Ok(()), "it may not ask");
        for other in [instance(Some("7"), 2), instance(Some("8"), 1), instance(None, 2)] {
            let error = primary.require_same(&other).expect_err("another server");
            assert!(matches!(error, SourceError::Lost(_)), "it may be the same the next time");
        }
        let identity = |system: &str, postmaster_start| ServerIdentity {
            system_identifier: system.to_owned(),
            timeline: 1,
            postmaster_start,
        };
        assert_eq!(primary.require_identity(&identity("7", 1)), Ok(()));
        assert!(primary.require_identity(&identity("7", 2)).is_err());
        assert!(primary.require_identity(&identity("8", 1)).is_err());
    }
}
