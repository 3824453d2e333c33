//! What `walpost --version --verbose` says of the build and only the build knows.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WALPOST_COMMIT");
    let target = env::var("TARGET").expect("cargo names the target");
    println!("cargo::rustc-env=BUILT_FOR_TARGET={target}");
    println!("cargo::rustc-env=BUILT_WITH_OPENSSL={}", openssl());
    println!("cargo::rustc-env=BUILT_FROM_COMMIT={}", commit());
}

/// For example `3.0.17`: the headers' version, `0xMNN00PP0` since OpenSSL 3.
fn openssl() -> String {
    let number = env::var("DEP_OPENSSL_VERSION_NUMBER").unwrap_or_default();
    match u64::from_str_radix(&number, 16) {
        Ok(number) if number >> 28 >= 3 => {
            format!("{}.{}.{}", number >> 28, number >> 20 & 0xff, number >> 4 & 0xff)
        }
        _ => "of a version before 3".to_owned(),
    }
}

/// The commit that is built: what `WALPOST_COMMIT` says, else that of the checkout, else that
/// which git wrote into a source archive.
fn commit() -> String {
    let given = env::var("WALPOST_COMMIT").ok().filter(|commit| !commit.is_empty());
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo names the directory"));
    given.or_else(|| of_checkout(&root)).or_else(|| of_archive(&root)).unwrap_or_else(|| {
        "unknown (built neither from a git checkout nor with WALPOST_COMMIT)".to_owned()
    })
}

/// HEAD, also of a worktree; not of a repository that only has this as a folder.
fn of_checkout(root: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    let top = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // What changes with the commit; a file that is not there would build again each time.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--git-path", name]).map(|path| root.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&["rev-parse", "HEAD"])
}

/// What `git archive` puts in the place of `$Format:%H$` (see `.gitattributes`).
fn of_archive(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("packaging/commit")).ok()?;
    let commit = text.trim();
    commit.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| commit.to_owned())
}
