//! The configuration of the sink, and where it is read again.

use std::path::PathBuf;

use super::routing_key::RoutingKeyTemplate;
use super::url::RabbitUrl;
use crate::destination::parts::Reread;

/// The broker, and where messages go on it.
#[derive(Debug, Clone)]
pub(crate) struct RabbitConfig {
    /// The broker.
    pub url: RabbitUrl,
    /// The certificates of the authorities that sign the broker's; `None`: there are none.
    pub roots: Option<PathBuf>,
    /// The client's certificate and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The exchange; empty: the default exchange.
    pub exchange: String,
    /// The routing key of an event.
    pub routing_key: RoutingKeyTemplate,
    /// The queue of dead letters.
    pub dead_letters: String,
}

/// The configuration of the broker, which can be read again.
pub(crate) type RabbitSource = Reread<RabbitConfig>;
