//! The report on each option.

use std::fmt::Write as _;

use super::options::LayerValue;
use crate::excerpt::escaped;

/// How an option is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mapping {
    /// walpost does not support it; the text explains why, and names the alternative.
    Refused,
    /// The printed configuration contains it.
    Carried,
    /// walpost does not need it; the text explains why.
    NotNeeded,
}

/// An option, or one that is missing in the file, and how it is handled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The index of the option in the file, from 0; `None` if it is missing.
    pub place: Option<usize>,
    /// The option's name, as the file has it.
    pub name: String,
    /// How it is handled.
    pub mapping: Mapping,
    /// The resulting setting, or the reason why there is none.
    pub text: String,
}

/// One finding per option in the file, and some for missing ones.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Finding>);

impl Report {
    pub(crate) fn carried(&mut self, given: &LayerValue, to: impl Into<String>) {
        self.add(given, Mapping::Carried, to.into());
    }

    pub(crate) fn not_needed(&mut self, given: &LayerValue, why: impl Into<String>) {
        self.add(given, Mapping::NotNeeded, why.into());
    }

    pub(crate) fn refused(&mut self, given: &LayerValue, why: impl Into<String>) {
        self.add(given, Mapping::Refused, why.into());
    }

    fn add(&mut self, given: &LayerValue, mapping: Mapping, text: String) {
        let (place, name) = (Some(given.place), given.name.clone());
        self.0.push(Finding { place, name, mapping, text });
    }

    /// An option that is missing in the file, if that matters.
    pub(crate) fn absent(&mut self, name: &str, mapping: Mapping, text: &str) {
        let (name, text) = (name.to_owned(), text.to_owned());
        self.0.push(Finding { place: None, name, mapping, text });
    }

    /// The findings in the order of the file; missing options last.
    pub(crate) fn into_findings(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| finding.place.unwrap_or(usize::MAX));
        self.0
    }
}

/// The findings as comments of a TOML file; unsupported options first.
pub(crate) fn comments(findings: &[Finding]) -> String {
    let mut text = String::new();
    let of = |mapping: Mapping, is_given: bool| {
        let wanted = move |it: &&Finding| it.mapping == mapping && it.place.is_some() == is_given;
        findings.iter().filter(wanted)
    };
    let refused = of(Mapping::Refused, true).chain(of(Mapping::Refused, false));
    section(&mut text, "Cannot be honoured", refused);
    section(&mut text, "Carried over", of(Mapping::Carried, true));
    section(&mut text, "Not needed", of(Mapping::NotNeeded, true));
    let absent = of(Mapping::Carried, false).chain(of(Mapping::NotNeeded, false));
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

/// A finding on one line: `name: text`, or `name -> setting`.
pub fn line(finding: &Finding) -> String {
    let Finding { name, text, .. } = finding;
    let place = match (finding.place, finding.mapping) {
        (None, Mapping::Refused) => " (not in the file)",
        _ => "",
    };
    let sign = if finding.mapping == Mapping::Carried { " ->" } else { ":" };
    printable(&format!("{name}{place}{sign} {text}"))
}

/// The text with escaped control characters, which are not allowed in a comment and unsafe on a
/// terminal, and escaped bidirectional controls.
pub(crate) fn printable(text: &str) -> String {
    escaped(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_bidirectional_controls_are_escaped() {
        let text = "a\u{1b}b\u{202a}c\u{202e}d\u{2066}e\u{2069}é";
        let shown = r"a\u{1b}b\u{202a}c\u{202e}d\u{2066}e\u{2069}é";
        assert_eq!(printable(text), shown);
        assert_eq!(printable(&"x".repeat(5000)).len(), 5000);
    }
}
