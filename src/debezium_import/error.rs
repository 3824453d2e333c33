//! Why a text is not a connector's configuration.

use super::properties::PropertiesError;

/// Why a text is no connector's configuration.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It begins like JSON.
    #[error("it is not the JSON that Kafka Connect takes: {0}")]
    Json(#[from] serde_json::Error),
    /// It is none, so it should be properties.
    #[error("it is not a properties file as Java reads it: {0}")]
    Properties(#[from] PropertiesError),
    /// A Kubernetes resource.
    #[error(
        "it is YAML; for Strimzi's KafkaConnector give what this prints: kubectl get kafkaconnector NAME \
         -o json | jq '.spec.config + {{\"connector.class\": .spec.class}}'"
    )]
    Yaml,
    /// An option with a value that Kafka Connect would not take either.
    #[error("the value of `{name}` is no text, number or boolean")]
    NoText {
        /// The option.
        name: String,
    },
    /// Nothing in it.
    #[error("there is no option in it")]
    Empty,
}
