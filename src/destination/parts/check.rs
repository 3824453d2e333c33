//! What the checks of several destinations have in common.

use super::stored::{self, SlotAt};
use super::{Failure, url};
use crate::config::ConfigError;
use crate::findings::{Finding, Findings, Name};
use crate::sink::Peer;

const NOTHING_DELIVERED: &str = "nothing can be delivered, and PostgreSQL retains WAL meanwhile";

/// The names in the findings about a destination; [`subject`] makes one.
pub(crate) struct Subject {
    /// The destination in findings.
    pub(crate) name: &'static str,
    pub(crate) peer: &'static Peer,
    /// The setting of its address.
    pub(crate) address: &'static str,
    /// The page that lists what walpost's user needs.
    pub(crate) page: &'static str,
    pub(crate) config: Name,
    pub(crate) offline: Name,
    pub(crate) unreachable: Name,
    pub(crate) credentials: Name,
    pub(crate) permissions: Name,
    pub(crate) unsupported: Name,
    pub(crate) unusable: Name,
    pub(crate) plain: Name,
    pub(crate) version: Name,
    pub(crate) state: Name,
    pub(crate) state_missing: Name,
    pub(crate) position: Name,
    pub(crate) stream: Name,
}

/// A [`Subject`]: its name, its `sink.kind`, and the setting of its address.
macro_rules! subject {
    ($name:expr, $kind:literal, $address:literal, $peer:expr) => {
        $crate::destination::parts::check::Subject {
            name: $name,
            peer: $peer,
            address: $address,
            page: concat!("docs/", $kind, ".md"),
            config: ($name, concat!($kind, "_config")),
            offline: ($name, $kind),
            unreachable: ($name, concat!($kind, "_unreachable")),
            credentials: ($name, concat!($kind, "_credentials")),
            permissions: ($name, concat!($kind, "_permissions")),
            unsupported: ($name, concat!($kind, "_unsupported")),
            unusable: ($name, concat!($kind, "_unusable")),
            plain: ($name, concat!($kind, "_plain")),
            version: ($name, concat!($kind, "_version")),
            state: ($name, concat!($kind, "_state")),
            state_missing: ($name, concat!($kind, "_state_missing")),
            position: ($name, concat!($kind, "_position")),
            stream: ($name, concat!($kind, "_stream")),
        }
    };
}
pub(crate) use subject;

impl Subject {
    /// The settings, or a finding about them.
    pub(crate) fn settings<T>(
        &self,
        read: Result<T, ConfigError>,
        findings: &mut Findings,
    ) -> Option<T> {
        read.map_err(|error| {
            let finding = Finding::error(self.config, error.to_string());
            findings.add(finding.why("`run` would not start"));
        })
        .ok()
    }

    /// What a check of the settings alone leaves out.
    pub(crate) fn skips(&self, what: &str, findings: &mut Findings) {
        findings.add(Finding::skipped(self.offline, format!("{what} not looked at")));
    }

    /// Warns of a server on another machine to which events go without TLS.
    pub(crate) fn check_encryption(
        &self,
        (is_tls, host): (bool, &str),
        scheme: &str,
        findings: &mut Findings,
    ) {
        if is_tls || url::is_this_machine(host) {
            return;
        }
        findings.add(
            Finding::warning(self.plain, format!("events go to {host} without TLS"))
                .why("they can be read on the network")
                .advice(format!("use {scheme}, unless the network is trusted")),
        );
    }

    /// Why the destination at this address cannot be used.
    pub(crate) fn unusable(&self, address: &str, failure: &Failure) -> Finding {
        let Peer { unreachable, credentials, .. } = self.peer;
        let see = || "see the message".to_owned();
        let (name, why, fix) = match failure {
            Failure::Unreachable(_) => (
                self.unreachable,
                NOTHING_DELIVERED,
                format!("correct {}, or {unreachable}", self.address),
            ),
            Failure::Unauthenticated(_) => {
                (self.credentials, NOTHING_DELIVERED, format!("correct {credentials}"))
            }
            Failure::Unauthorized(_) | Failure::Denied(_) => (
                self.permissions,
                "what needs these rights cannot be delivered, or was not checked",
                format!("allow the user what {} lists", self.page),
            ),
            Failure::Unsupported(_) => (self.unsupported, "`run` does not start", see()),
            _ => (self.unusable, NOTHING_DELIVERED, see()),
        };
        let reason = failure.to_string();
        let text = match reason.strip_prefix(address) {
            Some(rest) if rest.starts_with([':', ' ']) => reason,
            _ => format!("{address}: {reason}"),
        };
        Finding::error(name, text).why(why).advice(fix)
    }

    /// Whether a version that `text` has is recent enough; a finding if not.
    pub(crate) fn is_recent(
        &self,
        version: &str,
        least: (u32, u32),
        text: &str,
        findings: &mut Findings,
    ) -> bool {
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        let is_recent = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= least;
        if !is_recent {
            findings.add(
                Finding::error(self.version, text)
                    .why(format!("walpost needs {} {}.{} or later", self.name, least.0, least.1))
                    .advice("upgrade the server"),
            );
        }
        is_recent
    }

    /// Compares the state key at `place`, if it `exists`, with the slot.
    pub(crate) fn check_state(
        &self,
        stream: &str,
        (exists, place): (bool, String),
        stored: Option<(&SlotAt, stored::Read)>,
        findings: &mut Findings,
    ) {
        if exists {
            let text = format!("stream {stream} has walpost's position, {place}");
            let names = stored::FindingNames {
                state: self.state,
                position: self.position,
                stream: self.stream,
                store: Some(self.name),
                place,
            };
            return stored::check(&names, text, stored, findings);
        }
        findings.add(
            Finding::error(self.state_missing, format!("stream {stream} is not walpost's yet"))
                .why("`run` does not start without its state key: it would not know what is there")
                .command("walpost adopt --apply"),
        );
    }
}
