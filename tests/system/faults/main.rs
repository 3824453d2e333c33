//! The faults of `docs/faults.md`, each injected into the walpost binary between a real PostgreSQL
//! and a real Kafka, and verified on what a real consumer read.
//!
//! By default it runs the cases that take seconds; with `--include-ignored` all of them. At the end
//! it prints a table of the results.

// Nothing is reachable from outside a test's program.
#![allow(unreachable_pub)]

mod case;
mod faults_page;
mod kafka;
mod postgres;
mod publication;
mod walpost;

use std::env;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use case::Case;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // As Rust's own harness does.
    let threads = env::var("RUST_TEST_THREADS").ok().and_then(|threads| threads.parse().ok());
    arguments.test_threads = arguments.test_threads.or(threads);
    let cases = [walpost::cases(), kafka::cases(), postgres::cases(), publication::cases()];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    let complete = cases.clone();
    let mut trials: Vec<Trial> = cases.into_iter().map(Case::trial).collect();
    trials.push(Trial::test("faults_page_and_cases_match", move || faults_page::check(&complete)));
    let conclusion = libtest_mimic::run(&arguments, trials);
    case::print_table();
    conclusion.exit_code()
}
