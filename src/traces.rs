//! Exports spans to an OpenTelemetry collector: OTLP over HTTP, configured by the standard
//! environment variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, …).
//!
//! Specification: <https://opentelemetry.io/docs/specs/otel/protocol/exporter/>.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter as Exporter};

/// Maximum time to flush the last spans when the process ends.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// The endpoint variables; if none is set, no spans are created.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// Whether an endpoint is set, and spans are not disabled.
pub(crate) fn are_sent() -> bool {
    static ARE_SENT: OnceLock<bool> = OnceLock::new();
    *ARE_SENT.get_or_init(|| {
        let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|it| it == value);
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|it| !it.is_empty());
        ENDPOINTS.iter().any(is_set)
            && !is("OTEL_SDK_DISABLED", "true")
            && !is("OTEL_TRACES_EXPORTER", "none")
    })
}

/// Exports spans while it exists; dropping it flushes the last ones.
pub(crate) struct Traces(SdkTracerProvider);

impl Drop for Traces {
    fn drop(&mut self) {
        // Does not wait longer for a collector that does not respond.
        let _ = self.0.shutdown_with_timeout(FLUSH_LIMIT);
    }
}

/// Creates the exporter if an endpoint is set; nothing is sent yet. An error names the invalid
/// variable.
pub(crate) fn exporter() -> Result<Option<SpanExporter>, String> {
    if !are_sent() {
        return Ok(None);
    }
    let exporter = SpanExporter::builder().with_http().build();
    exporter.map(Some).map_err(|error| format!("OpenTelemetry: {error}"))
}

/// Starts to export spans if an endpoint is set; fails as [`exporter`] does.
pub(crate) fn start(slot: &str) -> Result<Option<Traces>, String> {
    let Some(exporter) = exporter()? else { return Ok(None) };
    let resource = Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("walpost.slot", slot.to_owned()));
    let resource = match std::env::var_os("OTEL_SERVICE_NAME") {
        Some(_) => resource,
        None => resource.with_service_name("walpost"),
    };
    let provider = SdkTracerProvider::builder()
        .with_resource(resource.build())
        .with_batch_exporter(LoggingExporter { exporter, failing: AtomicBool::new(false) })
        .build();
    global::set_tracer_provider(provider.clone());
    Ok(Some(Traces(provider)))
}

/// Logs once that spans cannot be exported, and once that they can again.
#[derive(Debug)]
struct LoggingExporter {
    exporter: SpanExporter,
    failing: AtomicBool,
}

impl Exporter for LoggingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        let failing = result.is_err();
        match (self.failing.swap(failing, Relaxed), &result) {
            (false, Err(error)) => {
                tracing::warn!(%error, "cannot export spans; dropping them until the collector accepts them");
            }
            (true, Ok(())) => tracing::info!("exporting spans again"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
