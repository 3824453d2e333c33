//! Links between pages are valid, and the book contains every page.

use std::path::{Component, Path, PathBuf};

use crate::{files_below, read, root};

/// The book's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

#[test]
fn links_lead_to_existing_files_and_headings() {
    let mut seen = 0;
    for page in pages() {
        for target in links(&read(&page)) {
            if let Some(fault) = fault(&page, &target) {
                panic!("{}: {target}: {fault}", page.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} links were found");
}

#[test]
fn broken_link_is_reported() {
    let page = Path::new("docs/guarantee.md");
    for wrong in [
        "none.md",
        "records.md#none",
        "#none",
        "../sql/none.sql",
        "runbooks/delivery-lag-high.md#x",
    ] {
        assert!(fault(page, wrong).is_some(), "{wrong}");
    }
    for right in
        ["records.md", "faults.md#kafka", "#why-it-holds", "../sql", "../sql/retention.sql"]
    {
        assert_eq!(fault(page, right), None, "{right}");
    }
    let text = "[a](b.md), ![c](d.png) [e]( f) `[g](h)`\n```\n[i](j)\n```\n[k](l.md#m)";
    assert_eq!(links(text), ["b.md", "d.png", "l.md#m"]);
    assert_eq!(slug("When it halts: exit code 4"), "when-it-halts-exit-code-4");
    assert_eq!(slug("`walpost run` & `_FILE`"), "walpost-run--_file");
}

#[test]
fn book_contains_every_page_once() {
    let mut listed: Vec<_> =
        links(&read(SUMMARY)).iter().map(|target| Path::new("docs").join(target)).collect();
    listed.sort();
    let pages: Vec<_> =
        files_below("docs", "md").into_iter().filter(|page| page != Path::new(SUMMARY)).collect();
    assert_eq!(listed, pages, "{SUMMARY} (left) and the pages that there are");
}

/// The book, and what stands next to it in the repository.
fn pages() -> impl Iterator<Item = PathBuf> {
    let others = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(PathBuf::from);
    files_below("docs", "md").into_iter().chain(others)
}

/// What is wrong with a link from that page.
fn fault(page: &Path, target: &str) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let place = if file.is_empty() {
        page.to_owned()
    } else {
        clean(&page.parent().expect("a file has a folder").join(file))
    };
    if !root().join(&place).exists() {
        return Some(format!("there is no {}", place.display()));
    }
    let is_there = |text: &str| prose(text).filter_map(heading_of).any(|it| slug(it) == heading);
    (!heading.is_empty() && !is_there(&read(&place)))
        .then(|| format!("{} has no such heading", place.display()))
}

/// Without `..`, also where the folder before it is not there.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            part => clean.push(part),
        }
    }
    clean
}

/// The lines outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fence && !fenced
    })
}

/// The targets of a page's links.
fn links(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for line in prose(text) {
        // Links hold code; a link within code has its bracket there.
        for (before, rest) in line.match_indices("](").map(|(at, _)| line.split_at(at)) {
            let in_code = before.matches('`').count() % 2 == 1;
            let target = rest[2..].split(')').next().unwrap_or_default();
            if !in_code && !target.is_empty() && !target.contains(' ') {
                targets.push(target.to_owned());
            }
        }
    }
    targets
}

fn heading_of(line: &str) -> Option<&str> {
    let title = line.trim_start_matches('#');
    (title.len() < line.len()).then(|| title.strip_prefix(' ')).flatten()
}

/// A heading's anchor, as GitHub and mdBook make it.
fn slug(heading: &str) -> String {
    let lower = heading.trim().to_lowercase();
    let kept = lower.chars().filter(|it| it.is_alphanumeric() || " -_".contains(*it));
    kept.map(|it| if it == ' ' { '-' } else { it }).collect()
}
