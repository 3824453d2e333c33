//! Records the pgoutput messages of each PostgreSQL major version: the corpus for the decoder
//! tests.
//!
//! Run by `make corpus`. Writes one file per major version, one hexadecimal message per line, and
//! each transaction twice: with values as text and in binary.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use walpost_bed::{Major, Postgres, corpus};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: record_pgoutput DIRECTORY");
        std::process::exit(2);
    };
    for major in Major::ALL {
        let path = directory.join(format!("{}.txt", major.number()));
        let text = record(major).await;
        std::fs::write(&path, &text)?;
        println!("{}: {} bytes", Path::display(&path), text.len());
    }
    Ok(())
}

/// All steps on one server, as the file's text.
async fn record(major: Major) -> String {
    let postgres = Postgres::start(major).await;
    let titles = corpus::write(&postgres).await;
    let version = postgres.query_text("SHOW server_version").await.expect("a version");
    let version = version.split(' ').next().expect("it begins with the number");
    let mut text = format!(
        "# What pgoutput of PostgreSQL {version} says (proto_version 1, messages true), a message a\n\
         # line in hexadecimal. Recorded by `make corpus`.\n"
    );
    for (binary, how) in [(false, "values as text"), (true, "values in binary")] {
        let sql = format!(
            "SELECT xid::text, encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('corpus',
               NULL, NULL, 'proto_version', '1', 'publication_names', 'corpus', 'messages', 'true',
               'binary', '{binary}')"
        );
        let mut last = None;
        for row in postgres.query_rows(&sql).await {
            let [Some(xid), Some(message)] = &row[..] else { panic!("two values: {row:?}") };
            if last.replace(xid.clone()).as_ref() != Some(xid) {
                let title = titles.get(xid).copied().unwrap_or("outside of a transaction");
                write!(text, "\n# {title}; {how}\n").expect("a String takes every text");
            }
            writeln!(text, "{message}").expect("a String takes every text");
        }
    }
    text
}
