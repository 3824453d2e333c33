//! What is said of a command line that makes no sense, or asks for help.

use std::io::{self, Write as _};

use clap::error::ContextValue;

use super::Exit;
use crate::config;

/// Says it. An argument may be an address that lacks its flag: its secrets are hidden.
pub(super) fn say(error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        // Nobody is left to be told where printing fails, here and below.
        let _ = error.print();
        return Exit::Ok;
    }
    let told = error.render().to_string();
    let shown = without_secrets(error, &told);
    // In colours where there is nothing to hide.
    let _ =
        if shown == told { error.print() } else { io::stderr().lock().write_all(shown.as_bytes()) };
    Exit::Usage
}

/// What is told, with each argument that may be an address shown as addresses are.
fn without_secrets(error: &clap::Error, told: &str) -> String {
    let texts = error.context().flat_map(|(_, value)| match value {
        ContextValue::String(text) => vec![text],
        ContextValue::Strings(texts) => texts.iter().collect(),
        _ => Vec::new(),
    });
    let is_address = |text: &str| text.contains("://") || text.contains("password");
    let shown = texts
        .filter(|text| is_address(text))
        .fold(told.to_owned(), |told, text| told.replace(text.as_str(), &config::conninfo(text)));
    config::without_logins(&shown)
}
