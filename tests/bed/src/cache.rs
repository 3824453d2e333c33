//! The directory in which installed servers are kept between test runs.
//!
//! An entry is built in a partial directory next to its final path, under a lock, and renamed when
//! complete: nobody sees an incomplete entry, and two runs do not conflict.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{BedError, Doing};
use crate::os_account::is_root;

/// Where root's cache lies when its home is closed to the user postgres.
const ROOTS_CACHE: &str = "/var/cache/walpost";

/// `$WALPOST_CACHE`, else the user's cache directory, else (as root) one that all can reach.
pub fn directory() -> Result<PathBuf, BedError> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let directory = if let Some(chosen) = set("WALPOST_CACHE") {
        let chosen = std::path::absolute(chosen).doing(|| "WALPOST_CACHE".into())?;
        make_open(&chosen)?;
        if is_root() && !open_to_all(&chosen) {
            return Err(BedError::UnreachableCache(chosen));
        }
        chosen
    } else {
        let users = set("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))
            .map(|base| base.join("walpost"));
        match users {
            Some(path) if !is_root() || open_to_all(&path) => path,
            None if !is_root() => return Err(BedError::NoCache),
            _ => PathBuf::from(ROOTS_CACHE),
        }
    };
    make_open(&directory)?;
    Ok(directory)
}

/// The name of an entry that is made of these texts, so that a change of one makes another.
pub(crate) fn name_for(what: &str, texts: &[&str]) -> String {
    // FNV-1a: the same in every build, as a name on disk must be.
    let bytes = texts.iter().flat_map(|text| text.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{what}-{hash:016x}")
}

/// The entry `name`, made by `make` when it is not there yet.
pub(crate) fn entry(
    name: &str,
    make: impl FnOnce(&Path) -> Result<(), BedError>,
) -> Result<PathBuf, BedError> {
    let cache = directory()?;
    let place = cache.join(name);
    if place.exists() {
        return Ok(place);
    }
    let lock_path = cache.join(format!("{name}.lock"));
    let lock = File::create(&lock_path).doing(|| format!("making {}", lock_path.display()))?;
    lock.lock().doing(|| format!("locking {}", lock_path.display()))?;
    if place.exists() {
        return Ok(place);
    }
    let partial = cache.join(format!("{name}.partial"));
    if partial.exists() {
        fs::remove_dir_all(&partial).doing(|| format!("removing {}", partial.display()))?;
    }
    make_open(&partial)?;
    make(&partial)?;
    fs::rename(&partial, &place).doing(|| format!("naming {}", place.display()))?;
    Ok(place)
}

/// A directory, with its parents, that every account may enter.
pub(crate) fn make_open(path: &Path) -> Result<(), BedError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .doing(|| format!("making {}", path.display()))
}

/// Whether other accounts may pass through all that exists of the path.
fn open_to_all(path: &Path) -> bool {
    path.ancestors()
        .filter_map(|step| fs::metadata(step).ok())
        .all(|seen| seen.permissions().mode() & 0o001 != 0)
}

/// Runs a command to its end; `program` and `package` are for the error when it is missing.
pub(crate) fn run(
    command: &mut Command,
    program: &'static str,
    package: &'static str,
) -> Result<String, BedError> {
    let done = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(BedError::Missing { program, package });
        }
        other => other.doing(|| format!("running {program}"))?,
    };
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() {
        return Ok(text);
    }
    let complaint = String::from_utf8_lossy(&done.stderr);
    let output = text.lines().chain(complaint.lines());
    let output: Vec<_> = output.filter(|line| !line.trim().is_empty()).collect();
    Err(BedError::Command {
        what: program.to_owned(),
        output: output[output.len().saturating_sub(5)..].join(" | "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inaccessible_parent_directory_is_detected() {
        let base = std::env::temp_dir().join(format!("walpost-closed-{}", std::process::id()));
        make_open(&base.join("inner")).unwrap();
        assert!(open_to_all(&base.join("inner/not-there-yet")));
        fs::set_permissions(&base, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!open_to_all(&base.join("inner/not-there-yet")));
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn missing_program_error_names_its_package() {
        let error = run(&mut Command::new("/no/such/npm"), "npm", "npm").unwrap_err();
        assert!(error.to_string().starts_with("npm is missing: apt-get install npm"));
    }

    #[test]
    fn failed_cache_entry_is_rebuilt() {
        let name = format!("test-entry-{}", std::process::id());
        let failed = entry(&name, |_| Err(BedError::NoPort));
        assert!(failed.is_err());
        let made =
            entry(&name, |partial| fs::write(partial.join("whole"), "").doing(|| "writing".into()))
                .unwrap();
        assert!(made.join("whole").exists());
        fs::remove_dir_all(&made).unwrap();
        fs::remove_file(directory().unwrap().join(format!("{name}.lock"))).unwrap();
    }
}
