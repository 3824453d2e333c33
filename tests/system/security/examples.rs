//! The examples of `docs/security.md`: verbatim except for names and addresses.

use std::fs;
use std::path::Path;

use walpost_bed::repository;

use super::fixture::{SecureFixture, USER, number};

/// The text of the first block of that kind after the heading.
pub fn example(heading: &str, kind: &str) -> String {
    let path = repository().join("docs/security.md");
    let text = fs::read_to_string(path).expect("the page is there");
    let (_, rest) = text.split_once(&format!("\n### {heading}\n")).expect(heading);
    let chapter = rest.split("\n### ").next().unwrap_or_default();
    let (_, rest) = chapter.split_once(&format!("```{kind}\n")).expect(kind);
    let (block, _) = rest.split_once("```").expect("it ends");
    block.to_owned()
}

/// A line of `pg_hba.conf` for the test's database.
pub fn hba(heading: &str) -> String {
    example(heading, "pg_hba").replace("shop", "postgres").replace("192.0.2.10", "127.0.0.1")
}

/// Writes all files that the examples name, and one that contains this example.
pub fn file(
    fixture: &SecureFixture,
    name: &str,
    heading: &str,
    kind: &str,
    password: &str,
) -> std::path::PathBuf {
    let authority = &fixture.kafka.authority;
    let read = |path: &Path| fs::read_to_string(path).expect("it was made");
    for root in ["postgres-ca.pem", "kafka-ca.pem"] {
        fixture.file(root, &read(&authority.root()));
    }
    let pair = authority.client(&format!("client-{}", number()), USER);
    fixture.file("client.crt", &read(&pair.certificate));
    let directory = fixture.file("client.key", &read(&pair.key));
    let (encrypted, key_password) = authority.encrypted(&pair);
    fixture.file("client.encrypted.key", &read(&encrypted.key));
    let directory = directory.parent().expect("a directory").display();
    let text = example(heading, kind)
        .replace("/etc/walpost", &directory.to_string())
        .replace("ssl.key.password=change-me", &format!("ssl.key.password={key_password}"))
        .replace("change-me", password)
        .replace("db.example.com:5432", &format!("127.0.0.1:{}", fixture.fixture.postgres.port()))
        .replace("shop", "postgres");
    fixture.file(name, &text)
}
