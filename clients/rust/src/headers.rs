//! Headers of an event.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

/// As many as walpost accepts for one event.
const COUNT_MAX: usize = 1000;

/// Bytes of names and values that walpost accepts for one event.
const BYTES_MAX: usize = 1024 * 1024;

/// Headers of one event, in the order in which they were added.
///
/// The column `headers` contains them as a JSON object of strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Cow<'static, str>, String)>);

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a header, or replaces the one of this name.
    pub fn insert(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some(header) => header.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// Like [`Headers::insert`], for building.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        self.insert(name, value);
        self
    }

    /// The value of a header.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Why walpost would drop one of them, or could not deliver the event.
    pub(crate) fn fault(&self) -> Option<String> {
        let reserved = |name: &str| {
            name.get(.."walpost.".len()).is_some_and(|it| it.eq_ignore_ascii_case("walpost."))
        };
        if let Some((name, _)) = self.0.iter().find(|(name, _)| reserved(name)) {
            return Some(format!("header {name:?} is reserved: rename it"));
        }
        if self.0.len() > COUNT_MAX {
            return Some(format!("{} headers, {COUNT_MAX} are the most", self.0.len()));
        }
        let bytes: usize = self.0.iter().map(|(name, value)| name.len() + value.len()).sum();
        (bytes > BYTES_MAX).then(|| format!("{bytes} bytes of headers, {BYTES_MAX} are the most"))
    }
}

impl<N: Into<Cow<'static, str>>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(headers: I) -> Self {
        let mut all = Self::new();
        headers.into_iter().for_each(|(name, value)| all.insert(name, value));
        all
    }
}

impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_value_replaces_an_earlier_one() {
        let headers = Headers::new().with("tenant", "a").with("region", "eu").with("tenant", "b");
        assert_eq!(
            serde_json::to_string(&headers).expect("strings"),
            r#"{"tenant":"b","region":"eu"}"#
        );
        assert_eq!(headers.value("tenant"), Some("b"));
    }

    #[test]
    fn headers_that_walpost_would_not_send_are_refused() {
        let many: Headers = (0..1001).map(|at| (at.to_string(), "x")).collect();
        for (headers, expected) in [
            (Headers::new().with("Walpost.Position", "x"), "reserved"),
            (many, "1001 headers"),
            (Headers::new().with("x", "x".repeat(BYTES_MAX)), "1048577 bytes"),
        ] {
            let fault = headers.fault().expect(expected);
            assert!(fault.contains(expected), "{fault}");
        }
        assert_eq!(Headers::new().with("walpost", "\u{e9}\u{e9}").fault(), None);
        assert_eq!(Headers::new().with("walpos\u{e9}", "").fault(), None);
    }
}
