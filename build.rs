//! What `walpost --version --verbose` says of the build and only the build knows.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = env::var("TARGET").expect("cargo names the target");
    println!("cargo::rustc-env=BUILT_FOR_TARGET={target}");
    println!("cargo::rustc-env=BUILT_WITH_OPENSSL={}", openssl());
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
