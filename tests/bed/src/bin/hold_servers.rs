//! Starts a PostgreSQL and a Kafka with the topic `outbox.event.order`, prints their addresses, and
//! holds them until it is killed.
//!
//! Used by the test of the Debian package, and by the one that nothing is left behind then; it can
//! also be run by hand.

use walpost_bed::{Kafka, Major, Postgres};

#[tokio::main]
async fn main() {
    let postgres = Postgres::start(Major::V15).await;
    let kafka = Kafka::start().await;
    kafka.create_topic("outbox.event.order", 4).await;
    let pid = |id: Option<u32>| id.map_or_else(|| "none".to_owned(), |id| id.to_string());
    println!("postgres {} {}", pid(postgres.pid()), postgres.data_dir().display());
    println!("kafka {} {}", pid(kafka.pid()), kafka.directory().join("data").display());
    println!("url {}", postgres.url());
    println!("bootstrap {}", kafka.bootstrap());
    std::future::pending::<()>().await;
}
