//! Logical messages whose content is text, in a database whose encoding is not UTF-8.
//!
//! PostgreSQL converts the values of rows and the prefixes of messages to the client's encoding, but
//! not the content of a message: it may be bytes. Where it is text, the server converts it in a query of
//! its own, so that it has the same form in UTF-8 as a row's value.

use std::sync::Arc;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::pgoutput::{LogicalMessage, Message};
use crate::source::SourceError;
use crate::source::connection::connect::SqlClient;
use crate::source::connection::deadline::answered;

/// Whether text of the database has another form in UTF-8. `SQL_ASCII` has no form in another encoding.
const IS_OTHER: &str =
    "SELECT pg_catalog.current_setting('server_encoding') NOT IN ('UTF8', 'SQL_ASCII')";

const CONVERTED: &str = "SELECT pg_catalog.convert_from($1, pg_catalog.getdatabaseencoding())";

/// The name of the connection in errors.
const CONTROL: &str = "the control connection";

/// Converts the content of messages with one prefix.
pub(crate) struct MessageText {
    client: Arc<SqlClient>,
    prefix: String,
}

impl MessageText {
    /// The conversion of messages with that prefix; `None`: their content is in UTF-8 already.
    pub(crate) async fn of(
        client: &Arc<SqlClient>,
        prefix: Option<&str>,
    ) -> Result<Option<Self>, SourceError> {
        let Some(prefix) = prefix else { return Ok(None) };
        let failed = |error| SourceError::query("reading the database's encoding", &error);
        let row = client.query_one(IS_OTHER, &[]).await.map_err(failed)?;
        let is_other: bool = row.try_get(0).map_err(failed)?;
        Ok(is_other.then(|| Self { client: Arc::clone(client), prefix: prefix.to_owned() }))
    }

    /// Whether the message has to be converted.
    pub(crate) fn concerns(&self, message: &Message) -> bool {
        matches!(message, Message::Logical(logical)
            if logical.transactional && logical.prefix == self.prefix && !logical.content.is_ascii())
    }

    /// The message in UTF-8; the message itself if its content is no text of the database.
    pub(crate) async fn converted(&self, message: &LogicalMessage) -> Result<Message, SourceError> {
        let content: &[u8] = &message.content;
        let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&content, Type::BYTEA)];
        let asked = async {
            let _large = self.client.large_rows();
            Ok(self.client.query_typed_one(CONVERTED, &parameters).await)
        };
        let failed = |error| SourceError::query("converting a logical message", &error);
        let content = match answered(CONTROL, asked).await? {
            Ok(row) => row.try_get::<_, String>(0).map_err(failed)?.into(),
            Err(error) if is_unconvertible(&error) => message.content.clone(),
            Err(error) => return Err(failed(error)),
        };
        Ok(Message::Logical(LogicalMessage { content, ..message.clone() }))
    }
}

/// Whether bytes are no text in the database's encoding, or have no form in UTF-8.
fn is_unconvertible(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [SqlState::CHARACTER_NOT_IN_REPERTOIRE, SqlState::UNTRANSLATABLE_CHARACTER].contains(code)
    })
}
