//! The walpost program.

/// After a large backlog, glibc's allocator returns little memory to the system, and it takes more
/// CPU for messages that one thread allocates and another frees: docs/performance.md.
#[cfg(feature = "allocator")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
