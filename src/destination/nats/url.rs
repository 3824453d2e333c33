//! URLs of NATS: `nats://[user:password@|token@]host[:port]`, `tls://…`; several servers of a
//! cluster are separated by commas.

use async_nats::ServerAddr;

use crate::destination::Server;
use crate::destination::parts::server_url::{Form, ServerUrl};

const FORM: Form = Form {
    schemes: [("nats", 4222), ("tls", 4222)],
    text: "nats://[user:password@|token@]host[:port], or tls://… for TLS, with commas between several servers",
};

/// The servers of a cluster: the first has the login.
#[derive(Debug, Clone)]
pub(crate) struct NatsUrl {
    pub(super) first: ServerUrl,
    others: Vec<ServerUrl>,
}

impl NatsUrl {
    /// Parses URLs. The error does not repeat them: they may contain a password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let parse = |one: &str| ServerUrl::parse(one.trim(), &FORM);
        let mut parts = text.split(',');
        let first = parse(parts.next().unwrap_or_default())?;
        let others = parts.map(parse).collect::<Result<Vec<_>, _>>()?;
        let url = Self { first, others };
        if url.others.iter().any(|other| other.tls != url.first.tls) {
            return Err("it names servers with and without TLS: write tls:// for all".to_owned());
        }
        if url.others.iter().any(ServerUrl::has_login) {
            return Err("it has a second login: write it at the first server only".to_owned());
        }
        if url.first.user.is_none() && url.first.has_login() {
            return Err("it has a password without a user".to_owned());
        }
        let has_path = |one: &ServerUrl| one.path.as_ref().is_some_and(|path| !path.is_empty());
        if url.all().any(has_path) {
            return Err("it has a path, and NATS has none".to_owned());
        }
        Ok(url)
    }

    fn all(&self) -> impl Iterator<Item = &ServerUrl> {
        [&self.first].into_iter().chain(&self.others)
    }

    /// The servers for the client, without a login.
    pub(super) fn servers(&self) -> Vec<ServerAddr> {
        let texts = self.all().map(|one| format!("{}://{}", one.scheme, one.address()));
        texts.filter_map(|text| text.parse().ok()).collect()
    }

    /// The servers, for people: without a login.
    pub(crate) fn address(&self) -> String {
        self.all().map(ServerUrl::address).collect::<Vec<_>>().join(",")
    }

    pub(super) fn server(self) -> Server {
        let (address, hosts) = (self.address(), self.all().map(|one| one.host.clone()).collect());
        Server { address, hosts, ..self.first.server() }
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn servers_of_a_cluster_are_found() {
        for (text, address) in [
            ("nats://localhost", "localhost:4222"),
            ("nats://u:w@a, nats://b:7/", "a:4222,b:7"),
            ("tls://t0ken@[::1]:7", "[::1]:7"),
        ] {
            let url = NatsUrl::parse(text).expect(text);
            let servers = url.servers();
            let found = servers.iter().map(|one| (one.host(), one.port(), one.tls_required()));
            let expected = url.all().map(|one| (&*one.host, one.port, one.tls));
            assert!(found.eq(expected), "{servers:?}");
            assert_eq!(url.address(), address);
        }
        let login = |text: &str| {
            let ServerUrl { user, password, .. } = NatsUrl::parse(text).expect(text).first;
            (user, password.map(|password| password.expose_secret().to_owned()))
        };
        let [user, word, token] = ["u", "w", "t0ken"].map(|text| Some(text.to_owned()));
        assert_eq!([login("nats://u:w@a"), login("nats://t0ken@a")], [(user, word), (token, None)]);
    }

    #[test]
    fn what_does_not_fit_together_is_an_error() {
        for (text, part) in [
            ("nats://a,tls://b", "with and without TLS"),
            ("nats://a,nats://u:s3cret@b", "second login"),
            ("nats://:s3cret@h", "without a user"),
            ("nats://h/s3cret", "a path"),
            ("nats://h,", "of the form"),
        ] {
            let error = NatsUrl::parse(text).expect_err(text);
            assert!(error.contains(part) && !error.contains("s3cret"), "{text}: {error}");
        }
    }
}
