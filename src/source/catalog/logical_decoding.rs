//! Whether the server decodes logically: the level of its WAL, and the output plugins that it loads.

use tokio_postgres::Row;

/// Selects what [`LogicalDecoding::from_row`] reads.
///
/// PostgreSQL 19 has `effective_wal_level`, which is raised from `replica` to `logical` for the first
/// logical slot (not on a standby). `output_plugin_libraries` came with the minor releases of August
/// 2026 (15.19, 16.15, 17.11, 18.6; CVE-2026-6471).
pub(crate) const COLUMNS: &str = "
    coalesce(pg_catalog.current_setting('effective_wal_level', true),
             pg_catalog.current_setting('wal_level')),
    pg_catalog.current_setting('effective_wal_level', true) IS NOT NULL
    AND pg_catalog.current_setting('wal_level') = 'replica' AND NOT pg_catalog.pg_is_in_recovery(),
    (SELECT l.setting FROM pg_catalog.pg_settings l WHERE l.name = 'output_plugin_libraries')";

/// What the server's settings say of logical decoding.
#[derive(Debug, Clone)]
pub struct LogicalDecoding {
    /// The level of the WAL now: `minimal`, `replica` or `logical`.
    pub wal_level: String,
    /// Whether the level is raised for the first logical slot.
    pub rises: bool,
    /// The output plugins that may be loaded, separated by commas; `None`: all.
    pub plugins: Option<String>,
}

/// Why the server does not decode for walpost.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lack<'a> {
    /// The WAL has not what decoding needs: its level.
    WalLevel(&'a str),
    /// pgoutput may not be loaded: the plugins that may.
    Plugin(&'a str),
}

impl LogicalDecoding {
    /// Reads [`COLUMNS`], of which the first has this index.
    pub(crate) fn from_row(row: &Row, first: usize) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            wal_level: row.try_get(first)?,
            rises: row.try_get(first + 1)?,
            plugins: row.try_get(first + 2)?,
        })
    }

    /// What a session with a logical slot lacks.
    pub(crate) fn lack(&self) -> Option<Lack<'_>> {
        if self.wal_level != "logical" && !self.rises {
            return Some(Lack::WalLevel(&self.wal_level));
        }
        let plugins = self.plugins.as_deref()?;
        let mut names = plugins.split(',').map(|name| name.trim().trim_matches('"'));
        (!names.any(|name| name == "pgoutput")).then_some(Lack::Plugin(plugins))
    }
}

/// The remedy for [`Lack::Plugin`].
pub(crate) const ADD_PLUGIN: &str = "add pgoutput to output_plugin_libraries, beside what is in \
     it, and reload the configuration (SELECT pg_catalog.pg_reload_conf())";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_that_rises_and_a_list_with_pgoutput_are_sufficient() {
        let decoding = |wal_level: &str, rises, plugins: Option<&str>| LogicalDecoding {
            wal_level: wal_level.to_owned(),
            rises,
            plugins: plugins.map(str::to_owned),
        };
        for (level, rises, plugins) in [
            ("logical", false, None),
            ("replica", true, None),
            ("logical", true, Some("pgoutput, test_decoding")),
            ("logical", false, Some("wal2json,\"pgoutput\"")),
        ] {
            assert_eq!(decoding(level, rises, plugins).lack(), None, "{level} {plugins:?}");
        }
        assert_eq!(decoding("replica", false, None).lack(), Some(Lack::WalLevel("replica")));
        for without in ["", "test_decoding", "pgoutput2", "$libdir/pgoutput"] {
            let decoding = decoding("logical", false, Some(without));
            assert_eq!(decoding.lack(), Some(Lack::Plugin(without)));
        }
    }
}
