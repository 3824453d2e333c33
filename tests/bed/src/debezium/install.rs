//! Brings Debezium's connector and Kafka Connect into the cache.

use std::fs;
use std::path::PathBuf;

use crate::cache;
use crate::error::{BedError, Doing};
use crate::jars;

const POM: &str = include_str!("../../debezium/pom.xml");
const LOGGING: &str = include_str!("../../kafka/log4j2.properties");

/// The directory of the jars.
pub(super) fn install() -> Result<PathBuf, BedError> {
    cache::entry(&cache::name_for("debezium", &[POM, LOGGING]), |partial| {
        jars::fetch(partial, POM)?;
        fs::write(partial.join("log4j2.properties"), LOGGING)
            .doing(|| "writing log4j2.properties".into())
    })
}
