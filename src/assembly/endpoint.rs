//! Where events go, for the log.

use crate::config::Config;
#[cfg(any(feature = "http", feature = "rabbitmq", feature = "sqs"))]
use crate::config::{Environment, SinkKind};

/// The address of the configured HTTP endpoint or of RabbitMQ, or the queue's URL, for the log; `None`:
/// events go elsewhere.
pub(crate) fn endpoint(config: &Config) -> Option<String> {
    #[cfg(feature = "http")]
    if config.sink == SinkKind::Http {
        let http = super::http::http_config(config, &Environment::of_process()).ok()?;
        return Some(http.url.address());
    }
    #[cfg(feature = "rabbitmq")]
    if config.sink == SinkKind::RabbitMq {
        let rabbit = super::rabbitmq::rabbit_config(config, &Environment::of_process()).ok()?;
        return Some(rabbit.url.address());
    }
    #[cfg(feature = "sqs")]
    if config.sink == SinkKind::Sqs {
        let sqs = super::sqs::sqs_config(config, &Environment::of_process()).ok()?;
        return Some(sqs.queue.to_string());
    }
    let _ = config;
    None
}
