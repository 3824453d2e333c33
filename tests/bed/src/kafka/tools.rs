//! Operations that need Kafka's own Java tools: users, ACLs, leader elections, and questions to its
//! clients.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Kafka, install};
use crate::cache;
use crate::jars::Jvm;

impl Kafka {
    /// Makes a user for SASL/SCRAM-SHA-512, or gives it another password.
    pub async fn set_password(&self, user: &str, password: &str) {
        let change = format!("SCRAM-SHA-512=[iterations=4096,password={password}]");
        self.configure_user(user, "--add-config", &change).await;
    }

    /// Takes the user's password away. Who is logged in stays so.
    pub async fn drop_password(&self, user: &str) {
        self.configure_user(user, "--delete-config", "SCRAM-SHA-512").await;
    }

    async fn configure_user(&self, user: &str, verb: &str, change: &str) {
        let entity = ["--entity-type", "users", "--entity-name", user];
        let arguments = [&["--alter", verb, change], &entity[..]].concat();
        self.tool("kafka.admin.ConfigCommand", &arguments).await;
    }

    /// Allows a user what `kafka-acls.sh` calls these operations on a topic.
    pub async fn allow(&self, user: &str, operations: &[&str], topic: &str) {
        self.change_access("--add", user, operations, &["--topic", topic]).await;
    }

    /// The same on the cluster.
    pub async fn allow_on_cluster(&self, user: &str, operations: &[&str]) {
        self.change_access("--add", user, operations, &["--cluster"]).await;
    }

    /// Takes that back.
    pub async fn disallow(&self, user: &str, operations: &[&str], topic: &str) {
        self.change_access("--remove", user, operations, &["--topic", topic]).await;
    }

    async fn change_access(&self, verb: &str, user: &str, operations: &[&str], of: &[&str]) {
        let principal = format!("User:{user}");
        let mut arguments = vec![verb, "--force", "--allow-principal", &principal];
        arguments.extend(of);
        arguments.extend(operations.iter().flat_map(|one| ["--operation", one]));
        self.tool("org.apache.kafka.tools.AclCommand", &arguments).await;
    }

    /// A `java` with all of Kafka's classes, its own clients' too, on the class path.
    pub fn java(&self) -> Command {
        let mut command = Command::new("java");
        command.args(install::jvm_arguments(Jvm::QUICK, &self.installed));
        command
    }

    /// Where Java's producer puts each key, in topics of so many partitions.
    pub async fn partitions_of(&self, keys: &[Vec<u8>], counts: &[u32]) -> Vec<Vec<u32>> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("kafka/Partitions.java");
        let mut java = self.java();
        java.arg(program).args(counts.iter().map(u32::to_string));
        java.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut lines = String::new();
        for key in keys {
            for byte in key {
                write!(lines, "{byte:02x}").expect("a text takes it");
            }
            lines.push('\n');
        }
        let running = tokio::task::spawn_blocking(move || {
            let mut java = java.spawn().expect("java starts");
            // It reads everything before it answers.
            let mut input = java.stdin.take().expect("it is piped");
            input.write_all(lines.as_bytes()).expect("java reads");
            drop(input);
            java.wait_with_output().expect("java ends")
        });
        let done = running.await.expect("it ends");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let answer = String::from_utf8(done.stdout).expect("numbers");
        let numbers = |line: &str| line.split(' ').map(|one| one.parse().expect(line)).collect();
        let partitions: Vec<_> = answer.lines().map(numbers).collect();
        assert_eq!(partitions.len(), keys.len(), "java answered on other keys");
        partitions
    }

    /// Runs one of Kafka's tools against this node.
    pub(super) async fn tool(&self, class: &str, arguments: &[&str]) -> String {
        run(&self.installed, &self.bootstrap(), class, arguments).await
    }
}

/// Runs one of Kafka's tools to its end; what it printed.
pub(super) async fn run(
    installed: &Path,
    bootstrap: &str,
    class: &str,
    arguments: &[&str],
) -> String {
    let installed: PathBuf = installed.to_owned();
    let mut command = Command::new("java");
    let jvm = Jvm::Quick { heap_mebibytes: 64 };
    command.args(install::jvm_arguments(jvm, &installed));
    command.args([class, "--bootstrap-server", bootstrap]).args(arguments);
    let running = tokio::task::spawn_blocking(move || {
        cache::run(&mut command, "java", "default-jre-headless")
    });
    let done = running.await.expect("running a tool does not panic");
    done.unwrap_or_else(|error| panic!("{class}: {error}"))
}
