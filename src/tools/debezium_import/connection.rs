//! The source options: connection, slot, publication, tables.

use std::fmt::Write as _;

use super::draft::Draft;
use super::options::{LayerValue, Options, items};
use super::reference::Reference;
use super::report::Mapping;
use super::{router, tables};

/// The characters of a URL part that are not escaped.
const PLAIN: &str = "-._~/";

const SSL_MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// Converts connection, slot and publication.
pub(crate) fn take(options: &mut Options, draft: &mut Draft) {
    let mut required = |name: &str, setting: &str, draft: &mut Draft| {
        let Some(given) = options.take(name) else {
            let text = format!("walpost needs it too: set it as {setting}");
            draft.report.absent(name, Mapping::Refused, &text);
            return None;
        };
        let value = draft.literal(&given, setting)?;
        draft.report.carried(&given, "source.url");
        Some(value)
    };
    let host = required("database.hostname", "PGHOST, or in source.url", draft);
    let user = required("database.user", "PGUSER, or in source.url", draft);
    let database = required("database.dbname", "PGDATABASE, or in source.url", draft);
    let mut query = Vec::new();
    let port = options.take("database.port").and_then(|given| {
        let port = draft.literal(&given, "PGPORT, or in source.url")?;
        draft.report.carried(&given, "source.url");
        Some(port)
    });
    password(options, draft);
    encryption(options, draft, &mut query);
    draft.url =
        Some(url(user.as_deref(), host.as_deref(), port.as_deref(), database.as_deref(), &query));
    draft.slot = named(options, draft, "slot.name", "source.slot", "debezium");
    draft.publication =
        named(options, draft, "publication.name", "source.publication", "dbz_publication");
    publication(options, draft);
    plugin(options, draft);
}

/// How the publication was created: it is not changed.
fn publication(options: &mut Options, draft: &mut Draft) {
    const NAME: &str = "publication.autocreate.mode";
    const STAYS: &str =
        "the publication exists already, and walpost neither creates nor alters one";
    const ALL: &str = "Debezium then created the publication FOR ALL TABLES if there was none: walpost accepts it, \
        but cannot detect that it was without the outbox for a time; docs/from-debezium.md describes \
        how to replace it by one FOR TABLE";
    match options.take(NAME) {
        Some(given) if given.value.eq_ignore_ascii_case("all_tables") => {
            draft.report.not_needed(&given, ALL);
        }
        Some(given) => draft.report.not_needed(&given, STAYS),
        None => draft.report.absent(NAME, Mapping::NotNeeded, ALL),
    }
}

/// A name for which Debezium has a default.
fn named(
    options: &mut Options,
    draft: &mut Draft,
    name: &str,
    setting: &str,
    default: &str,
) -> Option<String> {
    let Some(given) = options.take(name) else {
        let text = format!("{setting}, with Debezium's default `{default}`");
        draft.report.absent(name, Mapping::Carried, &text);
        return Some(default.to_owned());
    };
    let value = draft.literal(&given, setting)?;
    draft.report.carried(&given, setting);
    Some(value)
}

fn password(options: &mut Options, draft: &mut Draft) {
    const WAYS: &str =
        "PGPASSWORD, a password file (PGPASSFILE, ~/.pgpass), or WALPOST_SOURCE_URL_FILE";
    let Some(given) = options.take("database.password") else { return };
    let text = match Reference::find(&given.value) {
        Some(reference) => format!("{WAYS}: it is kept as {reference}"),
        None => format!("{WAYS}: a password is not printed"),
    };
    draft.report.carried(&given, text);
    draft.password = Some(format!("The password comes by {WAYS}."));
}

/// TLS options, which pgjdbc names like libpq.
fn encryption(options: &mut Options, draft: &mut Draft, query: &mut Vec<(&'static str, String)>) {
    for (name, parameter) in [
        ("database.sslmode", "sslmode"),
        ("database.sslrootcert", "sslrootcert"),
        ("database.sslcert", "sslcert"),
        ("database.sslkey", "sslkey"),
    ] {
        let Some(given) = options.take(name) else { continue };
        let Some(value) = draft.literal(&given, "a parameter of source.url") else { continue };
        let value = if parameter == "sslmode" { value.to_ascii_lowercase() } else { value };
        if parameter == "sslmode" && !SSL_MODES.contains(&value.as_str()) {
            draft.report.refused(&given, "neither libpq nor walpost has this mode");
            continue;
        }
        if parameter == "sslkey" && ![".pem", ".key"].iter().any(|end| value.ends_with(end)) {
            draft.report.refused(
                &given,
                "Java reads keys as DER or PKCS#12, walpost as PEM: `openssl pkcs8 -inform DER -nocrypt \
                 -in KEY.pk8 -out KEY.pem`, and give that as sslkey in source.url",
            );
            continue;
        }
        draft.report.carried(&given, format!("source.url, as {parameter}"));
        query.push((parameter, value));
    }
    if let Some(given) = options.take("database.sslfactory") {
        if given.value == "org.postgresql.ssl.NonValidatingFactory" {
            let text = "it trusts any certificate, as sslmode=require does in source.url";
            draft.report.not_needed(&given, text);
        } else {
            draft.report.refused(
                &given,
                "a Java class; certificates go into source.url by libpq's ssl parameters",
            );
        }
    }
}

fn url(
    user: Option<&str>,
    host: Option<&str>,
    port: Option<&str>,
    database: Option<&str>,
    query: &[(&'static str, String)],
) -> String {
    let mut url = String::from("postgres://");
    if let Some(user) = user {
        url += &escape(user, "-._~");
        url.push('@');
    }
    if let Some(host) = host {
        // An IPv6 address is written in brackets.
        let is_address = host.contains(':') && !host.starts_with('[');
        let host = if is_address { format!("[{host}]") } else { escape(host, "-._~[]:,") };
        url += &host;
    }
    if let (Some(port), Some(_)) = (port, host) {
        url.push(':');
        url += &escape(port, "");
    }
    if let Some(database) = database {
        url.push('/');
        url += &escape(database, "-._~");
    }
    // Without a host, a port cannot be written before the database.
    let port = port.filter(|_| host.is_none()).map(|port| ("port", port));
    let query = query.iter().map(|(name, value)| (*name, value.as_str())).chain(port);
    for (index, (name, value)) in query.enumerate() {
        let sign = if index == 0 { '?' } else { '&' };
        let _ = write!(url, "{sign}{name}={}", escape(value, PLAIN));
    }
    url
}

fn escape(text: &str, plain: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || plain.as_bytes().contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// A slot belongs to its output plugin, and walpost reads pgoutput.
fn plugin(options: &mut Options, draft: &mut Draft) {
    const OTHER: &str = "walpost reads slots of pgoutput only: make a new slot and publication \
        (`walpost init`), while Debezium goes on, and change over; see docs/from-debezium.md";
    match options.take("plugin.name") {
        Some(given) if given.value.eq_ignore_ascii_case("pgoutput") => {
            draft.report.not_needed(&given, "walpost reads pgoutput only, from the same slot");
        }
        Some(given) => draft.report.refused(&given, OTHER),
        None => {
            let text = format!("Debezium's default is decoderbufs. {OTHER}");
            draft.report.absent("plugin.name", Mapping::Refused, &text);
        }
    }
}

/// Converts the tables and their filters.
pub(crate) fn take_tables(options: &mut Options, draft: &mut Draft) {
    const ALL: &str = "Debezium routes the rows of every table that it captures: \
        name the outbox in outbox.table";
    let list = options.take("table.include.list");
    match &list {
        None => draft.report.absent("table.include.list", Mapping::Refused, ALL),
        Some(given) => include_list(options, draft, given),
    }
    for name in ["schema.include.list", "schema.exclude.list", "table.exclude.list"] {
        let Some(given) = options.take(name) else { continue };
        if draft.tables.is_empty() {
            draft.report.refused(
                &given,
                "walpost takes names, not filters: name the outbox in outbox.table",
            );
        } else {
            draft.report.not_needed(&given, "outbox.table names the table");
        }
    }
}

fn include_list(options: &Options, draft: &mut Draft, given: &LayerValue) {
    let Some(list) = draft.literal(given, "outbox.table") else { return };
    let mut tables = match tables::names(&list) {
        Ok(tables) => tables,
        Err(item) => {
            let text = format!(
                "`{item}` is an expression that may match several tables: name the outbox, \
                 or each one, in outbox.table"
            );
            return draft.report.refused(given, text);
        }
    };
    // Tables that are captured for Debezium's own use are not outboxes.
    let signals = options.value("signal.data.collection").map(str::to_lowercase);
    let heartbeat = options.value("heartbeat.action.query").unwrap_or_default().to_lowercase();
    let mut own = Vec::new();
    tables.retain(|table| {
        let name = format!("{}.{}", table.schema, table.name).to_lowercase();
        let is_signal =
            signals.as_deref().is_some_and(|it| it == name || it.ends_with(&format!(".{name}")));
        let is_heartbeat =
            words(&heartbeat).any(|word| word == name || word == table.name.to_lowercase());
        if is_signal || is_heartbeat {
            own.push(table.to_string());
        }
        !is_signal && !is_heartbeat
    });
    if let Some(choice) = router::choice(options) {
        let excluded = tables.iter().filter(|table| !choice.takes(table));
        draft.excluded = excluded.map(ToString::to_string).collect();
        tables.retain(|table| choice.takes(table));
    }
    draft.tables = tables.iter().map(ToString::to_string).collect();
    let mut text = "outbox.table".to_owned();
    if !own.is_empty() {
        let _ = write!(
            text,
            ", without {}, which served Debezium's signals or heartbeats",
            own.join(", ")
        );
    }
    if !draft.excluded.is_empty() {
        let _ = write!(text, ", without {}, as the predicate says", draft.excluded.join(", "));
    }
    match draft.tables.len() {
        0 => {
            return draft.report.refused(given, "no outbox is left of it: name it in outbox.table");
        }
        1 => {}
        _ => {
            text += "; each is taken for an outbox, as by the event router: leave out what is none";
        }
    }
    draft.report.carried(given, text);
}

/// The names in a statement; schema and table together.
fn words(sql: &str) -> impl Iterator<Item = &str> {
    sql.split(|sign: char| !sign.is_alphanumeric() && !matches!(sign, '_' | '.' | '$'))
}

/// Converts the connector's class and name.
pub(crate) fn take_class(options: &mut Options, draft: &mut Draft) {
    const POSTGRES: [&str; 3] =
        ["io.debezium.connector.postgresql.PostgresConnector", "PostgresConnector", "Postgres"];
    match options.take("connector.class") {
        Some(given) if POSTGRES.contains(&given.value.as_str()) => {
            draft.report.not_needed(&given, "walpost reads PostgreSQL only");
        }
        Some(given) => {
            draft.report.refused(&given, "this is not Debezium's connector for PostgreSQL");
        }
        None => {
            let text = "this may be no connector of Debezium for PostgreSQL";
            draft.report.absent("connector.class", Mapping::Refused, text);
        }
    }
    if let Some(given) = options.take("name") {
        draft.report.not_needed(&given, "walpost is known by its slot");
        draft.name = Some(format!("the connector {}", given.value));
    }
    if let Some(given) = options.take("tasks.max") {
        let text = match items(&given.value).next() {
            Some("1") | None => "there is one walpost for a slot",
            Some(_) => "there is one walpost for a slot, as there is one task of this connector",
        };
        draft.report.not_needed(&given, text);
    }
}
