//! A case: a numbered fault, the code that injects it, and its result.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::Trial;
use walpost_bed::Walpost;
use walpost_bed::fixture::ended;
use walpost_bed::oracle::Verdict;

use crate::faults_page;

type Injection = Pin<Box<dyn Future<Output = ()>>>;

/// A fault of `docs/faults.md` and one way to inject it.
#[derive(Clone)]
pub struct Case {
    /// Its number there; several cases may share one.
    pub number: u32,
    name: &'static str,
    long: bool,
    inject: Arc<dyn Fn(CaseReport) -> Injection + Send + Sync>,
}

impl Case {
    /// A case that takes seconds: `name` is what must hold, as a sentence.
    pub fn new<F>(
        number: u32,
        name: &'static str,
        inject: impl Fn(CaseReport) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        let inject = Arc::new(move |report| Box::pin(inject(report)) as Injection);
        Self { number, name, long: false, inject }
    }

    /// Takes long: runs only on demand (`--include-ignored`).
    pub fn long(mut self) -> Self {
        self.long = true;
        self
    }

    /// The case as a test of the harness.
    pub fn trial(self) -> Trial {
        let name = format!("{:02} {}", self.number, self.name);
        let long = self.long;
        Trial::test(name, move || {
            self.run();
            Ok(())
        })
        .with_ignored_flag(long)
    }

    fn run(&self) {
        let report = CaseReport::default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let work = (self.inject)(report.clone());
        let done = catch_unwind(AssertUnwindSafe(|| runtime.block_on(work)));
        runtime.shutdown_background();
        let seen = report.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let passed = done.is_ok() && seen.judged;
        let line = Line { number: self.number, name: self.name, seen, passed };
        TABLE.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        match done {
            Err(panic) => resume_unwind(panic),
            Ok(()) => assert!(passed, "the case did not ask the oracle"),
        }
    }
}

/// The result of a case, for its row in the table.
#[derive(Clone, Debug, Default)]
pub struct CaseReport(Arc<Mutex<Seen>>);

#[derive(Clone, Debug, Default)]
struct Seen {
    judged: bool,
    rows: usize,
    lost: usize,
    duplicates: usize,
    out_of_order: usize,
    foreign: usize,
    did: Vec<String>,
}

impl CaseReport {
    /// The oracle accepts it: at least once and in order.
    #[track_caller]
    pub fn ok(&self, verdict: &Verdict) {
        self.add(verdict);
        verdict.assert_ok();
    }

    /// The same, and nothing twice.
    #[track_caller]
    pub fn exact(&self, verdict: &Verdict) {
        self.add(verdict);
        verdict.assert_exact();
    }

    fn add(&self, verdict: &Verdict) {
        self.change(|seen| {
            seen.judged = true;
            seen.rows += verdict.expected;
            seen.lost += verdict.missing.len();
            seen.duplicates += verdict.duplicates.len();
            seen.out_of_order += verdict.out_of_order.len() + verdict.scattered.len();
            seen.foreign +=
                verdict.rolled_back.len() + verdict.unexpected.len() + verdict.wrong_key.len();
        });
    }

    /// Notes what walpost did, in a few words.
    pub fn did(&self, what: impl Into<String>) {
        let what = what.into();
        self.change(|seen| {
            if !seen.did.contains(&what) {
                seen.did.push(what);
            }
        });
    }

    /// The same process is still running.
    #[track_caller]
    pub fn still_running(&self, walpost: &Walpost) {
        assert!(walpost.pid().is_some(), "walpost exited: {:?}", walpost.stderr().last());
        self.did("continued");
    }

    /// It exits with this code; returns its log.
    pub async fn ends(&self, walpost: &Walpost, code: i32) -> String {
        let (seen, text) = ended(walpost).await;
        assert_eq!(seen, Some(code), "{text}");
        self.did(format!("exit {code}"));
        text
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

static TABLE: Mutex<Vec<Line>> = Mutex::new(Vec::new());

struct Line {
    number: u32,
    name: &'static str,
    seen: Seen,
    passed: bool,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen { rows, lost, duplicates, out_of_order, foreign, did, .. } = &self.seen;
        let fault = faults_page::faults().find(|fault| fault.number == self.number);
        let fault = fault.map_or("", |fault| fault.fault);
        let did = did.join(", ");
        let verdict = if self.passed { "pass" } else { "FAIL" };
        let (number, name) = (self.number, self.name.replace('_', " "));
        write!(
            f,
            "| {number} | {fault} | {name} | {rows} | {lost} | {duplicates} | {out_of_order} | \
             {foreign} | {did} | {verdict} |"
        )
    }
}

/// Prints the table of all cases that ran.
pub fn print_table() {
    let mut lines = std::mem::take(&mut *TABLE.lock().unwrap_or_else(PoisonError::into_inner));
    if lines.is_empty() {
        return;
    }
    lines.sort_by_key(|line| (line.number, line.name));
    println!(
        "| no. | fault | case | rows | lost | duplicates | out of order | foreign | walpost | |"
    );
    println!("|--:|---|---|--:|--:|--:|--:|--:|---|---|");
    for line in &lines {
        println!("{line}");
    }
}
