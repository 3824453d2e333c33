//! Preflight checks of NATS. They only read.

use std::time::Duration;

use super::settings::{self, nats_config};
use super::sink::NATS;
use super::state::read_nats_state;
use crate::config::Config;
use crate::destination::nats::NatsConfig;
use crate::destination::nats::{
    Inspection, StreamConfig, StreamInfo, bucket, connect, covers, inspect, unfit,
};
use crate::destination::parts::Failure;
use crate::destination::parts::check::{Subject, subject};
use crate::destination::parts::stored::{self, SlotAt};
use crate::findings::{Finding, Findings};
use crate::record::Policy;

const NAME: &str = "NATS";

const SUBJECT: Subject = subject!(NAME, "nats", "nats.url", &NATS);

/// Timeout for all answers together.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The oldest version that walpost is tested with has more than this one needs: headers, and the
/// expected sequence numbers.
const VERSION_LEAST: (u32, u32) = (2, 10);

/// Shorter ones forget a message before a reconnect has settled.
const WINDOW_LEAST: Duration = Duration::from_secs(30);

/// Checks the settings and, unless `offline`, the servers and the stream.
pub(super) async fn check(
    config: &Config,
    (offline, slot): (bool, Option<&SlotAt>),
    findings: &mut Findings,
) {
    let read = nats_config(config);
    let Some(nats) = SUBJECT.settings(read, findings) else { return };
    if offline {
        return SUBJECT.skips("server, credentials and stream were", findings);
    }
    let asked = async {
        let connection = connect(&nats).await?;
        let facts = connection.or_failed(inspect(&connection.client, &nats)).await?;
        let stored = match slot.filter(|_| facts.has_state) {
            Some(slot) => Some((slot, read_nats_state(&connection, &nats, &slot.key).await)),
            None => None,
        };
        Ok((facts, stored))
    };
    let late = || Failure::Unreachable(format!("no answer within {TIMEOUT:?}"));
    let facts = tokio::time::timeout(TIMEOUT, asked).await.unwrap_or_else(|_| Err(late()));
    match facts {
        Ok((facts, stored)) => check_facts((config, &nats), &facts, stored, findings),
        Err(failure) => findings.add(SUBJECT.unusable(&nats.url.address(), &failure)),
    }
}

fn check_facts(
    (config, nats): (&Config, &NatsConfig),
    facts: &Inspection,
    stored: Option<(&SlotAt, stored::Read)>,
    findings: &mut Findings,
) {
    let text = format!("{} answers: NATS {}, with JetStream", nats.url.address(), facts.version);
    if !SUBJECT.is_recent(&facts.version, VERSION_LEAST, &text, findings) {
        return;
    }
    findings.add(Finding::ok((NAME, "nats_server"), text));
    let Some(stream) = &facts.stream else {
        let text = format!("stream {} does not exist", nats.stream);
        return findings.add(
            Finding::error((NAME, "nats_stream_missing"), text)
                .why("nothing can be delivered, and PostgreSQL retains WAL meanwhile")
                .command(create(config, nats)),
        );
    };
    let unfit = unfit(stream);
    if let Some(why) = unfit {
        let text = format!("stream {} cannot be used: {why}", nats.stream);
        findings
            .add(Finding::error((NAME, "nats_stream_unfit"), text).why("`run` would not start"));
    }
    check_room(nats, facts, stream, findings);
    check_subjects(config, nats, stream, findings);
    check_durability(nats, stream, facts.bucket.as_ref(), findings);
    check_limits(nats, &stream.config, findings);
    // What `run` reads then says the same.
    if unfit.is_none() {
        let state = (facts.has_state, settings::place(config));
        SUBJECT.check_state(&nats.stream, state, stored, findings);
    }
}

/// The patterns of all subjects.
fn patterns(config: &Config, nats: &NatsConfig) -> Vec<String> {
    let topic = match crate::config::profile(config).map(|profile| profile.topic_of_all()) {
        Ok(Some(topic)) => topic,
        _ => config.record.topic.clone(),
    };
    let mut patterns = vec![nats.subject.pattern(&topic)];
    if config.poison.include(Policy::DeadLetter) {
        patterns.push(nats.dead_letters.clone());
    }
    patterns
}

fn create(config: &Config, nats: &NatsConfig) -> String {
    format!(
        "nats stream add {} --subjects '{}' --storage file --retention limits --discard new \
         --replicas 1 --dupe-window 2m --defaults",
        nats.stream,
        patterns(config, nats).join(",")
    )
}

fn check_subjects(
    config: &Config,
    nats: &NatsConfig,
    stream: &StreamInfo,
    findings: &mut Findings,
) {
    // Topics that Debezium's options or a rewrite choose are known only from the events.
    let is_known = config.record.profile.is_none() && config.record.topic_rewrite.is_none();
    let subjects = &stream.config.subjects;
    let has = format!("stream {} has the subjects {}", nats.stream, subjects.join(", "));
    let is_covered = |one: &&String| subjects.iter().any(|pattern| covers(pattern, one));
    let patterns = patterns(config, nats);
    match patterns.iter().find(|one| !is_covered(one)) {
        Some(missing) if is_known || *missing == nats.dead_letters => {
            let text = format!("{has}, and events or dead letters go to {missing}");
            findings.add(
                Finding::warning((NAME, "nats_subjects"), text)
                    .why(
                        "an event whose subject the stream does not have falls under \
                         poison.missing_topic: by default walpost waits for it",
                    )
                    .advice(format!(
                        "add {missing} to the subjects of the stream, unless those that can occur are \
                         there (nats stream edit --subjects)"
                    )),
            );
        }
        _ => findings.add(Finding::ok((NAME, "nats_subjects"), has)),
    }
}

fn check_durability(
    nats: &NatsConfig,
    stream: &StreamInfo,
    bucket: Option<&StreamInfo>,
    findings: &mut Findings,
) {
    let StreamConfig { storage, num_replicas, duplicate_window, .. } = &stream.config;
    if storage != "file" {
        findings.add(
            Finding::error((NAME, "nats_storage"), format!("the stream's storage is {storage}"))
                .why("a restart of the server loses all messages")
                .advice("create the stream again, with storage `file`"),
        );
    }
    let window = Duration::from_nanos(u64::try_from(*duplicate_window).unwrap_or_default());
    if window < WINDOW_LEAST {
        findings.add(
            Finding::warning(
                (NAME, "nats_duplicate_window"),
                format!("the stream's duplicate window is {window:?}"),
            )
            .why(
                "what a broken connection still had under way is then not recognised, and delivery \
                 starts again once more; nothing is published twice by that",
            )
            .command(format!("nats stream edit {} --dupe-window 2m", nats.stream)),
        );
    }
    if *num_replicas < 2 {
        findings.add(
            Finding::warning(
                (NAME, "nats_replicas"),
                format!("the stream has {num_replicas} replica(s)"),
            )
            .why(
                "when the machine crashes, acknowledged messages that the server had not synced are \
                 lost (jetstream.sync_interval, two minutes by default), and all of them if the machine \
                 is lost",
            )
            .advice(
                "set jetstream.sync_interval of the server to `always` and nats.sync_interval to `0s`; \
                 or both to the same time, for which walpost keeps WAL to publish them again",
            ),
        );
    } else {
        let text = format!("the stream has {num_replicas} replicas");
        findings.add(
            Finding::warning((NAME, "nats_replicas"), text)
                .why(
                    "walpost is not tested with clusters: with somebody else publishing to the \
                     stream, a server of a cluster has reported a critical write error",
                )
                .advice("use a stream with one replica on a single server, or test this first"),
        );
    }
    if let Some(bucket) = bucket.filter(|bucket| bucket.config.num_replicas < *num_replicas) {
        let replicas = bucket.config.num_replicas;
        let name = self::bucket(&nats.stream);
        findings.add(
            Finding::warning(
                (NAME, "nats_bucket_replicas"),
                format!("the bucket {name} has {replicas} replica(s), fewer than the stream"),
            )
            .why("nothing is confirmed to PostgreSQL while it cannot be written")
            .command(format!("nats stream edit KV_{name} --replicas {num_replicas}")),
        );
    }
}

fn check_limits(nats: &NatsConfig, stream: &StreamConfig, findings: &mut Findings) {
    let limits = [
        ("max_msgs", stream.max_msgs),
        ("max_bytes", stream.max_bytes),
        ("max_msgs_per_subject", stream.max_msgs_per_subject),
    ];
    let limits = limits.iter().filter(|(_, limit)| *limit > 0);
    let names: Vec<_> = limits.map(|(name, limit)| format!("{name} {limit}")).collect();
    if !names.is_empty() && stream.discard == "old" {
        let text =
            format!("stream {} discards its oldest messages ({})", nats.stream, names.join(", "));
        findings.add(
            Finding::warning((NAME, "nats_discard"), text)
                .why("they are removed whether consumers have read them or not")
                .command(format!("nats stream edit {} --discard new", nats.stream)),
        );
    } else if !names.is_empty() {
        let text = format!(
            "stream {} accepts no more messages at its limits ({}): walpost then waits",
            nats.stream,
            names.join(", ")
        );
        findings.add(Finding::ok((NAME, "nats_discard"), text));
    }
    if stream.max_age > 0 {
        let age = Duration::from_nanos(u64::try_from(stream.max_age).unwrap_or_default());
        let text = format!("stream {} removes messages after {age:?} (max_age)", nats.stream);
        findings.add(
            Finding::warning((NAME, "nats_max_age"), text)
                .why("they are removed whether consumers have read them or not")
                .advice("let max_age be longer than any outage of a consumer"),
        );
    }
}

/// Checks whether the stream could take a message now.
fn check_room(nats: &NatsConfig, facts: &Inspection, stream: &StreamInfo, findings: &mut Findings) {
    let StreamInfo { config, state, .. } = stream;
    let is_reached = |limit: i64, used: u64| limit > 0 && used >= limit.unsigned_abs();
    let limits = [
        ("max_msgs", config.max_msgs, state.messages),
        ("max_bytes", config.max_bytes, state.bytes),
    ];
    let mut reached = limits.iter().filter(|(_, limit, used)| is_reached(*limit, *used));
    if let Some((name, limit, _)) = reached.next().filter(|_| config.discard == "new") {
        findings.add(full(format!("stream {} is full ({name} {limit})", nats.stream)));
    }
    let (limit, used) = (facts.account.limits.max_storage, facts.account.storage);
    if is_reached(limit, used) {
        findings.add(full(format!("the account uses all of its storage ({limit} bytes)")));
    }
}

fn full(text: String) -> Finding {
    Finding::error((NAME, "nats_full"), text)
        .why("nothing can be delivered, and PostgreSQL retains WAL meanwhile")
        .advice("raise the limit, or purge messages that all consumers have read")
}
