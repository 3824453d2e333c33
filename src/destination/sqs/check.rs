//! Preflight checks of Amazon SQS. They read the attributes of the queues, and send no message.

use std::time::Duration;

use super::settings::sqs_config;
use crate::config::{Config, Environment};
use crate::destination::parts::attempts::Failure;
use crate::destination::sqs::SqsConfig;
use crate::destination::sqs::{Connection, QueueAttributes, QueueKind};
use crate::findings::{Finding, Findings};

const SUBJECT: &str = "SQS";

/// Timeout for all answers together.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A shorter retention than the default of SQS, in seconds, may be over before an outage of a
/// consumer is.
const RETENTION_LEAST: u64 = 4 * 24 * 3600;

/// Checks the settings and, unless `offline`, the credentials and the queues.
pub(super) async fn check(config: &Config, offline: bool, findings: &mut Findings) {
    let sqs = match sqs_config(config, &Environment::of_process()) {
        Ok(sqs) => sqs,
        Err(error) => {
            let finding = Finding::error((SUBJECT, "sqs_config"), error.to_string());
            return findings.add(finding.why("`run` would not start"));
        }
    };
    check_plain(&sqs, findings);
    if offline {
        let text = "server, credentials and queues were not checked";
        return findings.add(Finding::skipped((SUBJECT, "sqs"), text));
    }
    let address = sqs.endpoint.address().to_owned();
    let late = || Failure::Unreachable(format!("{address}: no answer within {TIMEOUT:?}"));
    let queues = [Some(sqs.queue.clone()), sqs.dead_letter_queue.clone()];
    let opened = tokio::time::timeout(TIMEOUT, Connection::open(sqs)).await;
    match opened.unwrap_or_else(|_| Err(late())) {
        Ok((_, attributes)) => {
            for (kind, (queue, attributes)) in
                QueueKind::ALL.into_iter().zip(queues.iter().zip(attributes))
            {
                if let (Some(queue), Some(attributes)) = (queue, attributes) {
                    check_queue(kind, queue.name(), &attributes, findings);
                }
            }
        }
        Err(failure) => findings.add(unusable(&failure)),
    }
}

fn unusable(failure: &Failure) -> Finding {
    let (code, fix) = match failure {
        Failure::Unreachable(_) => (
            "sqs_unreachable",
            "correct sqs.queue_url or sqs.endpoint, and see that the server can be reached from here",
        ),
        Failure::Unauthenticated(_) => (
            "sqs_credentials",
            "correct the AWS credentials or sqs.region, and allow what docs/sqs.md lists",
        ),
        Failure::Unusable(_) => ("sqs_unusable", "see the message"),
    };
    Finding::error((SUBJECT, code), failure.to_string())
        .why("nothing can be delivered, and PostgreSQL retains WAL meanwhile")
        .advice(fix)
}

fn check_plain(sqs: &SqsConfig, findings: &mut Findings) {
    if !sqs.endpoint.requires_tls() && !sqs.endpoint.is_local() {
        let text = format!("{} is not https://", sqs.endpoint);
        findings.add(
            Finding::warning((SUBJECT, "sqs_plain"), text)
                .why("events can be read on the network")
                .advice("use https://, unless the network is trusted"),
        );
    }
}

fn check_queue(kind: QueueKind, name: &str, attributes: &QueueAttributes, findings: &mut Findings) {
    let codes = match kind {
        QueueKind::Events => ("sqs_queue", "sqs_retention"),
        QueueKind::DeadLetters => ("sqs_dead_letter_queue", "sqs_dead_letter_retention"),
    };
    let throughput = if attributes.deduplicates_by_group && attributes.has_quota_by_group {
        "in high-throughput mode"
    } else {
        "not in high-throughput mode"
    };
    let text = format!(
        "{name} is a FIFO queue {throughput}, for messages of up to {} bytes",
        attributes.limits.bytes
    );
    findings.add(Finding::ok((SUBJECT, codes.0), text));
    if let Some(seconds) = attributes.retention_seconds.filter(|seconds| *seconds < RETENTION_LEAST)
    {
        let text = format!("{name} removes messages after {seconds} s (MessageRetentionPeriod)");
        findings.add(
            Finding::warning((SUBJECT, codes.1), text)
                .why("they are removed whether consumers have read them or not")
                .advice("let it be longer than any outage of a consumer: up to 1209600 s"),
        );
    }
}
