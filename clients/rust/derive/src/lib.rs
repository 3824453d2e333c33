//! The derive macro of `walpost-outbox`, which documents it.

mod expand;

use proc_macro::TokenStream;

/// Implements `walpost_outbox::Event` for a struct that implements `serde::Serialize`. The payload
/// is the struct as JSON.
///
/// | attribute | of | meaning |
/// |---|---|---|
/// | `#[event(aggregate_type = "…", event_type = "…")]` | the struct | required |
/// | `#[event(aggregate_id)]` | one field | required; any type that implements `Display` |
/// | `#[event(header = "…")]` | a field | the field, by `Display`, is a header of this name |
///
/// ```
/// use walpost_outbox::Event;
///
/// #[derive(serde::Serialize, Event)]
/// #[event(aggregate_type = "order", event_type = "order_placed")]
/// struct OrderPlaced {
///     #[event(aggregate_id)]
///     order: i64,
///     total_cents: i64,
///     // Only in the header, not in the payload.
///     #[event(header = "tenant")]
///     #[serde(skip)]
///     tenant: String,
/// }
///
/// let event = OrderPlaced { order: 7, total_cents: 150, tenant: "acme".to_owned() };
/// assert_eq!(OrderPlaced::AGGREGATE_TYPE, "order");
/// assert_eq!(event.aggregate_id(), "7");
/// assert_eq!(event.headers().value("tenant"), Some("acme"));
/// ```
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::event(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
