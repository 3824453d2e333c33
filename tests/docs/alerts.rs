//! Alerts, their runbooks, and the metrics that rules, dashboard and pages name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use walpost::metrics::names::{ALL, process};

use crate::{files_below, read};

const RULES: &str = "docker/prometheus/rules/walpost.rules.yml";
const DASHBOARD: &str = "docker/grafana/dashboards/walpost.json";

/// Where the book is served, until someone says where.
const BOOK: &str = "https://walpost.example/";

/// The headings of every runbook: whoever is on call finds the same things in the same place.
const RUNBOOK: [&str; 5] =
    ["## Steps", "## Causes", "## Queries", "## Alert condition", "## Resolved when"];

/// Runbooks without an alert of their own.
const WITHOUT_ALERT: [&str; 4] = [
    "docs/runbooks/failed-over.md",
    "docs/runbooks/outbox-grows.md",
    "docs/runbooks/restored.md",
    "docs/runbooks/upgraded.md",
];

#[test]
fn each_alert_has_a_runbook_and_each_runbook_an_alert() {
    let rules = read(RULES);
    let mut pages: BTreeMap<&str, &str> = BTreeMap::new();
    for (alert, rule) in alerts(&rules) {
        for part in ["severity: ", "summary: ", "description: ", "runbook_url: "] {
            assert!(rule.contains(part), "{alert} has no {part}");
        }
        let url = value_of(rule, "runbook_url: ");
        let page = url.strip_prefix(BOOK).and_then(|it| it.strip_suffix(".html"));
        let page = page.unwrap_or_else(|| panic!("{alert}: {url}"));
        let known = pages.insert(page, alert);
        assert!(known.is_none_or(|known| known == alert), "{page} is for {known:?} too");
        let text = read(format!("docs/{page}.md"));
        assert!(text.starts_with(&format!("# {alert}\n")), "docs/{page}.md is not of {alert}");
        assert_eq!(headings(&text), RUNBOOK, "docs/{page}.md");
        let name = page.rsplit('/').next().expect("a path has a last part");
        let row = format!("| [{alert}]({name}.md) | {} |", value_of(rule, "severity: "));
        assert!(read("docs/runbooks/README.md").contains(&row), "the list of runbooks lacks {row}");
    }
    let written = files_below("docs/runbooks", "md");
    let pages: Vec<_> = pages.keys().map(|page| format!("docs/{page}.md")).collect();
    let written: Vec<_> = written.iter().map(|path| path.display().to_string()).collect();
    let is_other = |it: &String| it.ends_with("README.md") || WITHOUT_ALERT.contains(&it.as_str());
    let written: Vec<_> = written.into_iter().filter(|it| !is_other(it)).collect();
    assert_eq!(written, pages, "the pages, and those that alerts lead to");
    for path in WITHOUT_ALERT {
        let text = read(path);
        assert_eq!(headings(&text), RUNBOOK, "{path}");
        let name = path.rsplit('/').next().expect("a path has a last part");
        assert!(read("docs/runbooks/README.md").contains(&format!("]({name})")), "{path}");
    }
}

#[test]
fn each_alert_has_firing_and_silent_unit_tests() {
    let rules = read(RULES);
    let tests = files_below("docker/prometheus/tests", "yml").into_iter().map(read);
    let tests: String = tests.collect();
    for (alert, _) in alerts(&rules) {
        let fires = format!("alertname: {alert}\n");
        let silent = format!("{{alertname: {alert}, ");
        assert!(tests.contains(&fires) && tests.contains(&silent), "{alert}");
    }
}

#[test]
fn dashboard_panels_have_descriptions_and_valid_runbook_links() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().expect("there are panels");
    let questions = panels.iter().filter(|panel| panel["type"] == "row");
    let questions: Vec<_> = questions.map(|row| row["title"].as_str().unwrap()).collect();
    assert_eq!(
        questions,
        ["Is it delivering?", "How late?", "Why?", "What does the database keep for it?"]
    );
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().expect("a title");
        assert!(panel["targets"].as_array().is_some_and(|it| !it.is_empty()), "{title}");
        let defaults = &panel["fieldConfig"]["defaults"];
        let is_number = panel["type"] == "timeseries";
        assert!(!is_number || defaults["unit"].is_string(), "{title} has no unit");
        for link in panel["links"].as_array().into_iter().flatten() {
            let url = link["url"].as_str().expect("a link leads somewhere");
            let page = url.strip_prefix(BOOK).and_then(|it| it.strip_suffix(".html"));
            read(format!("docs/{}.md", page.unwrap_or_else(|| panic!("{url}"))));
        }
    }
}

#[test]
fn metrics_in_rules_dashboard_and_pages_exist() {
    let rules = read(RULES);
    let recorded: Vec<_> =
        rules.split("- record: ").skip(1).filter_map(|rule| rule.lines().next()).collect();
    let known: BTreeSet<_> = ALL.iter().chain(process::ALL).map(|metric| metric.name).collect();
    let others = ["docs/operations.md", "docs/sizing.md"].map(Into::into);
    let pages = files_below("docs/runbooks", "md").into_iter().chain(others).map(read);
    let mut seen = BTreeSet::new();
    for text in [rules.clone(), read(DASHBOARD)].into_iter().chain(pages) {
        for name in names(&text) {
            if name.contains(':') {
                assert!(recorded.contains(&name), "no rule records {name}");
            } else {
                let parts = ["_bucket", "_count", "_sum"];
                let whole = parts.iter().find_map(|part| name.strip_suffix(part));
                let is_known = known.contains(name) || whole.is_some_and(|it| known.contains(it));
                assert!(is_known, "there is no metric {name}");
                seen.insert(whole.unwrap_or(name).to_owned());
            }
        }
    }
    assert!(seen.len() > 30, "{seen:?}");
}

#[test]
fn metric_names_are_recognized() {
    let text = "rate(walpost_a_total[5m]) walpost:b:c walpost_bed::x `process_d` walpost-e pre_walpost_f \
         walpost_batches_.*";
    assert_eq!(names(text), ["walpost_a_total", "walpost:b:c", "process_d"]);
}

/// The names of metrics in a text, and of what rules record. What ends with `_` is the beginning of
/// some other name: a slot's.
fn names(text: &str) -> Vec<&str> {
    let part = |sign: char| sign.is_ascii_alphanumeric() || sign == '_' || sign == ':';
    let words = text.split(|sign| !part(sign)).map(|word| word.trim_end_matches(':'));
    let of_ours = ["walpost_", "walpost:", "process_"];
    let is_one = |word: &&str| {
        of_ours.iter().any(|of| word.starts_with(of))
            && !word.contains("::")
            && !word.ends_with('_')
    };
    words.filter(is_one).collect()
}

/// Each alerting rule's name and text.
fn alerts(rules: &str) -> Vec<(&str, &str)> {
    let parts = rules.split("\n      - ").filter_map(|rule| rule.strip_prefix("alert: "));
    let named = parts.map(|rule| (rule.lines().next().expect("a rule has a name"), rule));
    let found: Vec<_> = named.collect();
    let kinds: BTreeSet<_> = found.iter().map(|(name, _)| *name).collect();
    assert!(kinds.len() >= 9, "{kinds:?}");
    found
}

/// The headings of a page's sections.
fn headings(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("## ")).collect()
}

/// What follows `key` in its line.
fn value_of<'a>(rule: &'a str, key: &str) -> &'a str {
    let value = rule.split_once(key).unwrap_or_else(|| panic!("no {key} in {rule}")).1;
    value.lines().next().expect("a line").trim()
}
