//! The trace that an event belongs to, as W3C Trace Context writes it.

/// The values of the headers `traceparent` and `tracestate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(crate) traceparent: String,
    pub(crate) tracestate: Option<String>,
}

/// The context of the span that publishes, if there is a valid one and a feature reads it.
#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn current() -> Option<TraceContext> {
    None
}

/// The context of the span that publishes, if there is a valid one and a feature reads it.
#[cfg(feature = "opentelemetry")]
pub(crate) fn current() -> Option<TraceContext> {
    use opentelemetry::trace::TraceContextExt as _;

    #[cfg(feature = "tracing")]
    {
        use tracing_opentelemetry::OpenTelemetrySpanExt as _;

        let context = tracing::Span::current().context();
        if let Some(found) = of(context.span().span_context()) {
            return Some(found);
        }
    }
    opentelemetry::Context::map_current(|context| of(context.span().span_context()))
}

/// See <https://www.w3.org/TR/trace-context/#traceparent-header-field-values>.
#[cfg(feature = "opentelemetry")]
fn of(span: &opentelemetry::trace::SpanContext) -> Option<TraceContext> {
    span.is_valid().then(|| {
        let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags().to_u8());
        let state = span.trace_state().header();
        TraceContext {
            traceparent: format!("00-{trace}-{id}-{flags:02x}"),
            tracestate: Some(state).filter(|state| !state.is_empty()),
        }
    })
}

#[cfg(all(test, feature = "tracing"))]
mod tests {
    use super::*;
    use opentelemetry::trace::{
        SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
        TracerProvider as _,
    };
    use tracing_subscriber::layer::SubscriberExt as _;

    #[test]
    fn the_current_opentelemetry_span_is_found() {
        assert_eq!(current(), None);
        let state = TraceState::from_key_value([("a", "1"), ("b", "2")]).expect("a valid state");
        let span = SpanContext::new(
            TraceId::from(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c),
            SpanId::from(0xb7ad_6b71_6920_3331),
            TraceFlags::SAMPLED,
            true,
            state,
        );
        let context = opentelemetry::Context::new().with_remote_span_context(span);
        let _guard = context.attach();
        let expected = TraceContext {
            traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
            tracestate: Some("a=1,b=2".to_owned()),
        };
        assert_eq!(current(), Some(expected));
    }

    #[test]
    fn the_current_tracing_span_is_found() {
        let provider = opentelemetry_sdk::trace::SdkTracerProvider::builder().build();
        // Without activation the span is known to tracing alone.
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("test"))
            .with_context_activation(false);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let _entered = tracing::info_span!("place order").entered();
            let found = current().expect("a trace").traceparent;
            assert!(found.starts_with("00-") && found.ends_with("-01"), "{found}");
            assert_eq!(found.len(), 55);
        });
    }
}
