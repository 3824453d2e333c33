//! Prints errors of the command line, and help.

use std::io::{self, Write as _};

use clap::error::ContextValue;

use super::Exit;
use crate::config;

/// Prints it. An argument may be an address whose flag is missing: its secrets are hidden.
pub(super) fn print(error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        // A failure to print cannot be reported, here and below.
        let _ = error.print();
        return Exit::Ok;
    }
    let message = error.render().to_string();
    let shown = without_secrets(error, &message);
    // In colours if there is nothing to hide.
    let _ = if shown == message {
        error.print()
    } else {
        io::stderr().lock().write_all(shown.as_bytes())
    };
    Exit::Usage
}

/// The text, with the secrets hidden in each argument that may be an address.
fn without_secrets(error: &clap::Error, message: &str) -> String {
    let texts = error.context().flat_map(|(_, value)| match value {
        ContextValue::String(text) => vec![text],
        ContextValue::Strings(texts) => texts.iter().collect(),
        _ => Vec::new(),
    });
    let is_address = |text: &str| text.contains("://") || text.contains("password");
    let shown = texts.filter(|text| is_address(text)).fold(message.to_owned(), |message, text| {
        message.replace(text.as_str(), &config::conninfo(text))
    });
    config::without_logins(&shown)
}
