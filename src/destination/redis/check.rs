//! Preflight checks of Redis. They only read.

use std::time::Duration;

use super::settings::{self, redis_config};
use super::sink::REDIS;
use super::state::read_redis_state;
use crate::config::Config;
use crate::destination::parts::Failure;
use crate::destination::parts::check::{Subject, subject};
use crate::destination::parts::stored::SlotAt;
use crate::destination::redis::RedisConfig;
use crate::destination::redis::{Inspection, REWRITE, connect, inspect};
use crate::findings::{Finding, Findings};
use crate::record::Policy;

const NAME: &str = "Redis";

const SUBJECT: Subject = subject!(NAME, "redis", "redis.url", &REDIS);

/// Timeout for all answers together.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The oldest version with everything that the scripts use (`XADD … NOMKSTREAM`, `XINFO`'s ids).
const VERSION_LEAST: (u32, u32) = (7, 0);

/// Checks the URL and, unless `offline`, the server and the stream.
pub(super) async fn check(
    config: &Config,
    (offline, slot): (bool, Option<&SlotAt>),
    findings: &mut Findings,
) {
    let read = redis_config(config);
    let Some(redis) = SUBJECT.settings(read, findings) else { return };
    if offline {
        return SUBJECT.skips("server, credentials and stream were", findings);
    }
    let asked = async {
        let connection = connect(&redis).await?;
        let facts = inspect(&connection, &redis).await?;
        let stored = match slot.filter(|_| facts.has_state) {
            Some(slot) => Some((slot, read_redis_state(&connection, &redis, &slot.key).await)),
            None => None,
        };
        Ok((facts, stored))
    };
    let late = || Failure::Unreachable(format!("no answer within {TIMEOUT:?}"));
    let facts = tokio::time::timeout(TIMEOUT, asked).await.unwrap_or_else(|_| Err(late()));
    match facts {
        Ok((facts, stored)) => {
            if check_server(&redis, &facts, findings) {
                check_facts(config, &redis, &facts, findings);
                let state = (facts.has_state, settings::place(config));
                SUBJECT.check_state(&redis.stream, state, stored, findings);
            }
        }
        Err(failure) => findings.add(SUBJECT.unusable(&redis.url.address(), &failure)),
    }
}

/// Checks the server; returns whether the other checks make sense.
fn check_server(redis: &RedisConfig, facts: &Inspection, findings: &mut Findings) -> bool {
    let version = &facts.greeting.version;
    let text = format!("{} answers: Redis {version}", redis.url.address());
    if version.is_empty() {
        let text = format!("{text}(its version is not known: walpost's user may not use HELLO)");
        findings.add(Finding::skipped((NAME, "redis_version"), text));
        return true;
    }
    if !SUBJECT.is_recent(version, VERSION_LEAST, &text, findings) {
        return false;
    }
    findings.add(Finding::ok((NAME, "redis_server"), text));
    if facts.greeting.role == "replica" {
        findings.add(
            Finding::error((NAME, "redis_replica"), "the server is a replica")
                .why("it accepts no entries")
                .advice("name the primary in redis.url"),
        );
    } else if let Err(failure) = &facts.writes {
        findings.add(
            Finding::error(
                (NAME, "redis_writes"),
                format!("the server takes no writes: {failure}"),
            )
            .why("nothing can be delivered, and PostgreSQL retains WAL meanwhile")
            .advice("see the message"),
        );
    }
    true
}

fn check_facts(config: &Config, redis: &RedisConfig, facts: &Inspection, findings: &mut Findings) {
    check_durability(redis, facts, findings);
    check_replicas(redis, facts, findings);
    check_type(&redis.stream, "redis.stream", &facts.kind, findings);
    if config.poison.include(Policy::DeadLetter) {
        let (name, kind) = (&redis.dead_letters, &facts.kind_of_letters);
        check_type(name, "poison.dead_letter_topic", kind, findings);
    }
}

fn check_durability(redis: &RedisConfig, facts: &Inspection, findings: &mut Findings) {
    if let Err(error) = &facts.settings {
        let text =
            format!("walpost's user may not see the server's settings (CONFIG GET): {error}");
        return findings.add(Finding::skipped((NAME, "redis_settings"), text));
    }
    let policy = facts.setting("maxmemory-policy").unwrap_or_default();
    let is_limited = facts.setting("maxmemory").is_some_and(|limit| limit != "0");
    if policy.starts_with("allkeys-") {
        let text = format!("maxmemory-policy is {policy}");
        let now = if is_limited { "" } else { ", once maxmemory is set" };
        findings.add(
            Finding::error((NAME, "redis_eviction"), text)
                .why(format!(
                    "Redis may evict the stream with everything in it, or walpost's state key{now}"
                ))
                .command(command(redis, "CONFIG SET maxmemory-policy noeviction")),
        );
    }
    let appends = facts.setting("appendonly") == Some("yes");
    let fsync = facts.setting("appendfsync").unwrap_or_default();
    if !appends {
        findings.add(
            Finding::warning((NAME, "redis_appendonly"), "appendonly is off")
                .why(
                    "when Redis restarts, entries since its last snapshot are lost; walpost then \
                     refuses to start (exit code 3), and does not publish them again",
                )
                .command(command(redis, "CONFIG SET appendonly yes")),
        );
    } else if fsync != "always" {
        findings.add(
            Finding::warning((NAME, "redis_appendfsync"), format!("appendfsync is {fsync}"))
                .why(
                    "when the machine of Redis crashes, entries that were not synced are lost, and \
                     consumers may have read them; walpost adds them again, since it confirms them to \
                     PostgreSQL only once they are synced",
                )
                .command(command(redis, "CONFIG SET appendfsync always")),
        );
    } else if facts.setting(REWRITE) == Some("yes") {
        findings.add(
            Finding::warning((NAME, "redis_rewrite"), format!("{REWRITE} is yes"))
                .why(
                    "while Redis rewrites its log, nothing is synced: when its machine crashes \
                     then, entries of that time are lost although they were acknowledged",
                )
                .command(command(redis, &format!("CONFIG SET {REWRITE} no"))),
        );
    } else {
        findings.add(Finding::ok((NAME, "redis_durability"), "each write is synced to the log"));
    }
}

fn check_replicas(redis: &RedisConfig, facts: &Inspection, findings: &mut Findings) {
    let count = match facts.info("connected_slaves") {
        Ok(count) => count,
        Err(reason) => {
            let text = format!("walpost's user may not see the replicas (INFO): {reason}");
            return findings.add(Finding::skipped((NAME, "redis_replicas"), text));
        }
    };
    let replicas: u32 = count.and_then(|count| count.parse().ok()).unwrap_or_default();
    let wanted = redis.wait_replicas;
    if replicas < wanted {
        let text =
            format!("{replicas} replicas are connected, and redis.wait_replicas is {wanted}");
        findings.add(
            Finding::error((NAME, "redis_wait_replicas"), text)
                .why("no entry counts as delivered")
                .advice("connect the replicas, or lower redis.wait_replicas"),
        );
    } else if replicas > 0 && wanted == 0 {
        let text = format!("{replicas} replica(s), and redis.wait_replicas is 0");
        findings.add(
            Finding::warning((NAME, "redis_failover"), text)
                .why("a failover to a replica that is behind loses acknowledged entries")
                .advice("set redis.wait_replicas to the number of replicas that may take over"),
        );
    }
}

/// Checks whether entries can be added to the key that a setting names.
fn check_type(name: &str, setting: &str, kind: &Result<String, String>, findings: &mut Findings) {
    match kind.as_deref() {
        Ok("stream" | "none") => {}
        Err(reason) => {
            let text = format!("walpost's user may not see the type of {name} (TYPE): {reason}");
            findings.add(Finding::skipped((NAME, "redis_stream_type"), text));
        }
        Ok(other) => findings.add(
            Finding::error((NAME, "redis_stream_type"), format!("{name} is a {other}"))
                .why("entries can be added to streams only")
                .advice(format!("set {setting} to another name")),
        ),
    }
}

fn command(redis: &RedisConfig, text: &str) -> String {
    format!("redis-cli -h {} -p {} {text}", redis.url.host, redis.url.port)
}
