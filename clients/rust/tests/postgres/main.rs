//! Publishing to a real PostgreSQL, which the tests start on 127.0.0.1.

mod atomicity;
mod commit;
mod configuration;
mod diesel_async;
mod events;
mod order;
mod pipelining;
mod prepared;
mod proxy;
mod savepoints;
mod server;
mod sqlx;
