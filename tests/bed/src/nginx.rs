//! A real nginx, Debian's, as a reverse proxy with its defaults: before a receiver of HTTP requests.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tokio::net::TcpStream;

use crate::error::{BedError, Doing};
use crate::eventually::within;
use crate::port::Port;
use crate::server::Server;

/// How long it may take to listen.
const READY: Duration = Duration::from_secs(30);

/// A running server. It is removed with its files on drop.
#[derive(Debug)]
pub struct Nginx {
    server: Server,
    port: Port,
}

impl Nginx {
    /// Passes all requests on to this port.
    pub async fn before(port: u16) -> Self {
        Self::try_before(port).await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_before(port: u16) -> Result<Self, BedError> {
        let nginx = Self { server: Server::new("nginx", Signal::TERM)?, port: Port::reserve()? };
        nginx.launch(port)?;
        let address = ("127.0.0.1", nginx.port.number());
        let ready = within(READY, async || TcpStream::connect(address).await.map(drop));
        if let Err(seen) = ready.await {
            panic!("nginx is not ready: {seen}; it said:\n{}", nginx.server.log_tail(15));
        }
        Ok(nginx)
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    fn launch(&self, to: u16) -> Result<(), BedError> {
        let directory = self.server.directory().display().to_string();
        let places: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {directory}/{name};\n"))
            .concat();
        // One process, which ends with the test.
        let configuration = format!(
            "daemon off;\nmaster_process off;\npid {directory}/pid;\nerror_log stderr;\n\
             events {{}}\n\
             http {{\naccess_log off;\n{places}\
             server {{ listen 127.0.0.1:{}; location / {{ proxy_pass http://127.0.0.1:{to}; }} }}\n\
             }}\n",
            self.port.number()
        );
        let file = self.server.directory().join("nginx.conf");
        std::fs::write(&file, configuration).doing(|| format!("writing {}", file.display()))?;
        let log = self.server.log()?;
        let errors = log.try_clone().doing(|| "sharing the log".into())?;
        let mut command = self.server.cleanup().launcher(Path::new("/usr/sbin/nginx"));
        command.args(["-e", "stderr", "-p", &directory, "-c"]).arg(&file);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        self.server.launch(&mut command, |_| ())
    }
}
