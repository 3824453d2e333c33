//! Facts about servers and streams, for the preflight checks.

use async_nats::Client;

use super::api::{Account, StreamInfo, account_info, stream_info};
use super::config::{NatsConfig, bucket};
use super::state_key::read;
use crate::destination::parts::Failure;

/// What is found.
#[derive(Debug)]
pub(crate) struct Inspection {
    /// The version of the server.
    pub(crate) version: String,
    /// What the account uses.
    pub(crate) account: Account,
    /// `None`: it does not exist.
    pub(crate) stream: Option<StreamInfo>,
    /// The stream of the bucket with the state key.
    pub(crate) bucket: Option<StreamInfo>,
    /// Whether the state key exists.
    pub(crate) has_state: bool,
}

/// Reads them.
pub(crate) async fn inspect(client: &Client, config: &NatsConfig) -> Result<Inspection, Failure> {
    let account = account_info(client).await?;
    let stream = stream_info(client, &config.stream).await?;
    let bucket = stream_info(client, &format!("KV_{}", bucket(&config.stream))).await?;
    let has_state = bucket.is_some() && read(client, config).await?.is_some();
    Ok(Inspection { version: client.server_info().version, account, stream, bucket, has_state })
}
