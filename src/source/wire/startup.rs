//! The start of a session: the startup message and authentication.
//!
//! <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-START-UP>

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding as Gs2, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};
use postgres_protocol::message::frontend;
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::task::spawn_blocking;

use super::error::WireError;
use super::framing::{Frame, Frames};
use super::line::Line;
use super::policy::{ANSWER, Checker, Login, Method, Refused, STARTUP_MESSAGE};
use crate::conninfo::ChannelBinding;

/// A session that is ready for a query.
pub(super) struct Ready<S> {
    pub(super) line: Line<S>,
    pub(super) frames: Frames,
    pub(super) method: Method,
}

/// Starts a replication session to the login's database on a new connection.
pub(super) async fn start<S>(line: Line<S>, login: &Login<'_>) -> Result<Ready<S>, WireError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let checker = Checker::new(login.policy, line.binding());
    let mut startup = Startup { line, frames: Frames::new(STARTUP_MESSAGE), checker };
    let parameters = [
        ("user", login.user),
        ("database", login.dbname),
        ("replication", "database"),
        ("client_encoding", "UTF8"),
        ("application_name", login.application_name),
        ("options", login.options.as_str()),
    ];
    let mut message = BytesMut::new();
    frontend::startup_message(parameters, &mut message)?;
    startup.send(&message).await?;
    startup.authenticate(login).await?;
    while !startup.checker.is_ready() {
        let frame = startup.receive().await?;
        // ParameterStatus, BackendKeyData, NoticeResponse.
        if !matches!(frame.tag, b'S' | b'K' | b'N' | b'Z') {
            return Err(WireError::unexpected(&frame, "the session's start"));
        }
    }
    let Startup { line, mut frames, checker } = startup;
    // Responses are small until the stream starts.
    frames.set_limit(ANSWER);
    let method = checker.method();
    Ok(Ready { line, frames, method })
}

/// A session before `ReadyForQuery`.
struct Startup<S> {
    line: Line<S>,
    frames: Frames,
    checker: Checker,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Startup<S> {
    async fn send(&mut self, message: &[u8]) -> Result<(), WireError> {
        self.line.write_all(message).await?;
        Ok(self.line.flush().await?)
    }

    /// Receives the next message that the policy accepts.
    async fn receive(&mut self) -> Result<Frame, WireError> {
        loop {
            if let Some(frame) = self.frames.take()? {
                self.checker.check(frame.tag, &frame.body)?;
                return Ok(frame);
            }
            if self.frames.read(&mut self.line).await? == 0 {
                return Err(WireError::Closed);
            }
        }
    }

    /// Receives the next authentication request: its code and its message.
    async fn request(&mut self) -> Result<(u32, Frame), WireError> {
        loop {
            let frame = self.receive().await?;
            match frame.tag {
                b'N' => {}
                // The policy has checked that there is a code.
                b'R' => {
                    let code = frame.body.first_chunk().copied().unwrap_or_default();
                    return Ok((u32::from_be_bytes(code), frame));
                }
                _ => return Err(WireError::unexpected(&frame, "authentication")),
            }
        }
    }

    async fn authenticate(&mut self, login: &Login<'_>) -> Result<(), WireError> {
        let (code, frame) = self.request().await?;
        if code == 0 {
            return Ok(());
        }
        let password = login.password.ok_or(Refused::NoPassword)?.expose_secret().as_bytes();
        let mut message = BytesMut::new();
        match code {
            3 => frontend::password_message(password, &mut message)?,
            5 => {
                let salt = frame.body.get(4..).and_then(|salt| salt.try_into().ok());
                let salt = salt.ok_or(Refused::OutOfOrder("an MD5 request without a salt"))?;
                let hash = md5_hash(login.user.as_bytes(), password, salt);
                frontend::password_message(hash.as_bytes(), &mut message)?;
            }
            10 => return self.scram(login, password).await,
            _ => return Err(Refused::OutOfOrder("an unsolicited authentication message").into()),
        }
        self.send(&message).await?;
        self.accepted().await
    }

    async fn accepted(&mut self) -> Result<(), WireError> {
        match self.request().await? {
            (0, _) => Ok(()),
            _ => Err(Refused::OutOfOrder("it asks for authentication again").into()),
        }
    }

    async fn scram(&mut self, login: &Login<'_>, password: &[u8]) -> Result<(), WireError> {
        let end_point = self.line.end_point().map(<[u8]>::to_vec);
        let end_point =
            end_point.filter(|_| login.policy.channel_binding != ChannelBinding::Disable);
        let (binding, mechanism) = match (self.checker.method(), end_point) {
            (Method::ScramPlus, Some(data)) => {
                (Gs2::tls_server_end_point(data), SCRAM_SHA_256_PLUS)
            }
            (_, Some(_)) => (Gs2::unrequested(), SCRAM_SHA_256),
            (_, None) => (Gs2::unsupported(), SCRAM_SHA_256),
        };
        let mut scram = ScramSha256::new(password, binding);
        let mut message = BytesMut::new();
        frontend::sasl_initial_response(mechanism, scram.message(), &mut message)?;
        self.send(&message).await?;
        let first = self.sasl(11).await?;
        // Up to 100,000 iterations, so not on a thread of the async runtime.
        let computed = spawn_blocking(move || scram.update(&first.body[4..]).map(|()| scram));
        let unsound = |error: std::io::Error| Refused::Scram(error.to_string());
        let mut scram = match computed.await {
            Ok(computed) => computed.map_err(unsound)?,
            Err(_) => return Err(Refused::Scram("not computed".to_owned()).into()),
        };
        message.clear();
        frontend::sasl_response(scram.message(), &mut message)?;
        self.send(&message).await?;
        let last = self.sasl(12).await?;
        scram.finish(&last.body[4..]).map_err(unsound)?;
        self.accepted().await
    }

    /// Receives the next step of the exchange, which must have this code. The body has at least
    /// four bytes.
    async fn sasl(&mut self, step: u32) -> Result<Frame, WireError> {
        match self.request().await? {
            (code, frame) if code == step => Ok(frame),
            _ => Err(Refused::OutOfOrder("a step of SCRAM at the wrong time").into()),
        }
    }
}
