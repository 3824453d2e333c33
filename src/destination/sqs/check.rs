//! Preflight checks of Amazon SQS. They read the attributes of the queues, and send no message.

use std::time::Duration;

use super::settings::sqs_config;
use super::sink::SQS;
use crate::config::Config;
use crate::destination::parts::Failure;
use crate::destination::parts::check::{Subject, subject};
use crate::destination::sqs::{Connection, QueueAttributes, QueueKind};
use crate::findings::{Finding, Findings};

const NAME: &str = "SQS";

const SUBJECT: Subject = subject!(NAME, "sqs", "sqs.queue_url or sqs.endpoint", &SQS);

/// Timeout for all answers together.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A shorter retention than the default of SQS, in seconds, may be over before an outage of a
/// consumer is.
const RETENTION_LEAST: u64 = 4 * 24 * 3600;

/// Checks the settings and, unless `offline`, the credentials and the queues.
pub(super) async fn check(config: &Config, offline: bool, findings: &mut Findings) {
    let read = sqs_config(config);
    let Some(sqs) = SUBJECT.settings(read, findings) else { return };
    let is_tls = sqs.endpoint.requires_tls();
    SUBJECT.check_encryption((is_tls, sqs.endpoint.host()), "https://", findings);
    if offline {
        return SUBJECT.skips("server, credentials and queues were", findings);
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
        Err(failure) => findings.add(SUBJECT.unusable(&address, &failure)),
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
    findings.add(Finding::ok((NAME, codes.0), text));
    if let Some(seconds) = attributes.retention_seconds.filter(|seconds| *seconds < RETENTION_LEAST)
    {
        let text = format!("{name} removes messages after {seconds} s (MessageRetentionPeriod)");
        findings.add(
            Finding::warning((NAME, codes.1), text)
                .why("they are removed whether consumers have read them or not")
                .advice("let it be longer than any outage of a consumer: up to 1209600 s"),
        );
    }
}
