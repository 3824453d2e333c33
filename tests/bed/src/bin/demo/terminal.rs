//! Terminal output: plain lines, with colour only on a terminal.

use std::io::IsTerminal;

/// Columns of the left half of a row: what happened in PostgreSQL.
const LEFT: usize = 46;
/// Columns of the right half: what was read back.
const RIGHT: usize = 34;

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

/// Where everything is printed.
pub(crate) struct Terminal {
    colour: bool,
    /// What records are read back from.
    origin: &'static str,
}

impl Terminal {
    /// Standard output; colour on a terminal that has some, unless `NO_COLOR` is set. The destination
    /// is Kafka unless another kind is named.
    pub(crate) fn of_stdout(sink: Option<&str>) -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let origin = match sink {
            Some("redis") => "read back from Redis",
            Some("nats") => "read back from NATS",
            Some("rabbitmq") => "read back from RabbitMQ",
            Some("sqs") => "read from the queue",
            Some(_) => "accepted by the HTTP receiver",
            None => "read back from Kafka",
        };
        Self { colour: std::io::stdout().is_terminal() && !refused && !dumb, origin }
    }

    /// A new part begins.
    pub(crate) fn heading(&self, text: &str) {
        println!("\n{}", self.painted(BOLD, text));
    }

    /// A line.
    #[allow(clippy::unused_self, reason = "all that is printed goes through the terminal")]
    pub(crate) fn say(&self, text: &str) {
        println!("  {text}");
    }

    /// A line in the background.
    pub(crate) fn note(&self, text: &str) {
        println!("  {}", self.painted(DIM, text));
    }

    /// A line that is good news.
    pub(crate) fn good(&self, text: &str) {
        println!("  {}", self.painted(GREEN, text));
    }

    /// A line about something that breaks.
    pub(crate) fn harm(&self, text: &str) {
        println!("  {}", self.painted(RED, text));
    }

    /// The heads of the columns of [`Terminal::delivered`] and [`Terminal::rolled_back`].
    pub(crate) fn columns(&self) {
        let (left, right) = ("in PostgreSQL", self.origin);
        self.note(&format!("{left:<LEFT$} {right:<RIGHT$} {:>10}", "delay"));
    }

    /// A committed transaction next to its record.
    pub(crate) fn delivered(&self, what: &str, record: &str, delay: &str) {
        let committed = self.painted(GREEN, "committed  ");
        let width = LEFT - 12;
        println!("  {committed} {what:<width$} {record:<RIGHT$} {delay:>10}");
    }

    /// A transaction that never was.
    pub(crate) fn rolled_back(&self, what: &str) {
        let rolled_back = self.painted(YELLOW, "rolled back");
        let width = LEFT - 12;
        println!(
            "  {rolled_back} {what:<width$} {}",
            self.painted(DIM, "nothing, as it should be")
        );
    }

    fn painted(&self, colour: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
