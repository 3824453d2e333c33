//! Java programs of the bed: their jars by Maven, and what every JVM is told.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cache;
use crate::error::{BedError, Doing};

/// The jars that a pom names, with all that they need, in `libs`.
pub(crate) fn fetch(partial: &Path, pom: &str) -> Result<(), BedError> {
    fs::write(partial.join("pom.xml"), pom).doing(|| "writing pom.xml".into())?;
    let mut java = Command::new("java");
    cache::run(java.arg("-version"), "java", "default-jre-headless")?;
    let mut maven = Command::new("mvn");
    maven
        .args(["-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"])
        .current_dir(partial);
    cache::run(&mut maven, "mvn", "maven").map(drop)
}

/// A quick start counts, throughput hardly.
pub(crate) fn arguments(installed: &Path) -> Vec<String> {
    let logging = installed.join("log4j2.properties");
    vec![
        "-XX:TieredStopAtLevel=1".to_owned(),
        "-XX:+UseSerialGC".to_owned(),
        "-Xshare:auto".to_owned(),
        format!("-Dlog4j2.configurationFile={}", logging.display()),
        "-cp".to_owned(),
        format!("{}/libs/*", installed.display()),
    ]
}
