//! The walpost program.

fn main() -> std::process::ExitCode {
    // More than one provider is linked: libraries below must not have to choose.
    walpost::source::install_crypto_provider();
    end_at_a_panic();
    walpost::cli::main()
}

/// On whatever thread: one of a library's that is gone would leave a process
/// that waits for it for ever.
fn end_at_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}
