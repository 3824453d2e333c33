//! Differences of managed services: their replacements for REPLICATION and ALTER SYSTEM.
//!
//! A service is recognised by its own role. docs/managed-services.md lists the requirements of each
//! service, with sources.

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::Client;

/// The operator of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hosting {
    /// Self-managed, with a superuser and access to the server's files.
    Own,
    /// Amazon RDS or Aurora.
    Rds,
    /// Google Cloud SQL.
    CloudSql,
    /// Azure Database for PostgreSQL.
    Azure,
    /// Neon.
    Neon,
    /// Supabase.
    Supabase,
}

const ROLES: [(&str, Hosting); 5] = [
    ("rds_superuser", Hosting::Rds),
    ("cloudsqlsuperuser", Hosting::CloudSql),
    ("azure_pg_admin", Hosting::Azure),
    ("neon_superuser", Hosting::Neon),
    ("supabase_admin", Hosting::Supabase),
];

impl Hosting {
    /// Detects the service by its own role.
    pub(crate) async fn of(client: &Client) -> Result<Self, tokio_postgres::Error> {
        let names = ROLES.map(|(name, _)| name);
        let query = "SELECT rolname::pg_catalog.text FROM pg_catalog.pg_roles \
                     WHERE rolname::pg_catalog.text = ANY ($1)";
        let row = client.query_opt(&format!("{query} LIMIT 1"), &[&&names[..]]).await?;
        let found: Option<String> = row.map(|row| row.try_get(0)).transpose()?;
        let service = ROLES.iter().find(|(name, _)| found.as_deref() == Some(name));
        Ok(service.map_or(Self::Own, |(_, service)| *service))
    }

    /// The service's name; `None` if the server is self-managed.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::Own => None,
            Self::Rds => Some("Amazon RDS"),
            Self::CloudSql => Some("Google Cloud SQL"),
            Self::Azure => Some("Azure Database for PostgreSQL"),
            Self::Neon => Some("Neon"),
            Self::Supabase => Some("Supabase"),
        }
    }

    /// The statement that permits replication to a role.
    pub(crate) fn grant_replication(self, role: &str) -> String {
        let role = escape_identifier(role);
        match self {
            Self::Rds => format!("GRANT rds_replication TO {role};"),
            _ => format!("ALTER ROLE {role} REPLICATION;"),
        }
    }

    /// How to enable logical decoding, if not by `ALTER SYSTEM`.
    pub(crate) fn logical_decoding(self) -> Option<&'static str> {
        match self {
            Self::Own => None,
            Self::Rds => Some(
                "set rds.logical_replication = 1 in the instance's parameter group (Aurora: in \
                 the cluster's), then reboot it",
            ),
            Self::CloudSql => Some(
                "set the flag cloudsql.logical_decoding = on, which restarts the instance: gcloud \
                 sql instances patch INSTANCE --database-flags=cloudsql.logical_decoding=on (and \
                 every other flag that it has)",
            ),
            Self::Azure => Some(
                "set the server parameter wal_level = logical, then restart the server: az \
                 postgres flexible-server parameter set --name wal_level --value logical",
            ),
            Self::Neon => Some(
                "turn on logical replication in the project's settings; it restarts all its \
                 computes, and cannot be turned off",
            ),
            Self::Supabase => {
                Some("wal_level is logical there as a rule: ask Supabase what has changed it")
            }
        }
    }

    /// Statements that change a setting, effective after a reload; or an instruction for the
    /// service.
    pub(crate) fn set(self, setting: &str, value: &str) -> Result<String, String> {
        match self.name() {
            None => Ok(format!(
                "ALTER SYSTEM SET {setting} = {}; SELECT pg_catalog.pg_reload_conf();",
                escape_literal(value).trim_start()
            )),
            Some(service) => {
                Err(format!("set {setting} = {value} among the parameters of {service}"))
            }
        }
    }

    /// The same for a setting that requires a restart.
    pub(crate) fn set_and_restart(self, setting: &str, value: &str) -> Result<String, String> {
        match self.name() {
            None => Ok(format!(
                "ALTER SYSTEM SET {setting} = {}; -- then restart PostgreSQL",
                escape_literal(value).trim_start()
            )),
            Some(service) => Err(format!(
                "set {setting} = {value} among the parameters of {service}, and restart the server"
            )),
        }
    }
}
