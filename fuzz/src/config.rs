//! The configuration file.

use std::fs;

use tempfile::TempDir;
use walpost::assembly;
use walpost::config::{Config, Environment, Flags};

/// The input as `walpost.toml`.
pub fn config(input: &[u8]) {
    let directory = TempDir::new().expect("a directory");
    fs::write(directory.path().join("walpost.toml"), input).expect("it can be written");
    let environment = Environment::new([], directory.path());
    match Config::load(&Flags::default(), &environment) {
        Ok(config) => {
            for shown in config.display() {
                assert!(!shown.key.is_empty() && !shown.origin.to_string().is_empty());
            }
            let errors = [
                walpost::config::profile(&config).map(drop).err(),
                assembly::core(&config).map(drop).err(),
                assembly::conninfo(&config).map(drop).err(),
            ];
            for error in errors.into_iter().flatten() {
                assert!(!error.to_string().is_empty());
            }
            assert_eq!(
                walpost::destination::kafka::kafka(&config).in_flight_bytes,
                config.delivery.in_flight_bytes
            );
        }
        Err(error) => assert!(error.to_string().contains("walpost.toml"), "{error}"),
    }
}
