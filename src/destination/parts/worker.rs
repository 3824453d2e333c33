//! The thread of a sink that owns its connections.

use std::thread;

use crate::sink::SinkError;

/// Starts a thread of that name with a runtime of its own, which runs `work` to its end.
pub(crate) fn start<F: Future<Output = ()>>(
    name: &str,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<(), SinkError> {
    let failed = |error: std::io::Error| SinkError::Thread(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let run = move || {
        runtime.block_on(work());
        // Does not wait for a pending DNS lookup.
        runtime.shutdown_background();
    };
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(failed)?;
    Ok(())
}
