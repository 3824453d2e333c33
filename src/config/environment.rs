//! The environment as a value: that of the process, or one that a test constructs.
//!
//! Reads `WALPOST_*` variables and the files that their `_FILE` forms name, and rejects unknown
//! ones.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::layer::{Layer, LayerValue};
use super::origin::Origin;
use super::schema::Schema;
use super::setting::{Setting, nearest};

/// The variable that names the configuration file.
pub(crate) const CONFIG_VARIABLE: &str = "WALPOST_CONFIG";
const PREFIX: &str = "WALPOST_";
const FILE_SUFFIX: &str = "_FILE";

/// The variables of the process that can have secrets of walpost: no program that it starts gets them.
pub(crate) fn secret_variables() -> impl Iterator<Item = OsString> {
    let shared = Setting::all().filter(|setting| setting.is_secret());
    let shared: Vec<_> = shared.filter_map(Setting::ambient).chain(["PGPASSWORD"]).collect();
    std::env::vars_os().map(|(name, _)| name).filter(move |name| {
        let is_own = name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
        is_own || shared.iter().any(|shared| name == shared)
    })
}

/// Variables, and the directory for relative paths.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, OsString>,
    directory: PathBuf,
}

impl fmt::Debug for Environment {
    /// Shows no value: it may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}

impl Environment {
    /// The process's environment. Variables whose names are not UTF-8 are ignored.
    pub fn of_process() -> Self {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .collect();
        Self { variables, directory: PathBuf::new() }
    }

    /// An environment with these variables and this working directory.
    pub fn new<'a>(
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
        directory: &Path,
    ) -> Self {
        let variables =
            variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        Self { variables, directory: directory.to_owned() }
    }

    /// A variable's value, for readers of other variables (libpq's `PG*`); `None` if it is not set
    /// or not UTF-8.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name)?.to_str().map(str::to_owned)
    }

    /// A path, relative to this environment's directory.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }

    /// A variable's value; an empty value counts as set.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, ConfigError> {
        self.variables
            .get(name)
            .map(|value| {
                let text = value.to_str().map(str::to_owned);
                text.ok_or_else(|| ConfigError::NotText { name: name.to_owned() })
            })
            .transpose()
    }

    /// The values of `WALPOST_*` variables.
    pub(crate) fn own(&self, schema: &Schema) -> Result<Layer, ConfigError> {
        self.refuse_unknown(schema)?;
        let mut layer = Layer::new();
        for setting in schema.settings() {
            let Some(name) = setting.variable() else {
                continue;
            };
            if let Some((text, origin)) = self.text_or_file(&name)? {
                layer.insert(setting, LayerValue::of_text(setting, &text, origin)?);
            }
        }
        Ok(layer)
    }

    /// The values of variables shared with other programs.
    pub(crate) fn ambient(&self, schema: &Schema) -> Result<Layer, ConfigError> {
        let mut layer = Layer::new();
        for setting in schema.settings() {
            let Some(name) = setting.ambient() else {
                continue;
            };
            if let Some(text) = self.text(name)? {
                let origin = Origin::Variable(name.to_owned());
                layer.insert(setting, LayerValue::of_text(setting, &text, origin)?);
            }
        }
        Ok(layer)
    }

    /// The variables that name a file with a secret that any user can read, and the file.
    pub(super) fn open_secrets(&self, schema: &Schema) -> Vec<(String, PathBuf)> {
        let secrets = schema.settings().filter(|setting| setting.is_secret());
        let files = secrets.filter_map(Setting::variable).filter_map(|name| {
            let name = format!("{name}{FILE_SUFFIX}");
            let path = self.path(Path::new(self.variables.get(&name)?));
            Some((name, path))
        });
        files.filter(|(_, path)| is_open(path)).collect()
    }

    /// A variable's value, or the current content of its file.
    pub(crate) fn text_or_file(&self, name: &str) -> Result<Option<(String, Origin)>, ConfigError> {
        let file_name = format!("{name}{FILE_SUFFIX}");
        let plain = self.text(name)?;
        let Some(file) = self.variables.get(&file_name) else {
            return Ok(plain.map(|text| (text, Origin::Variable(name.to_owned()))));
        };
        if plain.is_some() {
            return Err(ConfigError::BothGiven { name: name.to_owned() });
        }
        let path = PathBuf::from(file);
        let mut text = std::fs::read_to_string(self.path(&path)).map_err(|source| {
            ConfigError::Unreadable { path: path.clone(), named_by: file_name.clone(), source }
        })?;
        // Some editors put a byte-order mark before a text in UTF-8.
        if text.starts_with('\u{feff}') {
            text.remove(0);
        }
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        Ok(Some((text, Origin::VariableFile { name: file_name, path })))
    }

    fn refuse_unknown(&self, schema: &Schema) -> Result<(), ConfigError> {
        let known: Vec<String> = schema
            .settings()
            .filter_map(Setting::variable)
            .chain([CONFIG_VARIABLE.to_owned()])
            .collect();
        let known = known.iter().map(String::as_str);
        for name in self.variables.keys().filter(|name| name.starts_with(PREFIX)) {
            let setting = name.strip_suffix(FILE_SUFFIX).unwrap_or(name);
            let is_known = known
                .clone()
                .any(|known| known == name || (known == setting && known != CONFIG_VARIABLE));
            if !is_known && !is_service_link(name) {
                let table = name[PREFIX.len()..].split('_').next().unwrap_or_default();
                let key = table.to_lowercase();
                if let Some(reason) = schema.not_built(&key) {
                    let origin = Origin::Variable(name.clone());
                    return Err(ConfigError::Invalid { origin, key, reason });
                }
                return Err(ConfigError::UnknownVariable {
                    name: name.clone(),
                    nearest: nearest(setting, known).map(str::to_owned),
                });
            }
        }
        Ok(())
    }
}

/// Whether Kubernetes sets this variable in each container for a service whose name begins with
/// `walpost`
/// (<https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>).
fn is_service_link(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = |tail: &str| {
        let mut parts = tail.split('_');
        let number = parts.next().is_some_and(digits);
        let protocol = matches!(parts.next(), Some("TCP" | "UDP" | "SCTP"));
        let part = matches!(parts.next(), None | Some("PROTO" | "PORT" | "ADDR"));
        number && protocol && part && parts.next().is_none()
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT")
        || name.match_indices("_PORT_").any(|(at, found)| port(&name[at + found.len()..]))
}

/// Whether any user can read the file.
fn is_open(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    const SCHEMA: Schema = Schema { kinds: &[], declared: &[] };

    #[test]
    fn a_secret_that_any_user_can_read_is_named() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("url");
        fs::write(&file, "postgres://u:p@h/d").unwrap();
        let name = "WALPOST_SOURCE_URL_FILE";
        let own = [(name, "url"), ("WALPOST_LOG_LEVEL_FILE", "url")];
        let environment = Environment::new(own, directory.path());
        for (mode, is_open) in [(0o600, false), (0o440, false), (0o644, true), (0o604, true)] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let expected = is_open.then(|| (name.to_owned(), file.clone()));
            assert_eq!(environment.open_secrets(&SCHEMA), Vec::from_iter(expected), "{mode:o}");
        }
    }

    #[test]
    fn variables_of_a_kubernetes_service_are_not_mistaken_for_settings() {
        for name in [
            "WALPOST_SERVICE_HOST",
            "WALPOST_SERVICE_PORT",
            "WALPOST_SERVICE_PORT_METRICS",
            "WALPOST_PORT",
            "WALPOST_PORT_9641_TCP",
            "WALPOST_PORT_9641_TCP_ADDR",
            "WALPOST_EU_PORT_9641_TCP_PROTO",
        ] {
            let environment = Environment::new([(name, "x")], Path::new(""));
            assert!(environment.own(&SCHEMA).is_ok(), "{name}");
        }
    }

    #[test]
    fn an_unknown_variable_names_the_nearest_known_one() {
        for (wrong, meant) in [
            ("WALPOST_SOURCE_SLTO", "WALPOST_SOURCE_SLOT"),
            ("WALPOST_CONFIG_FILE", "WALPOST_CONFIG"),
            ("WALPOST_SOURCE_ULR_FILE", "WALPOST_SOURCE_URL"),
        ] {
            let error = Environment::new([(wrong, "x")], Path::new("")).own(&SCHEMA).err().unwrap();
            let text = error.to_string();
            assert!(text.contains(wrong) && text.contains(&format!("`{meant}`")), "{text}");
        }
        for odd in ["WALPOST_", "WALPOST_FILE", "WALPOST__FILE"] {
            let error = Environment::new([(odd, "x")], Path::new("")).own(&SCHEMA).err().unwrap();
            assert!(matches!(error, ConfigError::UnknownVariable { .. }), "{error}");
        }
    }
}
