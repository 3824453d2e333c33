//! What became of each option, for a person to read.

use std::fmt::Write as _;

use super::options::Given;
use crate::excerpt::escaped;

/// What becomes of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// walpost cannot do that; the text says why, and what to do instead.
    Refused,
    /// The printed configuration has it.
    Carried,
    /// Nothing is lost without it; the text says why.
    NotNeeded,
}

/// An option, or one that is not in the file, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which option of the file, from 0; `None`: it is not in the file.
    pub place: Option<usize>,
    /// The option's name, as the file has it.
    pub name: String,
    /// What becomes of it.
    pub verdict: Verdict,
    /// Where it went, or why it did not go anywhere.
    pub text: String,
}

/// Findings, one for each option that was given, and for some that were not.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Finding>);

impl Report {
    pub(crate) fn carried(&mut self, given: &Given, to: impl Into<String>) {
        self.add(given, Verdict::Carried, to.into());
    }

    pub(crate) fn not_needed(&mut self, given: &Given, why: impl Into<String>) {
        self.add(given, Verdict::NotNeeded, why.into());
    }

    pub(crate) fn refused(&mut self, given: &Given, why: impl Into<String>) {
        self.add(given, Verdict::Refused, why.into());
    }

    fn add(&mut self, given: &Given, verdict: Verdict, text: String) {
        let (place, name) = (Some(given.place), given.name.clone());
        self.0.push(Finding { place, name, verdict, text });
    }

    /// An option that is not in the file, where that says something.
    pub(crate) fn absent(&mut self, name: &str, verdict: Verdict, text: &str) {
        let (name, text) = (name.to_owned(), text.to_owned());
        self.0.push(Finding { place: None, name, verdict, text });
    }

    /// In the order of the file, what is not in it last.
    pub(crate) fn into_findings(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| finding.place.unwrap_or(usize::MAX));
        self.0
    }
}

/// The findings as comments of a TOML file, what cannot be honoured first.
pub(crate) fn comments(findings: &[Finding]) -> String {
    let mut text = String::new();
    let of = |verdict: Verdict, is_given: bool| {
        let wanted = move |it: &&Finding| it.verdict == verdict && it.place.is_some() == is_given;
        findings.iter().filter(wanted)
    };
    let refused = of(Verdict::Refused, true).chain(of(Verdict::Refused, false));
    section(&mut text, "Cannot be honoured", refused);
    section(&mut text, "Carried over", of(Verdict::Carried, true));
    section(&mut text, "Not needed", of(Verdict::NotNeeded, true));
    let absent = of(Verdict::Carried, false).chain(of(Verdict::NotNeeded, false));
    section(&mut text, "Not in the file", absent);
    text
}

fn section<'a>(text: &mut String, title: &str, findings: impl Iterator<Item = &'a Finding>) {
    let mut findings = findings.peekable();
    if findings.peek().is_none() {
        return;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "#\n# {title}:");
    for finding in findings {
        let _ = writeln!(text, "#   {}", line(finding));
    }
}

/// A finding in a line: `name: text`, or `name -> setting`.
pub fn line(finding: &Finding) -> String {
    let Finding { name, text, .. } = finding;
    let place = match (finding.place, finding.verdict) {
        (None, Verdict::Refused) => " (not in the file)",
        _ => "",
    };
    let sign = if finding.verdict == Verdict::Carried { " ->" } else { ":" };
    printable(&format!("{name}{place}{sign} {text}"))
}

/// Without the control characters that a comment cannot have, nor a terminal should, and without
/// those that turn the direction of writing.
pub(crate) fn printable(text: &str) -> String {
    escaped(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_those_that_turn_the_direction_are_escaped() {
        let text = "a\u{1b}b\u{202a}c\u{202e}d\u{2066}e\u{2069}é";
        let shown = r"a\u{1b}b\u{202a}c\u{202e}d\u{2066}e\u{2069}é";
        assert_eq!(printable(text), shown);
        assert_eq!(printable(&"x".repeat(5000)).len(), 5000);
    }
}
