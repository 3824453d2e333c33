//! walpost between a PostgreSQL and a Kafka that require TLS and a password, a token or a
//! certificate: real servers, certificates issued during the test.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod answers;
mod auth_methods;
mod delivery;
mod examples;
mod fixture;
mod hostile_server;
mod invalid_credentials;
mod listen_address;
mod local_exposure;
mod oauth_token;
mod rotation;
mod search_path;
mod secrets;
mod unprivileged_role;
mod untrusted_peers;
