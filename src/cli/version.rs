//! `walpost --version`, and with `--verbose` the components of the build.

use rdkafka::util::get_rdkafka_version;

use crate::destination::{self, kafka};

/// The printed text, with its newline.
pub(super) fn text(verbose: bool) -> String {
    let line = concat!("walpost ", env!("CARGO_PKG_VERSION"), "\n");
    if !verbose {
        return line.to_owned();
    }
    let whose = if cfg!(feature = "release") { "built in" } else { "the system's" };
    let openssl = env!("BUILT_WITH_OPENSSL");
    let destinations = destination::kinds().collect::<Vec<_>>().join(", ");
    format!(
        "{line}\
         commit: {commit}\n\
         target: {target}\n\
         destinations: {destinations}\n\
         librdkafka: {librdkafka}\n\
         librdkafka features: {features}\n\
         TLS to Kafka: OpenSSL {openssl}, {whose}\n\
         TLS to PostgreSQL: rustls with ring\n",
        commit = env!("BUILT_FROM_COMMIT"),
        target = env!("BUILT_FOR_TARGET"),
        librdkafka = get_rdkafka_version().1,
        features = kafka::features(),
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_short_version_is_one_line_and_the_long_one_describes_the_build() {
        let short = text(false);
        assert_eq!(short.lines().count(), 1);
        let long = text(true);
        assert!(long.starts_with(&short));
        let line = |name: &str| {
            let found = long.lines().find_map(|line| line.strip_prefix(name));
            found.unwrap_or_else(|| panic!("{name} in {long}")).trim().to_owned()
        };
        let features = line("librdkafka features:");
        for feature in ["ssl", "zstd", "sasl_scram"] {
            assert!(features.split(',').any(|one| one == feature), "{features}");
        }
        // The text also names missing features.
        assert!(!features.contains("gssapi"), "{features}");
        assert!(line("target:").contains('-'));
        let listed: Vec<_> = destination::kinds().collect();
        assert_eq!(line("destinations:"), listed.join(", "), "{long}");
        assert!(line("destinations:").starts_with("kafka"), "{long}");
        assert!(line("TLS to Kafka:").starts_with("OpenSSL 3."), "{long}");
        assert!(line("librdkafka:").starts_with(char::is_numeric), "{long}");
    }

    #[test]
    fn a_build_from_a_checkout_names_its_commit() {
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            let output = git.args(["-C", env!("CARGO_MANIFEST_DIR")]).args(arguments).output();
            let output = output.ok().filter(|output| output.status.success());
            output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let is_ours = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
        let expected = match (option_env!("WALPOST_COMMIT"), git(&["rev-parse", "HEAD"])) {
            (Some(given), _) if !given.is_empty() => given.to_owned(),
            (_, Some(head)) if is_ours => head,
            _ => return assert!(!env!("BUILT_FROM_COMMIT").is_empty()),
        };
        assert!(text(true).contains(&format!("\ncommit: {expected}\n")), "{}", text(true));
    }
}
