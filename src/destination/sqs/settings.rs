//! The settings of queues of Amazon SQS, as valid values.

use std::path::PathBuf;

use crate::config::{Config, ConfigError, Environment, Setting};
use crate::destination::parts::settings::check_too_large;
use crate::destination::sqs::{Endpoint, QueueUrl, SqsConfig, SqsSource};
use crate::record::Policy;
use crate::source;

/// The configured queues.
pub(crate) fn sqs_config(
    config: &Config,
    environment: &Environment,
) -> Result<SqsConfig, ConfigError> {
    let invalid = |setting, reason: &str| config.invalid(setting, &reason);
    let queue_at = |setting, text: &str| {
        QueueUrl::parse(text).map_err(|error| config.invalid(setting, &error))
    };
    let sqs = &config.sqs;
    let Some(queue) = sqs.queue_url.as_deref().filter(|url| !url.is_empty()) else {
        return Err(invalid(Setting::SqsQueueUrl, "is needed with sink.kind = \"sqs\""));
    };
    let queue = queue_at(Setting::SqsQueueUrl, queue)?;
    let letters = Setting::SqsDeadLetterQueueUrl;
    let dead_letter_queue = sqs.dead_letter_queue_url.as_deref();
    let dead_letter_queue = dead_letter_queue.map(|url| queue_at(letters, url)).transpose()?;
    match &dead_letter_queue {
        None if config.poison.include(Policy::DeadLetter) => {
            let reason = "is needed: a policy of [poison] is `dead_letter`";
            return Err(invalid(letters, reason));
        }
        Some(url) if url.as_str() == queue.as_str() => {
            return Err(invalid(letters, "is the queue of the events: name another one"));
        }
        Some(url) if url.endpoint() != queue.endpoint() && sqs.endpoint.is_none() => {
            return Err(invalid(letters, "is at another server than sqs.queue_url"));
        }
        _ => {}
    }
    check_too_large(config)?;
    let endpoint = match &sqs.endpoint {
        None => queue.endpoint().clone(),
        Some(text) => {
            Endpoint::parse(text).map_err(|error| config.invalid(Setting::SqsEndpoint, &error))?
        }
    };
    if sqs.ca_file.is_some() && !endpoint.requires_tls() {
        let reason = "has no effect without TLS: write https:// in the URL of the server";
        return Err(invalid(Setting::SqsCaFile, reason));
    }
    let of_name = || queue.endpoint().region().or_else(|| endpoint.region()).map(str::to_owned);
    let own = |path: &PathBuf| environment.path(path);
    Ok(SqsConfig {
        region: sqs.region.clone().or_else(of_name),
        queue,
        dead_letter_queue,
        dead_letter_topic: config.poison.dead_letter_topic.clone(),
        endpoint,
        roots: sqs.ca_file.as_ref().map(own).or_else(source::system_bundle),
        delivery_id: config.delivery.id.clone(),
    })
}

pub(super) fn sqs_source(config: &Config, environment: &Environment) -> SqsSource {
    let (config, environment) = (config.clone(), environment.clone());
    SqsSource::new(move || sqs_config(&config, &environment).map_err(|error| error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    fn of(toml: &str) -> Result<SqsConfig, String> {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("walpost.toml"), toml).expect("it can be written");
        let environment = Environment::new([], directory.path());
        let config = Config::load(&Flags::default(), &environment);
        let config = config.map_err(|error| error.to_string())?;
        sqs_config(&config, &environment).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_of_sqs_is_read() {
        let toml = "sink.kind = 'sqs'\n[sqs]\nqueue_url = 'https://h/1/o.fifo'\n\
                    dead_letter_queue_url = 'https://h/1/d.fifo'\nendpoint = 'https://e'\n\
                    region = 'eu-central-1'\nca_file = '/ca.pem'\n";
        let sqs = of(toml).expect("valid");
        assert_eq!(sqs.queue.as_str(), "https://h/1/o.fifo");
        assert_eq!(
            sqs.dead_letter_queue.as_ref().map(QueueUrl::as_str),
            Some("https://h/1/d.fifo")
        );
        assert_eq!(sqs.endpoint.to_string(), "https://e");
        assert_eq!(sqs.region.as_deref(), Some("eu-central-1"));
        assert_eq!(sqs.roots, Some("/ca.pem".into()));
    }

    #[test]
    fn region_and_endpoint_are_those_of_the_url() {
        let url = "https://sqs.eu-west-3.amazonaws.com/1/o.fifo";
        let sqs = of(&format!("sink.kind = 'sqs'\nsqs.queue_url = '{url}'\n")).expect("valid");
        assert_eq!(sqs.region.as_deref(), Some("eu-west-3"));
        assert_eq!(sqs.endpoint.to_string(), "https://sqs.eu-west-3.amazonaws.com");
    }

    #[test]
    fn settings_that_do_not_fit_are_errors() {
        for (toml, part) in [
            ("", "`sqs.queue_url`"),
            ("sqs.queue_url = 'https://h/1/o'\n", "not a FIFO queue"),
            ("sqs.region = 'EU central'\n", "eu-central-1"),
        ] {
            let error = of(&format!("sink.kind = 'sqs'\n{toml}")).expect_err(toml);
            assert!(error.contains(part), "{toml}: {error}");
        }
    }
}
