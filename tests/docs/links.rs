//! Links between pages are valid, and the book contains every page.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use regex::Regex;

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

/// What the program tells its users to read: `docs/page.md`, or "Section" in `docs/page.md`.
#[test]
fn pages_and_sections_that_the_program_names_exist() {
    let named = Regex::new(r#"(?:\\"([^"\\]+)\\" in )?(docs/[a-z/-]+\.md)"#).expect("a pattern");
    let continued = Regex::new(r"\\\n\s*").expect("a pattern");
    let mut seen = 0;
    for file in files_below("src", "rs") {
        let text = read(&file);
        for found in named.captures_iter(&continued.replace_all(&text, "")) {
            let section =
                found.get(1).map_or(String::new(), |name| format!("#{}", slug(name.as_str())));
            let target = format!("{}{section}", &found[2]);
            assert_eq!(fault(Path::new("README.md"), &target), None, "{}", file.display());
            seen += usize::from(!section.is_empty());
        }
    }
    assert!(seen > 0, "no section was found");
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

/// A label that is a page's title, a heading or a file name promises that page, section or file.
#[test]
fn labels_that_name_a_page_a_section_or_a_file_lead_there() {
    let names: BTreeSet<String> = pages()
        .flat_map(|page| prose(&read(page)).filter_map(heading_of).map(plain).collect::<Vec<_>>())
        .collect();
    let mut seen = 0;
    for page in pages() {
        for (label, target) in labelled(&read(&page)) {
            if target.contains("://") {
                continue;
            }
            if let Some(fault) = mislabelled(&page, &label, &target, &names) {
                panic!("{}: [{label}]({target}): {fault}", page.display());
            }
            seen += usize::from(names.contains(&plain(&label)));
        }
    }
    assert!(seen > 30, "only {seen} such labels were found");
}

#[test]
fn misleading_label_is_reported() {
    let page = Path::new("docs/guarantee.md");
    let names = ["records", "consumers", "undeliverable events", "exit codes"];
    let names: BTreeSet<String> = names.map(str::to_owned).into();
    for (label, target) in [
        ("records", "consumers.md"),
        ("`Consumers`", "records.md#value"),
        ("exit codes", "installation.md"),
        ("records.md", "consumers.md"),
        ("`sql/none.sql`", "../sql/retention.sql"),
    ] {
        assert!(mislabelled(page, label, target, &names).is_some(), "[{label}]({target})");
    }
    for (label, target) in [
        ("Records", "records.md"),
        ("records", "records.md#value"),
        ("exit codes", "installation.md#exit-codes"),
        ("what consumers do", "consumers.md"),
        ("`sql/retention.sql`", "../sql/retention.sql"),
    ] {
        assert_eq!(mislabelled(page, label, target, &names), None, "[{label}]({target})");
    }
    let text = "a [b\nc](d.md) [`e`](#f)\n```\n[g](h)\n```\n![i](j.png)";
    let found = [("b c", "d.md"), ("`e`", "#f"), ("i", "j.png")];
    assert_eq!(labelled(text), found.map(|(label, target)| (label.to_owned(), target.to_owned())));
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
    let (place, heading) = resolved(page, target);
    if !root().join(&place).exists() {
        return Some(format!("there is no {}", place.display()));
    }
    let is_there = |text: &str| prose(text).filter_map(heading_of).any(|it| slug(it) == heading);
    (!heading.is_empty() && !is_there(&read(&place)))
        .then(|| format!("{} has no such heading", place.display()))
}

/// What is wrong with the label of a link from that page; `names` are all titles and headings.
fn mislabelled(page: &Path, label: &str, target: &str, names: &BTreeSet<String>) -> Option<String> {
    let (place, heading) = resolved(page, target);
    let name = plain(label);
    let is_file = Regex::new(r"^[\w./-]+\.(md|sql|rs|toml|yml|json|sh)$").expect("a pattern");
    if is_file.is_match(&name) {
        let target = place.to_string_lossy().to_lowercase();
        return (!target.ends_with(&name)).then(|| format!("leads to {}", place.display()));
    }
    if !names.contains(&name) || place.extension().is_none_or(|it| it != "md") {
        return None;
    }
    let text = read(&place);
    let headings: Vec<_> = prose(&text).filter_map(heading_of).collect();
    let title = headings.first().copied();
    let section = headings.iter().copied().find(|it| slug(it) == heading);
    let fits = title.into_iter().chain(section).any(|it| plain(it) == name);
    (!fits).then(|| format!("is the name of another page or section than {title:?} {section:?}"))
}

/// The file that a link from that page leads to, and the anchor.
fn resolved<'a>(page: &Path, target: &'a str) -> (PathBuf, &'a str) {
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    if file.is_empty() {
        return (page.to_owned(), heading);
    }
    (clean(&page.parent().expect("a file has a folder").join(file)), heading)
}

/// A label or a heading without case, quotes of code and line breaks.
fn plain(text: &str) -> String {
    let text = text.replace('`', "").to_lowercase();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
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

/// The labels and targets of a page's links; a label may be longer than a line.
fn labelled(text: &str) -> Vec<(String, String)> {
    let text = prose(text).collect::<Vec<_>>().join("\n");
    let link = Regex::new(r"\[([^\[\]]+)\]\(([^()\s]+)\)").expect("a pattern");
    let found = link.captures_iter(&text);
    found.map(|found| (found[1].replace('\n', " "), found[2].to_owned())).collect()
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
