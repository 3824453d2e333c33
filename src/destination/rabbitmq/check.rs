//! Preflight checks of RabbitMQ. They publish nothing.

use super::settings::rabbit_config;
use crate::config::{Config, Environment};
use crate::destination::rabbitmq::RabbitConfig;
use crate::destination::rabbitmq::{Failure, Inspection, inspect};
use crate::findings::{Finding, Findings};
use crate::record::Policy;

const SUBJECT: &str = "RabbitMQ";

/// Checks the configuration and, unless `offline`, the broker, the exchange and the queue of dead
/// letters.
pub(super) async fn check(config: &Config, offline: bool, findings: &mut Findings) {
    let rabbit = match rabbit_config(config, &Environment::of_process()) {
        Ok(rabbit) => rabbit,
        Err(error) => {
            let finding = Finding::error((SUBJECT, "rabbitmq_config"), error.to_string());
            return findings.add(finding.why("`run` would not start"));
        }
    };
    check_encryption(&rabbit, findings);
    if offline {
        let text = "broker, credentials and exchange were not looked at";
        return findings.add(Finding::skipped((SUBJECT, "rabbitmq"), text));
    }
    match inspect(&rabbit).await {
        Ok(facts) => {
            let text = format!("{} answers: {}", rabbit.url.address(), facts.product);
            findings.add(Finding::ok((SUBJECT, "rabbitmq_server"), text));
            check_exchange(&rabbit, &facts, findings);
            if config.poison.include(Policy::DeadLetter) {
                check_dead_letters(&rabbit, &facts, findings);
            }
        }
        Err(failure) => findings.add(unusable(&rabbit, &failure)),
    }
}

fn unusable(rabbit: &RabbitConfig, failure: &Failure) -> Finding {
    let address = rabbit.url.address();
    let (code, text, fix) = match failure {
        Failure::Unreachable(_) => (
            "rabbitmq_unreachable",
            "cannot be used",
            "correct rabbitmq.url, and see that the broker can be reached from here",
        ),
        Failure::Unauthenticated(_) => (
            "rabbitmq_credentials",
            "refuses walpost's credentials",
            "correct user and password in rabbitmq.url, or the certificate in rabbitmq.cert_file",
        ),
        Failure::Unauthorized(_) => (
            "rabbitmq_vhost",
            "does not allow walpost's user the virtual host",
            "correct the vhost in rabbitmq.url, or allow the user what docs/rabbitmq.md lists",
        ),
        Failure::Missing(_) | Failure::Unusable(_) | Failure::TooLarge { .. } => {
            ("rabbitmq_unusable", "answers, and cannot be used", "see the message")
        }
    };
    Finding::error((SUBJECT, code), format!("{address} {text}: {failure}"))
        .why("nothing can be delivered, and PostgreSQL retains WAL meanwhile")
        .advice(fix)
}

fn check_encryption(rabbit: &RabbitConfig, findings: &mut Findings) {
    let is_local = ["127.0.0.1", "::1", "localhost"].contains(&rabbit.url.host.as_str());
    if !rabbit.url.tls && !is_local {
        findings.add(
            Finding::warning((SUBJECT, "rabbitmq_plain"), "rabbitmq.url is not amqps://")
                .why("events and the password can be read on the network")
                .advice("use amqps://, unless the network is trusted"),
        );
    }
}

fn check_exchange(rabbit: &RabbitConfig, facts: &Inspection, findings: &mut Findings) {
    let name = &rabbit.exchange;
    findings.add(match &facts.exchange {
        Ok(()) if name.is_empty() => {
            Finding::ok((SUBJECT, "rabbitmq_exchange"), "the default exchange is used")
        }
        Ok(()) => Finding::ok((SUBJECT, "rabbitmq_exchange"), format!("exchange {name} exists")),
        Err(failure) => Finding::error((SUBJECT, "rabbitmq_exchange_missing"), failure.to_string())
            .why("nothing can be delivered before it exists, and PostgreSQL retains WAL meanwhile")
            .advice("declare the exchange with queues behind it (docs/rabbitmq.md shows how)"),
    });
}

fn check_dead_letters(rabbit: &RabbitConfig, facts: &Inspection, findings: &mut Findings) {
    let name = &rabbit.dead_letters;
    findings.add(match &facts.dead_letters {
        Ok(()) => {
            let text = format!("queue {name} exists, for dead letters");
            Finding::ok((SUBJECT, "rabbitmq_dead_letters"), text)
        }
        Err(failure) => {
            Finding::error((SUBJECT, "rabbitmq_dead_letters_missing"), failure.to_string())
                .why("an undeliverable event stops delivery until the queue exists")
                .advice(format!("declare the queue {name}, or correct poison.dead_letter_topic"))
        }
    });
}
