//! The walpost program.

fn main() -> std::process::ExitCode {
    // More than one provider is linked: libraries below must not have to choose.
    walpost::source::install_crypto_provider();
    walpost::cli::main()
}
