//! `pgwire-replication`, a published client of the replication protocol, which reads the backlog that
//! `pg_recvlogical` reads, and drops it: the part of a relay that the session is.

use std::time::{Duration, Instant};

use pgwire_replication::{Lsn, ReplicationClient, ReplicationConfig, ReplicationEvent};
use tokio_postgres::config::{Config, Host};

/// Reads the changes of a slot for the publication `walpost` up to a position, confirms each transaction,
/// and returns how long that took.
pub(crate) async fn receive(source: &str, slot: &str, end: &str, options: &str) -> Duration {
    let (address, end) =
        (source.parse::<Config>().expect("a URL"), Lsn::parse(end).expect("an LSN"));
    let [Host::Tcp(host)] = address.get_hosts() else { panic!("{source}") };
    let user = address.get_user().expect("a user");
    let database = address.get_dbname().expect("a database");
    let config = ReplicationConfig::new(host, user, "", database, slot, "walpost")
        .with_port(address.get_ports()[0])
        .with_options(options);
    let begun = Instant::now();
    let mut client = ReplicationClient::connect(config).await.expect("a client");
    loop {
        match client.recv().await.expect("the stream lasts").expect("an event") {
            ReplicationEvent::Commit { end_lsn, .. } => client.update_applied_lsn(end_lsn),
            ReplicationEvent::KeepAlive { wal_end, .. } if wal_end >= end => break,
            _ => {}
        }
    }
    let passed = begun.elapsed();
    client.shutdown().await.expect("it ends");
    passed
}
