//! Records what the real Debezium makes of outbox rows: the corpus for the tests of walpost's
//! Debezium profiles.
//!
//! Run by `make debezium-corpus`. Writes one file per scenario; a second argument limits it to
//! scenarios whose name contains one of its words.

mod defaults;
mod modes;
mod options;
mod payloads;
mod placement;
mod plan;
mod rare;
mod routing;
mod types;
mod values;

use std::path::PathBuf;

use walpost_bed::golden::Recorder;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(directory) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: record_debezium DIRECTORY [PARTS-OF-NAMES]");
        std::process::exit(2);
    };
    let wanted = arguments.next().and_then(|part| part.into_string().ok()).unwrap_or_default();
    let mut scenarios = plan::all();
    scenarios
        .retain(|one| wanted.is_empty() || wanted.split(' ').any(|part| one.name.contains(part)));
    let mut recorder = Recorder::start().await;
    for scenario in &scenarios {
        let text = recorder.record(scenario).await;
        let path = directory.join(format!("{}.jsonl", scenario.name));
        std::fs::create_dir_all(path.parent().expect("it lies in the directory"))?;
        std::fs::write(&path, &text)?;
        println!("{}: {} bytes", path.display(), text.len());
    }
    Ok(())
}
