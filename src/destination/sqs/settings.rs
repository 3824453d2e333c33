//! The settings of queues of Amazon SQS, as valid values.

use crate::config::Kind::Text;
use crate::config::{Config, ConfigError, Declared, declare_settings, row};
use crate::destination::parts::settings::check_too_large;
use crate::destination::sqs::{Endpoint, QueueUrl, SqsConfig};
use crate::record::Policy;
use crate::source;

/// `[sqs]`
pub(in crate::destination) const DECLARED: Declared =
    Declared { kind: "sqs", title: "Amazon SQS", settings: SETTINGS, uses: &[] };

declare_settings! {
    SETTINGS:
    QUEUE_URL = row("sqs.queue_url", Text, "URL of the FIFO queue to which all events are sent: `https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.fifo`.")
        .details("Credentials are those of the AWS SDKs' standard variables, files and services: see [credentials](sqs.md#credentials-and-policy).")
        .variable();
    DEAD_LETTER_QUEUE_URL = row("sqs.dead_letter_queue_url", Text, "URL of the FIFO queue of dead letters. Required if a policy is `dead_letter`.")
        .variable();
    ENDPOINT = row("sqs.endpoint", Text, "Server that requests are sent to: `https://host[:port]`. Without it, that of `sqs.queue_url`.")
        .details("For VPC endpoints without a private name, proxies, and servers other than Amazon's.")
        .variable();
    REGION = row("sqs.region", Text, "Region for which requests are signed. Without it, that in the name of the server, then `AWS_REGION` and the AWS profile.")
        .variable()
        .valid_if(|text| region(text).map(drop));
    CA_FILE = row("sqs.ca_file", Text, "PEM file of the authorities that sign the server's certificate. Without it, those of the operating system.")
        .variable();
}

/// The configured queues.
pub(crate) fn sqs_config(config: &Config) -> Result<SqsConfig, ConfigError> {
    let invalid = |setting, reason: &str| config.invalid(setting, &reason);
    let queue_at = |setting, text: &str| {
        QueueUrl::parse(text).map_err(|error| config.invalid(setting, &error))
    };
    let values = config.values();
    let Some(queue) = values.text(QUEUE_URL).filter(|url| !url.is_empty()) else {
        return Err(invalid(QUEUE_URL, "is needed with sink.kind = \"sqs\""));
    };
    let queue = queue_at(QUEUE_URL, queue)?;
    check_too_large(config)?;
    let letters = DEAD_LETTER_QUEUE_URL;
    let dead_letter_queue = values.text(letters);
    let dead_letter_queue = dead_letter_queue.map(|url| queue_at(letters, url)).transpose()?;
    match &dead_letter_queue {
        None if config.poison.include(Policy::DeadLetter) => {
            let reason = "is needed: a policy of [poison] is `dead_letter`";
            return Err(invalid(letters, reason));
        }
        Some(url) if url.as_str() == queue.as_str() => {
            return Err(invalid(letters, "is the queue of the events: name another one"));
        }
        Some(url) if url.endpoint() != queue.endpoint() && values.text(ENDPOINT).is_none() => {
            return Err(invalid(letters, "is at another server than sqs.queue_url"));
        }
        _ => {}
    }
    let endpoint = match values.text(ENDPOINT) {
        None => queue.endpoint().clone(),
        Some(text) => Endpoint::parse(text).map_err(|error| config.invalid(ENDPOINT, &error))?,
    };
    let roots = config.path(CA_FILE);
    if roots.is_some() && !endpoint.requires_tls() {
        let reason = "has no effect without TLS: write https:// in the URL of the server";
        return Err(invalid(CA_FILE, reason));
    }
    let of_name = || queue.endpoint().region().or_else(|| endpoint.region()).map(str::to_owned);
    Ok(SqsConfig {
        region: values.optional(REGION, region)?.or_else(of_name),
        queue,
        dead_letter_queue,
        dead_letter_topic: config.poison.dead_letter_topic.clone(),
        endpoint,
        roots: roots.or_else(source::system_bundle),
        delivery_id: config.delivery.id.clone(),
    })
}

/// A region of AWS.
fn region(text: &str) -> Result<String, String> {
    let is_allowed = |sign: char| sign.is_ascii_lowercase() || sign.is_ascii_digit() || sign == '-';
    if text.is_empty() || text.len() > 63 || !text.chars().all(is_allowed) {
        return Err(format!("`{text}` is not the name of a region, such as eu-central-1"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::of_toml;

    fn of(toml: &str) -> Result<SqsConfig, String> {
        let config = of_toml(toml).map_err(|error| error.to_string())?;
        sqs_config(&config).map_err(|error| error.to_string())
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
}
