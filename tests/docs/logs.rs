//! `docs/logs.md` lists every log event at info, warn and error.

use std::collections::BTreeSet;

use crate::{files_below, read};

const PAGE: &str = "docs/logs.md";

#[test]
fn every_log_event_is_documented_with_level_and_fields() {
    let page = read(PAGE);
    let rows = rows(&page);
    let mut met = BTreeSet::new();
    let mut seen = 0;
    for path in files_below("src", "rs") {
        for event in events(&read(&path)) {
            seen += 1;
            let of = path.display();
            // The destination's name is an argument.
            let is_it = |row: &Row<'_>| {
                let begins = row.begins.replacen("Kafka", "{}", 1);
                event.message.starts_with(row.begins) || event.message.starts_with(&begins)
            };
            let row = rows.iter().position(|row| row.level == event.level && is_it(row));
            let row = row.unwrap_or_else(|| panic!("{PAGE} lacks {event:?} of {of}"));
            met.insert(row);
            for field in &event.fields {
                let named = format!("`{field}`");
                assert!(rows[row].fields.contains(&named), "{PAGE} lacks {field} of {event:?}");
            }
        }
    }
    assert!(seen > 20, "only {seen} events were found");
    let stale = rows.iter().enumerate().find(|(number, _)| !met.contains(number));
    assert!(stale.is_none(), "{PAGE} has what nobody says: {:?}", stale.map(|(_, row)| row.begins));
}

/// What a runbook greps walpost's log for.
#[test]
fn runbooks_grep_for_messages_that_exist() {
    let page = read(PAGE);
    let mut seen = 0;
    for path in files_below("docs/runbooks", "md") {
        let text = read(&path);
        for line in text.lines().filter(|line| line.contains("journalctl")) {
            let Some((_, rest)) = line.split_once("| grep ") else { continue };
            let quote = rest.find(['\'', '"']).expect("a quoted pattern");
            let (mark, rest) = rest[quote..].split_at(1);
            let (pattern, _) = rest.split_once(mark).expect("the end of the pattern");
            seen += 1;
            // A pattern with quotes in it is of JSON's fields.
            let is_there = pattern.contains('"') || page.contains(pattern);
            assert!(is_there, "{}: {PAGE} has no `{pattern}`", path.display());
        }
    }
    assert!(seen > 2, "only {seen} patterns were found");
}

#[test]
fn log_events_are_extracted_from_source_code() {
    let code = r#"
        tracing::warn!(%error, confirmed = %self.core.flush_lsn(), "lost, \"again\"");
        tracing::info!(
            target: "x",
            slot = self.source.slot("not, this"),
            ?state,
            "one \
             line {there}"
        );
        tracing::debug!("not this");
        Err(error) => tracing::error!("{error}"),
    "#;
    let found: Vec<_> =
        events(code).into_iter().map(|it| (it.level, it.fields, it.message)).collect();
    let fields = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        found,
        [
            ("warn", fields(&["error", "confirmed"]), "lost, \"again\"".to_owned()),
            ("info", fields(&["slot", "state"]), "one line {there}".to_owned()),
            ("error", fields(&[]), "{error}".to_owned()),
        ]
    );
}

/// A row of the page: level, what the message begins with, fields.
struct Row<'a> {
    level: &'a str,
    begins: &'a str,
    fields: &'a str,
}

fn rows(page: &str) -> Vec<Row<'_>> {
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [level, message, fields, _] = cells[..] else { return None };
        let level = ["info", "warn", "error"].into_iter().find(|it| *it == level)?;
        Some(Row { level, begins: message.trim_matches('`').trim_end_matches(" …"), fields })
    });
    rows.collect()
}

/// One event of the code.
#[derive(Debug)]
struct Event {
    level: &'static str,
    fields: Vec<String>,
    message: String,
}

/// The events at info, warn and error.
fn events(code: &str) -> Vec<Event> {
    let levels = ["info", "warn", "error"];
    let mut found: Vec<(usize, Event)> = Vec::new();
    for level in levels {
        let call = format!("tracing::{level}!(");
        for (at, _) in code.match_indices(&call) {
            let arguments = arguments(&code[at + call.len()..]);
            let is_message = |it: &&String| it.starts_with('"');
            let message = arguments.iter().find(is_message).map_or("", |it| it);
            let fields = arguments.iter().take_while(|it| !it.starts_with('"'));
            let fields = fields.filter(|it| !it.starts_with("target:"));
            let name = |field: &String| {
                let name = field.split('=').next().unwrap_or_default().trim();
                name.trim_start_matches(['%', '?']).to_owned()
            };
            let fields = fields.map(name).collect();
            found.push((at, Event { level, fields, message: unquoted(message) }));
        }
    }
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, event)| event).collect()
}

/// The arguments of a call, up to its closing parenthesis.
fn arguments(code: &str) -> Vec<String> {
    let mut arguments = vec![String::new()];
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for sign in code.chars() {
        match sign {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' if !quoted && depth == 0 => break,
            ')' | ']' | '}' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        arguments.last_mut().expect("it is never empty").push(sign);
    }
    let trimmed = arguments.iter().map(|it| it.trim().to_owned());
    trimmed.filter(|it| !it.is_empty()).collect()
}

/// A string literal's text.
fn unquoted(literal: &str) -> String {
    let mut text = String::new();
    let inner = literal.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    let mut rest = inner.unwrap_or_default();
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        rest = if let Some(next) = after.strip_prefix('\n') {
            next.trim_start()
        } else {
            text.push_str(after.get(..1).unwrap_or_default());
            after.get(1..).unwrap_or_default()
        };
    }
    text.push_str(rest);
    text
}
