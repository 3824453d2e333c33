//! Patroni in a virtual environment, and the programs of PostgreSQL that it runs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;
use crate::error::{BedError, Doing};
use crate::postgres::{Major, install as install_postgres, of_the_system};

const REQUIREMENTS: &str = include_str!("../../patroni/requirements.txt");
const CONTROL_DATA: &str = include_str!("../../patroni/pg_controldata");
const WAL_DUMP: &str = include_str!("../../patroni/pg_waldump");
const COPY_MEMBER: &str = include_str!("../../patroni/copy_member");

/// Debian's, which the user postgres can run too.
const PYTHON: &str = "/usr/bin/python3";

/// The interpreter of the virtual environment.
pub(super) fn python() -> Result<PathBuf, BedError> {
    let name = cache::name_for("patroni", &[REQUIREMENTS]);
    let entry = cache::entry(&name, |partial| {
        let requirements = partial.join("requirements.txt");
        fs::write(&requirements, REQUIREMENTS).doing(|| "writing the requirements".into())?;
        let mut venv = Command::new(PYTHON);
        venv.args(["-m", "venv"]).arg(partial);
        cache::run(&mut venv, "python3 -m venv", "python3-venv")?;
        let mut pip = Command::new(partial.join("bin/python"));
        pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "-r"]);
        cache::run(pip.arg(requirements), "pip", "python3-venv")?;
        let mut modes = Command::new("chmod");
        cache::run(modes.args(["-R", "a+rX"]).arg(partial), "chmod", "coreutils").map(drop)
    })?;
    Ok(entry.join("bin/python"))
}

/// Fills a directory with the programs that Patroni looks for, and its replica method.
pub(super) fn programs(major: Major, directory: &Path) -> Result<(), BedError> {
    cache::make_open(directory)?;
    let servers = install_postgres(major)?;
    let clients = Major::ALL.into_iter().rev().find_map(of_the_system);
    let clients =
        clients.ok_or(BedError::Missing { program: "pg_isready", package: "postgresql" })?;
    let links = [
        (&servers, "postgres"),
        (&servers, "initdb"),
        (&servers, "pg_ctl"),
        (&clients, "pg_isready"),
    ];
    for (from, name) in links {
        symlink(from.join(name), directory.join(name)).doing(|| format!("linking {name}"))?;
    }
    let scripts =
        [("pg_controldata", CONTROL_DATA), ("pg_waldump", WAL_DUMP), ("copy_member", COPY_MEMBER)];
    for (name, text) in scripts {
        let place = directory.join(name);
        fs::write(&place, text).doing(|| format!("writing {name}"))?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755))
            .doing(|| format!("opening {name}"))?;
    }
    Ok(())
}
