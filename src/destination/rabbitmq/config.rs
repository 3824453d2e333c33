//! The configuration of the sink, and where it is read again.

use super::routing_key::RoutingKeyTemplate;
use crate::destination::parts::Reread;
use crate::destination::parts::dial::Tls;
use crate::destination::parts::server_url::ServerUrl;

/// The broker, and where messages go on it.
#[derive(Debug, Clone)]
pub(crate) struct RabbitConfig {
    /// The broker.
    pub url: ServerUrl,
    /// The virtual host.
    pub vhost: String,
    /// How TLS is set up, if the URL asks for it.
    pub tls: Tls,
    /// The exchange; empty: the default exchange.
    pub exchange: String,
    /// The routing key of an event.
    pub routing_key: RoutingKeyTemplate,
    /// The queue of dead letters.
    pub dead_letters: String,
}

/// The configuration of the broker, which can be read again.
pub(crate) type RabbitSource = Reread<RabbitConfig>;
