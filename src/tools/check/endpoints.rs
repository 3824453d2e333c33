//! Checks the address on which `run` serves its endpoints, and the export of traces.

use std::io;

use crate::admin;
use crate::assembly;
use crate::config::Config;
use crate::findings::{Finding, Findings};

const SUBJECT: &str = "admin.listen";

/// The consequence if `run` cannot start.
const WHY: &str = "`run` would not start";

/// Whether the endpoints could listen: the address is bound for a moment, if it is free.
pub(crate) async fn check(config: &Config, findings: &mut Findings) {
    let Some(address) = &config.admin.listen else {
        return findings.add(Finding::ok((SUBJECT, "admin_listen"), "off"));
    };
    findings.add(match admin::could_listen(address).await {
        Ok(()) => Finding::ok((SUBJECT, "admin_listen"), format!("{address} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => in_use(address, config).await,
        Err(error) => {
            let text = format!("cannot listen on {address}: {error}");
            Finding::error((SUBJECT, "admin_listen"), text).why(WHY).advice(
                "set admin.listen to an address of this machine and a port that walpost's user \
                 may use, or to `off`",
            )
        }
    });
}

/// The address is already in use.
async fn in_use(address: &str, config: &Config) -> Finding {
    let holder = match admin::status(address).await {
        Ok(status) if is_status_of(&status, config) => {
            let from = match status.host.as_str() {
                "" => String::new(),
                host => format!(", which streams from {host}"),
            };
            let text = format!("the walpost of this slot listens on {address}{from}");
            return Finding::ok((SUBJECT, "admin_listen"), text);
        }
        Ok(status) if status.host.is_empty() => {
            format!("by the walpost of slot \"{}\"", status.slot)
        }
        Ok(status) => format!("by the walpost of slot \"{}\" at {}", status.slot, status.host),
        Err(error) => format!("by another program ({error})"),
    };
    Finding::error((SUBJECT, "admin_listen_in_use"), format!("{address} is in use {holder}"))
        .why(WHY)
        .advice("set admin.listen to another address, or to `off`")
}

/// Whether the running walpost with this `status` uses this configuration's slot on this
/// configuration's server: slot names are unique per server only.
pub(crate) fn is_status_of(status: &admin::Status, config: &Config) -> bool {
    let conninfo = assembly::conninfo(config);
    let has_host = |host: &str| {
        host.is_empty()
            || conninfo
                .is_ok_and(|conninfo| conninfo.hosts().iter().any(|one| one.to_string() == host))
    };
    status.slot == config.source.slot
        && status.publication == config.source.publication
        && has_host(&status.host)
}

/// Whether spans could be exported, if that is configured: nothing is sent.
#[cfg(feature = "traces")]
pub(crate) fn check_traces(findings: &mut Findings) {
    const NAME: (&str, &str) = ("traces", "traces");
    match crate::traces::exporter() {
        Ok(Some(_)) => findings.add(Finding::ok(NAME, "spans are sent to a collector")),
        Ok(None) => {}
        Err(reason) => findings.add(
            Finding::error(NAME, reason)
                .why(WHY)
                .advice("correct or unset the OTEL_* variable, or set OTEL_SDK_DISABLED=true"),
        ),
    }
}

/// A build without traces warns when it runs.
#[cfg(not(feature = "traces"))]
pub(crate) fn check_traces(_: &mut Findings) {}
