//! Preflight checks of Redis. They only read.

use std::time::Duration;

use super::settings::redis_config;
use super::state::read_redis_state;
use crate::config::{Config, Environment};
use crate::destination::parts::stored::{self, SlotAt};
use crate::destination::redis::RedisConfig;
use crate::destination::redis::{Failure, Inspection, REWRITE, connect, inspect, owner_key};
use crate::findings::{Finding, Findings};
use crate::record::Policy;

const SUBJECT: &str = "Redis";

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
    let redis = match redis_config(config, &Environment::of_process()) {
        Ok(redis) => redis,
        Err(error) => {
            let finding = Finding::error((SUBJECT, "redis_config"), error.to_string());
            return findings.add(finding.why("`run` would not start"));
        }
    };
    if offline {
        let text = "server, credentials and stream were not looked at";
        return findings.add(Finding::skipped((SUBJECT, "redis"), text));
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
                check_state(&redis, &facts, stored, findings);
            }
        }
        Err(failure) => findings.add(unusable(&redis, &failure)),
    }
}

fn unusable(redis: &RedisConfig, failure: &Failure) -> Finding {
    let address = redis.url.address();
    let (code, text, why, fix) = match failure {
        Failure::Unreachable(_) => (
            "redis_unreachable",
            "cannot be used",
            "nothing can be delivered, and PostgreSQL retains WAL meanwhile",
            "correct redis.url, and see that the server can be reached from here",
        ),
        Failure::Unauthenticated(_) => (
            "redis_credentials",
            "refuses walpost's credentials",
            "without them it accepts no commands",
            "correct user and password in redis.url",
        ),
        Failure::Unauthorized(_) => (
            "redis_acl",
            "does not allow walpost's user what this check needs",
            "the checks that depend on it were skipped",
            "allow the user what docs/redis.md lists",
        ),
        Failure::Unsupported(_) => (
            "redis_cluster",
            "cannot be used with walpost",
            "`run` does not start: walpost does not follow a stream from node to node",
            "name a server that is not part of a cluster in redis.url",
        ),
        Failure::Unusable(_)
        | Failure::TooLarge { .. }
        | Failure::Entry { .. }
        | Failure::Superseded
        | Failure::Fenced
        | Failure::Stream(_) => (
            "redis_unusable",
            "answers, and cannot be used",
            "nothing can be delivered, and PostgreSQL retains WAL meanwhile",
            "see the message",
        ),
    };
    Finding::error((SUBJECT, code), format!("{address} {text}: {failure}")).why(why).advice(fix)
}

/// Checks the server; returns whether the other checks make sense.
fn check_server(redis: &RedisConfig, facts: &Inspection, findings: &mut Findings) -> bool {
    let version = &facts.greeting.version;
    let text = format!("{} answers: Redis {version}", redis.url.address());
    if version.is_empty() {
        let text = format!("{text}(its version is not known: walpost's user may not use HELLO)");
        findings.add(Finding::skipped((SUBJECT, "redis_version"), text));
        return true;
    }
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if number < VERSION_LEAST {
        let (major, minor) = VERSION_LEAST;
        findings.add(
            Finding::error((SUBJECT, "redis_version"), text)
                .why(format!("walpost needs Redis {major}.{minor} or later"))
                .advice("upgrade Redis"),
        );
        return false;
    }
    findings.add(Finding::ok((SUBJECT, "redis_server"), text));
    if facts.greeting.role == "replica" {
        findings.add(
            Finding::error((SUBJECT, "redis_replica"), "the server is a replica")
                .why("it accepts no entries")
                .advice("name the primary in redis.url"),
        );
    } else if let Err(failure) = &facts.writes {
        findings.add(
            Finding::error(
                (SUBJECT, "redis_writes"),
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
        return findings.add(Finding::skipped((SUBJECT, "redis_settings"), text));
    }
    let policy = facts.setting("maxmemory-policy").unwrap_or_default();
    let is_limited = facts.setting("maxmemory").is_some_and(|limit| limit != "0");
    if policy.starts_with("allkeys-") {
        let text = format!("maxmemory-policy is {policy}");
        let now = if is_limited { "" } else { ", once maxmemory is set" };
        findings.add(
            Finding::error((SUBJECT, "redis_eviction"), text)
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
            Finding::warning((SUBJECT, "redis_appendonly"), "appendonly is off")
                .why(
                    "when Redis restarts, entries since its last snapshot are lost; walpost then \
                     refuses to start (exit code 3), and does not publish them again",
                )
                .command(command(redis, "CONFIG SET appendonly yes")),
        );
    } else if fsync != "always" {
        findings.add(
            Finding::warning((SUBJECT, "redis_appendfsync"), format!("appendfsync is {fsync}"))
                .why(
                    "when the machine of Redis crashes, entries that were not synced are lost, and \
                     consumers may have read them; walpost adds them again, since it confirms them to \
                     PostgreSQL only once they are synced",
                )
                .command(command(redis, "CONFIG SET appendfsync always")),
        );
    } else if facts.setting(REWRITE) == Some("yes") {
        findings.add(
            Finding::warning((SUBJECT, "redis_rewrite"), format!("{REWRITE} is yes"))
                .why(
                    "while Redis rewrites its log, nothing is synced: when its machine crashes \
                     then, entries of that time are lost although they were acknowledged",
                )
                .command(command(redis, &format!("CONFIG SET {REWRITE} no"))),
        );
    } else {
        findings.add(Finding::ok((SUBJECT, "redis_durability"), "each write is synced to the log"));
    }
}

fn check_replicas(redis: &RedisConfig, facts: &Inspection, findings: &mut Findings) {
    let count = match facts.info("connected_slaves") {
        Ok(count) => count,
        Err(reason) => {
            let text = format!("walpost's user may not see the replicas (INFO): {reason}");
            return findings.add(Finding::skipped((SUBJECT, "redis_replicas"), text));
        }
    };
    let replicas: u32 = count.and_then(|count| count.parse().ok()).unwrap_or_default();
    let wanted = redis.wait_replicas;
    if replicas < wanted {
        let text =
            format!("{replicas} replicas are connected, and redis.wait_replicas is {wanted}");
        findings.add(
            Finding::error((SUBJECT, "redis_wait_replicas"), text)
                .why("no entry counts as delivered")
                .advice("connect the replicas, or lower redis.wait_replicas"),
        );
    } else if replicas > 0 && wanted == 0 {
        let text = format!("{replicas} replica(s), and redis.wait_replicas is 0");
        findings.add(
            Finding::warning((SUBJECT, "redis_failover"), text)
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
            findings.add(Finding::skipped((SUBJECT, "redis_stream_type"), text));
        }
        Ok(other) => findings.add(
            Finding::error((SUBJECT, "redis_stream_type"), format!("{name} is a {other}"))
                .why("entries can be added to streams only")
                .advice(format!("set {setting} to another name")),
        ),
    }
}

fn check_state(
    redis: &RedisConfig,
    facts: &Inspection,
    stored: Option<(&SlotAt, stored::Read)>,
    findings: &mut Findings,
) {
    let stream = &redis.stream;
    if facts.has_state {
        let key = owner_key(stream);
        let names = stored::Names {
            state: (SUBJECT, "redis_state"),
            position: (SUBJECT, "redis_position"),
            stream: (SUBJECT, "redis_stream"),
            store: Some("Redis"),
            place: format!("the state key {key} in Redis"),
        };
        let text = format!("stream {stream} has walpost's state key {key}");
        stored::check(&names, text, stored, findings);
        return;
    }
    findings.add(
        Finding::error(
            (SUBJECT, "redis_state_missing"),
            format!("stream {stream} is not walpost's yet"),
        )
        .why("`run` does not start without its state key: it would not know what it has added")
        .command("walpost adopt --apply"),
    );
}

fn command(redis: &RedisConfig, text: &str) -> String {
    format!("redis-cli -h {} -p {} {text}", redis.url.host, redis.url.port)
}
