//! Java programs of the bed: installs their jars with Maven, and sets the JVM options.

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

/// The version of an artifact that a pom names.
pub(crate) fn version<'a>(pom: &'a str, artifact: &str) -> &'a str {
    let (_, behind) =
        pom.split_once(&format!("<artifactId>{artifact}</artifactId>")).expect("named");
    let (_, version) = behind.split_once("<version>").expect("a version");
    version.split('<').next().unwrap_or(version)
}

/// How a JVM is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Jvm {
    /// A quick start counts, throughput hardly.
    Quick { heap_mebibytes: u32 },
    /// As kafka-server-start.sh starts a broker: for measuring.
    Broker,
    /// As connect-standalone.sh starts a worker: for measuring.
    Worker,
}

/// `KAFKA_JVM_PERFORMANCE_OPTS` of kafka-run-class.sh.
const PERFORMANCE: [&str; 5] = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
];

fn shipped(heap: [&str; 2]) -> Vec<String> {
    heap.into_iter().chain(PERFORMANCE).map(str::to_owned).collect()
}

impl Jvm {
    /// With what a broker needs to be quick.
    pub(crate) const QUICK: Self = Self::Quick { heap_mebibytes: 512 };

    fn options(self) -> Vec<String> {
        match self {
            Self::Quick { heap_mebibytes } => {
                let heap = format!("-Xmx{heap_mebibytes}m");
                vec![heap, "-XX:TieredStopAtLevel=1".into(), "-XX:+UseSerialGC".into()]
            }
            Self::Broker => shipped(["-Xms1g", "-Xmx1g"]),
            Self::Worker => shipped(["-Xms256M", "-Xmx2G"]),
        }
    }

    /// The options of every JVM of the bed.
    pub(crate) fn arguments(self, installed: &Path) -> Vec<String> {
        let mut arguments = self.options();
        let logging = installed.join("log4j2.properties");
        arguments.extend([
            "-Xshare:auto".to_owned(),
            format!("-Dlog4j2.configurationFile={}", logging.display()),
            "-cp".to_owned(),
            format!("{}/libs/*", installed.display()),
        ]);
        arguments
    }
}
