//! The walpost program.

fn main() -> std::process::ExitCode {
    walpost::cli::main()
}
