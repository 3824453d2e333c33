//! Parses `docs/faults.md`, which describes each fault.

use libtest_mimic::Failed;

use crate::case::Case;

const TEXT: &str = include_str!("../../../docs/faults.md");

/// A row of the document.
pub struct Fault {
    pub number: u32,
    /// What is done to walpost.
    pub fault: &'static str,
}

/// All rows, in the document's order.
pub fn faults() -> impl Iterator<Item = Fault> {
    TEXT.lines().filter_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let number = cells.next()?.parse().ok()?;
        Some(Fault { number, fault: cells.next()? })
    })
}

/// Every fault of the page has a case, and every case is on the page.
pub fn check(cases: &[Case]) -> Result<(), Failed> {
    let known: Vec<u32> = faults().map(|fault| fault.number).collect();
    let committed: Vec<u32> = cases.iter().map(|case| case.number).collect();
    let uncommitted: Vec<&u32> = known.iter().filter(|one| !committed.contains(one)).collect();
    let unknown: Vec<&u32> = committed.iter().filter(|one| !known.contains(one)).collect();
    if known.is_empty() || !uncommitted.is_empty() || !unknown.is_empty() {
        let text = format!("without a case: {uncommitted:?}; not in the document: {unknown:?}");
        return Err(text.into());
    }
    Ok(())
}
