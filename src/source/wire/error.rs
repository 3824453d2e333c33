//! Why a session fails.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::framing::{Frame, FrameError};
use super::policy::Refused;

/// A SQLSTATE: the five characters that classify a server error.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SqlState([u8; 5]);

impl SqlState {
    /// The code, if `text` is a valid one.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let code: [u8; 5] = text.as_bytes().try_into().ok()?;
        let sound = code.iter().all(|c| c.is_ascii_digit() || c.is_ascii_uppercase());
        sound.then_some(Self(code))
    }

    /// The code as text.
    pub(crate) fn as_str(&self) -> &str {
        // All five are ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text of the server. It can only be displayed: its language is that of the server's
/// `lc_messages`, so no decision may depend on it.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct ServerText(String);

impl From<&str> for ServerText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for ServerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ServerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// An error or a notice of the server
/// (<https://www.postgresql.org/docs/current/protocol-error-fields.html>).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ServerError {
    pub(crate) sqlstate: Option<SqlState>,
    pub(crate) message: ServerText,
    pub(crate) detail: Option<ServerText>,
    pub(crate) hint: Option<ServerText>,
    /// The file of PostgreSQL's source code that reports it.
    pub(crate) file: Option<Box<str>>,
    /// The function in that file. With the file, it tells apart errors that share a code.
    pub(crate) routine: Option<Box<str>>,
}

impl ServerError {
    /// Reads the fields, up to the terminator.
    pub(crate) fn read(mut body: &[u8]) -> Self {
        let mut error = Self::default();
        while let Some((&kind, rest)) = body.split_first()
            && kind != 0
        {
            let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
            let value = String::from_utf8_lossy(&rest[..end]).into_owned();
            match kind {
                b'C' => error.sqlstate = SqlState::new(&value),
                b'M' => error.message = ServerText(value),
                b'D' => error.detail = Some(ServerText(value)),
                b'H' => error.hint = Some(ServerText(value)),
                b'F' => error.file = Some(value.into()),
                b'R' => error.routine = Some(value.into()),
                _ => {}
            }
            body = rest.get(end + 1..).unwrap_or_default();
        }
        error
    }

    /// Whether the same command may succeed later: the server lacks resources, or shuts down (classes
    /// 53 and 57).
    pub(crate) fn is_passing(&self) -> bool {
        let class = self.sqlstate.as_ref().and_then(|state| state.as_str().get(..2));
        class.is_some_and(|class| ["53", "57"].contains(&class))
    }

    /// The message with its detail and hint, on one line.
    pub(crate) fn text(&self) -> ServerText {
        let mut text = self.message.0.clone();
        for more in [&self.detail, &self.hint].into_iter().flatten() {
            text.push_str("; ");
            text.push_str(more.0.trim_end_matches('.'));
        }
        ServerText(text)
    }

    /// Whether that function of PostgreSQL's source code reports it.
    pub(crate) fn is_of_routine(&self, name: &str) -> bool {
        self.routine.as_deref() == Some(name)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.text(), f)?;
        self.sqlstate.map_or(Ok(()), |code| write!(f, " (SQLSTATE {code})"))
    }
}

/// Why a session failed, or could not be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum WireError {
    /// The server reported an error.
    #[error("{0}")]
    Server(ServerError),
    /// The connection failed, or TLS on it.
    #[error(transparent)]
    Io(Arc<io::Error>),
    /// The server has no TLS.
    #[error("the server does not support TLS")]
    NoTls,
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server closed the connection of a replication stream without a message.
    #[error(
        "PostgreSQL closed the replication connection without an error message: see its log, and \
         if that says \"replication timeout\", raise wal_sender_timeout (it is {})",
        shown(*.wal_sender_timeout)
    )]
    Ended { wal_sender_timeout: Duration },
    /// Authentication was refused.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A violation of the protocol.
    #[error("{0}")]
    Protocol(String),
    /// The server sent nothing for too long.
    #[error("received nothing from PostgreSQL for {0:?}, not even a keepalive")]
    Silent(Duration),
}

fn shown(time: Duration) -> String {
    if time.subsec_millis() == 0 {
        format!("{} s", time.as_secs())
    } else {
        format!("{} ms", time.as_millis())
    }
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof if error.get_ref().is_none() => Self::Closed,
            _ => Self::Io(Arc::new(error)),
        }
    }
}

impl From<FrameError> for WireError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.to_string())
    }
}

impl WireError {
    /// The error for a message that is not allowed at this point.
    pub(super) fn unexpected(frame: &Frame, during: &str) -> Self {
        if frame.tag == b'E' {
            return Self::Server(ServerError::read(&frame.body));
        }
        Self::Protocol(format!("message type 0x{:02x} during {during}", frame.tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_response_is_read_field_by_field() {
        let body =
            b"SFATAL\0VFATAL\0C42704\0Mno such slot\0DIt went.\0HMake it.\0Fslot.c\0RAcquire\0\0";
        let error = ServerError::read(body);
        assert_eq!(error.file.as_deref(), Some("slot.c"));
        assert!(error.is_of_routine("Acquire"));
        assert_eq!(error.sqlstate, SqlState::new("42704"));
        assert_eq!(error.to_string(), "no such slot; It went; Make it (SQLSTATE 42704)");
        for cut in 0..body.len() {
            ServerError::read(&body[..cut]);
        }
        assert_eq!(ServerError::read(b"M\xff\0\0").message, "\u{fffd}".into());
    }
}
