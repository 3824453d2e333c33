//! What the slot will send up to the end of a snapshot, read without moving the slot.

use postgres_protocol::escape::{escape_identifier, escape_literal};

use super::{FETCHED, RowSnapshot};
use crate::pgoutput::{Message, decode};
use crate::source::{SourceConfig, SourceError, SqlClient};

impl RowSnapshot {
    /// Calls `each` with what the slot will send up to the end of the snapshot, on a session of
    /// `client`, which nobody else uses; the slot keeps its position.
    pub(crate) async fn streamed(
        &self,
        client: &SqlClient,
        config: &SourceConfig,
        mut each: impl FnMut(Message),
    ) -> Result<(), SourceError> {
        let reading = |error| SourceError::query("reading ahead from the slot", &error);
        // If this process is killed while the server waits, such as for a standby server, the session
        // must not keep the slot. Not all systems can tell.
        let _ = client.batch_execute("SET client_connection_check_interval = '5s'").await;
        let sql = format!(
            "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL cursor_tuple_fraction = 1;
             DECLARE walpost_ahead NO SCROLL CURSOR FOR
              SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes({}, '{}', NULL,
                     'proto_version', '1', 'publication_names', {}, 'messages', '{}')",
            escape_literal(&config.slot),
            self.end,
            escape_literal(&escape_identifier(&config.publication)),
            config.messages,
        );
        client.batch_execute(&sql).await.map_err(reading)?;
        loop {
            let rows = {
                let _large = client.large_rows();
                client.query(&format!("FETCH {FETCHED} FROM walpost_ahead"), &[]).await
            };
            let rows = rows.map_err(reading)?;
            for row in &rows {
                let data: &[u8] = row.try_get(0).map_err(reading)?;
                let message = decode(&bytes::Bytes::copy_from_slice(data));
                each(message.map_err(|error| SourceError::Undecodable(error.to_string()))?);
            }
            if rows.is_empty() {
                break;
            }
        }
        client.batch_execute("COMMIT").await.map_err(reading)
    }
}
