//! `walpost --version`, and with `--verbose` what the build is made of.

use rdkafka::util::get_rdkafka_version;

use crate::sink;

/// What is printed, with its newline.
pub(super) fn text(verbose: bool) -> String {
    let line = concat!("walpost ", env!("CARGO_PKG_VERSION"), "\n");
    if !verbose {
        return line.to_owned();
    }
    let whose = if cfg!(feature = "release") { "built in" } else { "the system's" };
    let openssl = env!("BUILT_WITH_OPENSSL");
    format!(
        "{line}\
         commit: {commit}\n\
         target: {target}\n\
         librdkafka: {librdkafka}\n\
         librdkafka features: {features}\n\
         TLS to Kafka: OpenSSL {openssl}, {whose}\n\
         TLS to PostgreSQL: rustls with ring\n",
        commit = option_env!("WALPOST_COMMIT").filter(|it| !it.is_empty()).unwrap_or("unknown"),
        target = env!("BUILT_FOR_TARGET"),
        librdkafka = get_rdkafka_version().1,
        features = sink::features(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_version_is_a_line_and_the_long_one_tells_of_the_build() {
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
        // It is said of builds that have it not.
        assert!(!features.contains("gssapi"), "{features}");
        assert!(line("target:").contains('-'));
        assert!(line("TLS to Kafka:").starts_with("OpenSSL 3."), "{long}");
        assert!(line("librdkafka:").starts_with(char::is_numeric), "{long}");
        assert!(!line("commit:").is_empty());
    }
}
