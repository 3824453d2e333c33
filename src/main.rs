//! The walpost program.

fn main() -> std::process::ExitCode {
    // More than one provider is linked; libraries could not choose one by themselves.
    walpost::source::install_crypto_provider();
    abort_on_panic();
    walpost::cli::main()
}

/// A panic in any thread aborts the process: otherwise it could wait forever for a library's thread
/// that has ended.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}
