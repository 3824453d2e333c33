//! Installs Apache Kafka's jars into the cache, with everything that speeds up a broker's start.
//!
//! There are two entries: the jars with an empty formatted log directory, and a class data archive
//! of the classes that a broker loads. The archive depends on the jars' final path, so it is built
//! after them; it halves the start time.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::KafkaBuilder;
use crate::cache;
use crate::error::{BedError, Doing};
use crate::eventually::within_blocking;
use crate::jars::{self, Jvm};
use crate::port::Port;

const POM: &str = include_str!("../../kafka/pom.xml");
const LOGGING: &str = include_str!("../../kafka/log4j2.properties");
/// Any will do, and one for all lets the formatted directory be copied.
const CLUSTER_ID: &str = "d2FscG9zdC1iZWQtMDAwMA";
const TRAINING: Duration = Duration::from_secs(60);

/// The directory of the installed broker.
pub(crate) fn install() -> Result<PathBuf, BedError> {
    let name = cache::name_for("kafka", &[POM, LOGGING]);
    let installed = cache::entry(&name, fetch)?;
    cache::entry(&format!("{name}-classes"), |partial| archive(&installed, partial))?;
    Ok(installed)
}

pub(super) fn version() -> &'static str {
    jars::version(POM, "kafka_2.13")
}

/// The options of a JVM with Kafka's classes.
pub(super) fn jvm_arguments(jvm: Jvm, installed: &Path) -> Vec<String> {
    let mut classes = installed.as_os_str().to_owned();
    classes.push("-classes/kafka.jsa");
    let mut arguments = jvm.arguments(installed);
    if Path::new(&classes).exists() {
        arguments.insert(0, format!("-XX:SharedArchiveFile={}", Path::new(&classes).display()));
    }
    arguments
}

fn fetch(partial: &Path) -> Result<(), BedError> {
    let write = |name: &str, text: &str| {
        fs::write(partial.join(name), text).doing(|| format!("writing {name}"))
    };
    jars::fetch(partial, POM)?;
    write("log4j2.properties", LOGGING)?;
    let formatted = partial.join("formatted");
    let properties = format!(
        "process.roles=broker,controller\nnode.id=1\nlog.dirs={}\n\
         controller.quorum.voters=1@127.0.0.1:1\ncontroller.listener.names=CONTROLLER\n\
         listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1\n",
        formatted.display()
    );
    write("format.properties", &properties)?;
    let mut format = Command::new("java");
    format
        .args(Jvm::QUICK.arguments(partial))
        .args(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"])
        .arg(partial.join("format.properties"));
    cache::run(&mut format, "java", "default-jre-headless").map(drop)
}

/// Runs a broker once until it accepts connections; at its end the JVM writes
/// what it loaded. A JVM that cannot do this leaves no archive, which is no failure.
fn archive(installed: &Path, partial: &Path) -> Result<(), BedError> {
    let kafka = KafkaBuilder::default().lay_out(installed.to_owned(), 1, Port::reserve()?)?;
    let log = kafka.server.log()?;
    let archive = partial.join("kafka.jsa");
    let mut command = kafka.server.cleanup().launcher(Path::new("java"));
    command
        .arg(format!("-XX:ArchiveClassesAtExit={}", archive.display()))
        .args(Jvm::QUICK.arguments(installed))
        .arg("kafka.Kafka")
        .arg(kafka.properties_path())
        .stdin(Stdio::null())
        .stdout(log.try_clone().doing(|| "sharing the log".into())?)
        .stderr(log);
    kafka.server.launch(&mut command, |_| ())?;
    let accepts = || TcpStream::connect(kafka.bootstrap()).is_ok() || kafka.pid().is_none();
    let _ = within_blocking(TRAINING, accepts);
    kafka.begin_stop();
    let _ = within_blocking(TRAINING, || kafka.pid().is_none());
    Ok(())
}
