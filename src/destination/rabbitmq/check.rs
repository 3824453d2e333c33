//! Preflight checks of RabbitMQ. They publish nothing.

use super::settings::rabbit_config;
use super::sink::RABBITMQ;
use crate::config::Config;
use crate::destination::parts::check::{Subject, subject};
use crate::destination::rabbitmq::RabbitConfig;
use crate::destination::rabbitmq::{Inspection, inspect};
use crate::findings::{Finding, Findings};
use crate::record::Policy;

const NAME: &str = "RabbitMQ";

const SUBJECT: Subject = subject!(NAME, "rabbitmq", "rabbitmq.url", &RABBITMQ);

/// Checks the configuration and, unless `offline`, the broker, the exchange and the queue of dead
/// letters.
pub(super) async fn check(config: &Config, offline: bool, findings: &mut Findings) {
    let read = rabbit_config(config);
    let Some(rabbit) = SUBJECT.settings(read, findings) else { return };
    SUBJECT.check_encryption((rabbit.url.tls, &rabbit.url.host), "amqps://", findings);
    if offline {
        return SUBJECT.skips("broker, credentials and exchange were", findings);
    }
    match inspect(&rabbit).await {
        Ok(facts) => {
            let text = format!("{} answers: {}", rabbit.url.address(), facts.product);
            findings.add(Finding::ok((NAME, "rabbitmq_server"), text));
            check_exchange(&rabbit, &facts, findings);
            if config.poison.include(Policy::DeadLetter) {
                check_dead_letters(&rabbit, &facts, findings);
            }
        }
        Err(failure) => findings.add(SUBJECT.unusable(&rabbit.url.address(), &failure)),
    }
}

fn check_exchange(rabbit: &RabbitConfig, facts: &Inspection, findings: &mut Findings) {
    let name = &rabbit.exchange;
    findings.add(match &facts.exchange {
        Ok(()) if name.is_empty() => {
            Finding::ok((NAME, "rabbitmq_exchange"), "the default exchange is used")
        }
        Ok(()) => Finding::ok((NAME, "rabbitmq_exchange"), format!("exchange {name} exists")),
        Err(failure) => Finding::error((NAME, "rabbitmq_exchange_missing"), failure.to_string())
            .why("nothing can be delivered before it exists, and PostgreSQL retains WAL meanwhile")
            .advice("declare the exchange with queues behind it (docs/rabbitmq.md shows how)"),
    });
}

fn check_dead_letters(rabbit: &RabbitConfig, facts: &Inspection, findings: &mut Findings) {
    let name = &rabbit.dead_letters;
    findings.add(match &facts.dead_letters {
        Ok(()) => {
            let text = format!("queue {name} exists, for dead letters");
            Finding::ok((NAME, "rabbitmq_dead_letters"), text)
        }
        Err(failure) => {
            Finding::error((NAME, "rabbitmq_dead_letters_missing"), failure.to_string())
                .why("an undeliverable event stops delivery until the queue exists")
                .advice(format!("declare the queue {name}, or correct poison.dead_letter_topic"))
        }
    });
}
