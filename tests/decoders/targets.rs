//! The fuzz targets on their committed corpus and on mutations of it.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::fuzz::{Body, SEPARATOR, TARGETS, stream};
use crate::mutation::{Random, mutated};
use crate::recorded;

/// Mutations for each target: few seconds of all, without optimisation.
const MUTATIONS: usize = 10_000;

#[test]
fn every_fuzz_target_passes_on_its_corpus_and_mutations() {
    std::thread::scope(|scope| {
        for (name, body) in TARGETS {
            scope.spawn(move || {
                let inputs = corpus(name);
                for input in &inputs {
                    run(name, body, input);
                }
                let mut random = Random::new(0);
                for _ in 0..MUTATIONS {
                    run(name, body, &mutated(&inputs, SEPARATOR, &mut random));
                }
            });
        }
    });
}

#[test]
fn relay_accepts_recorded_streams_and_confirms_only_what_they_contain() {
    for major in recorded::MAJORS {
        run("stream", stream, &recorded::of_major(major).join(SEPARATOR));
    }
}

/// The committed inputs of a target.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let entries = fs::read_dir(&directory).expect("each target has a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", directory.display());
    paths.iter().map(|path| fs::read(path).expect("an input can be read")).collect()
}

/// Says which input it was where one is found.
fn run(name: &str, body: Body, input: &[u8]) {
    let passed = catch_unwind(AssertUnwindSafe(|| body(input))).is_ok();
    assert!(passed, "target {name}, input b\"{}\"", input.escape_ascii());
}
