//! Header names at a destination: which of them are one name there, and which a row may not set.
//!
//! A row's header must not replace what walpost says of the event, nor say anything to the
//! destination itself, to a server on the way or to a client library. What that is depends on the
//! protocol, so each destination has a [`Names`]. Names are compared as the destination has them:
//! where `-` is written for `_`, `ce_id` and `ce-id` are one.

use std::borrow::Cow;

/// The prefix of walpost's own header names; reserved whether or not walpost writes them.
const WALPOST: &str = "walpost.";

/// The header names of a destination.
///
/// Lists are in lower case and in the destination's [`Spelling`]; a name with `*` at its end stands
/// for all that begin so.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// How headers are written there.
    pub spelling: Spelling,
    /// Names that only the destination's own code may write.
    pub own: &'static [&'static str],
    /// Names that rows may not set, though `record.place` may.
    pub guarded: &'static [&'static str],
    /// Whether a record may have several headers of one name.
    pub may_repeat: bool,
    /// Whether the protocol can carry a name, apart from a zero byte, which none may have: clients
    /// pass names as C strings.
    pub can_be: fn(&str) -> bool,
    /// Whether the protocol can carry a value.
    pub value_can_be: fn(&[u8]) -> bool,
}

/// How a destination writes a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// Names that stay unchanged. Names that differ only in ASCII case are one, since some clients
    /// ignore case.
    AsIs,
    /// Names with `-` for `_` and `.`, in any case: HTTP.
    Hyphens,
}

/// A header that a record cannot have beside the others, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sink} {why}: give it another name (column:header:alias)")]
pub struct NameConflict {
    sink: &'static str,
    why: String,
}

impl Names {
    /// The names of Kafka, whose records are written unchanged.
    pub const KAFKA: Self = Self {
        spelling: Spelling::AsIs,
        own: &[],
        guarded: &[],
        may_repeat: true,
        can_be: |_| true,
        value_can_be: |_| true,
    };

    /// Whether two names are the same there.
    pub(crate) fn are_one(&self, one: &str, other: &str) -> bool {
        match self.spelling {
            Spelling::AsIs => one.eq_ignore_ascii_case(other),
            Spelling::Hyphens => {
                one.len() == other.len()
                    && one.bytes().map(hyphenated).eq(other.bytes().map(hyphenated))
            }
        }
    }

    /// The name as it is written there.
    pub fn spelt<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match self.spelling {
            Spelling::Hyphens if name.contains(['_', '.']) => {
                Cow::Owned(name.replace(['_', '.'], "-"))
            }
            _ => Cow::Borrowed(name),
        }
    }

    /// A text that is the same for names that are one.
    pub(super) fn folded(&self, name: &str) -> String {
        match self.spelling {
            Spelling::AsIs => name.to_ascii_lowercase(),
            Spelling::Hyphens => name.replace(['_', '.'], "-").to_ascii_lowercase(),
        }
    }

    /// Whether a row may not set a header of this name, whatever else is in the record.
    pub(super) fn is_reserved(&self, name: &str) -> bool {
        self.begins(name, WALPOST)
            || self.has(self.own, name)
            || self.has(self.guarded, name)
            || !self.carries(name)
    }

    fn carries(&self, name: &str) -> bool {
        !name.contains('\0') && (self.can_be)(name)
    }

    /// Whether the headers that `record.place` names can be sent beside those that walpost
    /// `writes`, all of them or only some.
    pub fn check<'a>(
        &self,
        sink: &'static str,
        writes: impl IntoIterator<Item = &'a str>,
        placed: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), NameConflict> {
        let conflict = |why| Err(NameConflict { sink, why });
        if self.may_repeat {
            return Ok(());
        }
        let mut taken: Vec<&str> = writes.into_iter().collect();
        for name in placed {
            let shown = crate::excerpt::excerpt(name);
            if self.begins(name, WALPOST) || self.has(self.own, name) {
                return conflict(format!("has a meaning of its own for the header `{shown}`"));
            }
            if !self.carries(name) {
                return conflict(format!("cannot have a header `{shown}`"));
            }
            if let Some(other) = taken.iter().find(|other| self.are_one(name, other)) {
                let other = crate::excerpt::excerpt(other);
                return conflict(format!("has one name for the headers `{shown}` and `{other}`"));
            }
            taken.push(name);
        }
        Ok(())
    }

    fn has(&self, list: &[&str], name: &str) -> bool {
        list.iter().any(|entry| match entry.strip_suffix('*') {
            Some(prefix) => self.begins(name, prefix),
            None => self.are_one(entry, name),
        })
    }

    fn begins(&self, name: &str, prefix: &str) -> bool {
        name.get(..prefix.len()).is_some_and(|start| self.are_one(start, prefix))
    }
}

/// A byte of a name, as names with hyphens are compared.
fn hyphenated(byte: u8) -> u8 {
    match byte {
        b'_' | b'.' => b'-',
        other => other.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names = Names {
        spelling: Spelling::Hyphens,
        own: &["host", "proxy-*"],
        guarded: &["content-type"],
        may_repeat: false,
        can_be: |name| !name.contains(' '),
        value_can_be: |_| true,
    };

    #[test]
    fn names_are_compared_as_they_are_written() {
        let exact = Names { spelling: Spelling::AsIs, ..NAMES };
        for (one, other, by_case, by_hyphen) in [
            ("id", "ID", true, true),
            ("ce_id", "ce-id", false, true),
            ("ce.Id", "ce_id", false, true),
            ("é", "É", false, false),
            ("a", "ab", false, false),
            ("", "", true, true),
        ] {
            assert_eq!(exact.are_one(one, other), by_case, "{one} {other}");
            assert_eq!(NAMES.are_one(one, other), by_hyphen, "{one} {other}");
            for names in [exact, NAMES] {
                let is_same = names.folded(one) == names.folded(other);
                assert_eq!(is_same, names.are_one(one, other), "{one} {other}");
            }
        }
        assert_eq!(NAMES.spelt("walpost.commit_time"), "walpost-commit-time");
        assert_eq!(exact.spelt("walpost.commit_time"), "walpost.commit_time");
    }

    #[test]
    fn reserved_names_are_found_in_any_spelling() {
        for name in
            ["Host", "PROXY_x", "proxy.y", "content_type", "walpost-x", "Walpost.x", "a b", "\0"]
        {
            assert!(NAMES.is_reserved(name), "{name}");
        }
        for name in ["", "hosts", "ho", "proxy", "content", "walposts", "wälpost.", "é"] {
            assert!(!NAMES.is_reserved(name), "{name}");
        }
        assert!(Names::KAFKA.is_reserved("WALPOST.x") && !Names::KAFKA.is_reserved("walpost-x"));
    }

    #[test]
    fn placed_names_that_the_destination_cannot_have_are_errors() {
        let check = |placed: &[&str]| {
            let placed = placed.iter().copied();
            NAMES.check("HTTP", ["event_type"], placed).map_err(|error| error.to_string())
        };
        assert_eq!(check(&["content-type", "a", "b"]), Ok(()));
        for (placed, part) in [
            (&["Host"][..], "meaning of its own for the header `Host`"),
            (&["walpost_topic"], "meaning of its own"),
            (&["event-type"], "one name for the headers `event-type` and `event_type`"),
            (&["a.b", "a_b"], "`a_b` and `a.b`"),
            (&["a b"], "cannot have a header `a b`"),
        ] {
            let error = check(placed).expect_err(part);
            assert!(error.starts_with("HTTP ") && error.contains(part), "{error}");
        }
        assert_eq!(Names::KAFKA.check("Kafka", ["a"], ["a", "walpost.x"]), Ok(()));
    }
}
