//! From a struct to its implementation of `Event`.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned as _;
use syn::{Data, DeriveInput, Error, Field, Fields, LitStr, Member, Result};

/// What the attributes of the struct say.
#[derive(Default)]
struct OfStruct {
    aggregate_type: Option<LitStr>,
    event_type: Option<LitStr>,
}

/// What the attributes of the fields say.
#[derive(Default)]
struct OfFields {
    aggregate_id: Option<Value>,
    headers: Vec<(LitStr, Value)>,
}

/// A field, and the span of its type, at which the compiler reports what the type lacks.
struct Value {
    member: Member,
    span: Span,
}

pub(crate) fn event(input: &DeriveInput) -> Result<TokenStream> {
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(data) => {
            let reason = "an enum cannot derive `Event`, because it has one event type: use a \
                struct for each event type";
            return Err(Error::new(data.enum_token.span(), reason));
        }
        Data::Union(data) => {
            return Err(Error::new(data.union_token.span(), "a union cannot derive `Event`"));
        }
    };
    let OfStruct { aggregate_type, event_type } = of_struct(input)?;
    let missing = |what: &str| {
        let remedy = format!(
            "`{what}` is missing: add #[event(aggregate_type = \"…\", event_type = \"…\")] to the \
             struct"
        );
        Error::new(input.ident.span(), remedy)
    };
    let aggregate_type = aggregate_type.ok_or_else(|| missing("aggregate_type"))?;
    let event_type = event_type.ok_or_else(|| missing("event_type"))?;
    let OfFields { aggregate_id, headers } = of_fields(fields)?;
    let aggregate_id = aggregate_id.ok_or_else(|| {
        let remedy = "no field is the aggregate id: add #[event(aggregate_id)] to one";
        Error::new(input.ident.span(), remedy)
    })?;

    let aggregate_id = aggregate_id.to_text();
    let (header_names, header_values): (Vec<_>, Vec<_>) =
        headers.iter().map(|(name, value)| (name, value.to_text())).unzip();
    let name = &input.ident;
    let (of_impl, of_type, bounds) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #of_impl ::walpost_outbox::Event for #name #of_type #bounds {
            const AGGREGATE_TYPE: &'static str = #aggregate_type;
            const EVENT_TYPE: &'static str = #event_type;

            fn aggregate_id(&self) -> ::std::string::String {
                #aggregate_id
            }

            fn payload(&self) -> ::core::result::Result<
                ::walpost_outbox::Payload,
                ::walpost_outbox::private::serde_json::Error,
            > {
                ::walpost_outbox::Payload::json(self)
            }

            fn headers(&self) -> ::walpost_outbox::Headers {
                ::walpost_outbox::Headers::new()#(.with(#header_names, #header_values))*
            }
        }
    })
}

impl Value {
    fn to_text(&self) -> TokenStream {
        let member = &self.member;
        quote_spanned!(self.span=> ::std::string::ToString::to_string(&self.#member))
    }
}

fn of_struct(input: &DeriveInput) -> Result<OfStruct> {
    let mut found = OfStruct::default();
    for attribute in input.attrs.iter().filter(|it| it.path().is_ident("event")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("aggregate_type") {
                set(&mut found.aggregate_type, text(&meta)?, &meta)
            } else if meta.path.is_ident("event_type") {
                set(&mut found.event_type, text(&meta)?, &meta)
            } else {
                let known = "unknown attribute: a struct has `aggregate_type` and `event_type`";
                Err(meta.error(known))
            }
        })?;
    }
    Ok(found)
}

fn of_fields(fields: &Fields) -> Result<OfFields> {
    let mut found = OfFields::default();
    for (field, member) in fields.iter().zip(fields.members()) {
        of_field(field, &member, &mut found)?;
    }
    Ok(found)
}

fn of_field(field: &Field, member: &Member, found: &mut OfFields) -> Result<()> {
    for attribute in field.attrs.iter().filter(|it| it.path().is_ident("event")) {
        attribute.parse_nested_meta(|meta| {
            let value = Value { member: member.clone(), span: field.ty.span() };
            if meta.path.is_ident("aggregate_id") {
                set(&mut found.aggregate_id, value, &meta)
            } else if meta.path.is_ident("header") {
                let name = text(&meta)?;
                if found.headers.iter().any(|(known, _)| known.value() == name.value()) {
                    return Err(Error::new(name.span(), "another field is this header already"));
                }
                if name.value().to_ascii_lowercase().starts_with("walpost.") {
                    let reason = "headers that begin with `walpost.` are reserved";
                    return Err(Error::new(name.span(), reason));
                }
                found.headers.push((name, value));
                Ok(())
            } else {
                let known = "unknown attribute: a field has `aggregate_id` or `header`";
                Err(meta.error(known))
            }
        })?;
    }
    Ok(())
}

/// Sets what may be given once.
fn set<T>(place: &mut Option<T>, value: T, meta: &ParseNestedMeta<'_>) -> Result<()> {
    if place.is_some() {
        return Err(meta.error("given twice"));
    }
    *place = Some(value);
    Ok(())
}

/// The text after `=`, which may not be empty.
fn text(meta: &ParseNestedMeta<'_>) -> Result<LitStr> {
    let text: LitStr = meta.value()?.parse()?;
    if text.value().is_empty() || text.value().contains('\0') {
        return Err(Error::new(text.span(), "a text that is not empty and has no NUL is expected"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(source: &str) -> Result<String> {
        let input = syn::parse_str(source).expect("a type");
        event(&input).map(|tokens| tokens.to_string())
    }

    #[test]
    fn a_struct_of_any_shape_is_accepted() {
        for source in [
            r#"#[event(aggregate_type = "a", event_type = "b")] struct E { #[event(aggregate_id)] id: i64 }"#,
            r#"#[event(aggregate_type = "a")] #[event(event_type = "b")] struct E(#[event(aggregate_id, header = "h")] i64);"#,
            r#"#[event(aggregate_type = "a", event_type = "b")] struct E<'a, T: Display> where T: Copy { #[event(aggregate_id)] id: &'a T }"#,
        ] {
            expanded(source).unwrap_or_else(|error| panic!("{source}: {error}"));
        }
    }

    #[test]
    fn each_mistake_is_named() {
        const BOTH: &str = r#"#[event(aggregate_type = "a", event_type = "b")]"#;
        for (source, expected) in [
            (
                "struct E { #[event(aggregate_id)] id: i64 }".to_owned(),
                "`aggregate_type` is missing",
            ),
            (
                r#"#[event(aggregate_type = "a")] struct E { #[event(aggregate_id)] id: i64 }"#
                    .to_owned(),
                "`event_type` is missing",
            ),
            (
                r#"#[event(aggregate_type = "", event_type = "b")] struct E;"#.to_owned(),
                "not empty",
            ),
            (
                r#"#[event(aggregate_type = "a", aggregate_type = "b")] struct E;"#.to_owned(),
                "given twice",
            ),
            (r#"#[event(kind = "a")] struct E;"#.to_owned(), "unknown attribute: a struct has"),
            (r"#[event(aggregate_type = 1)] struct E;".to_owned(), "expected string literal"),
            (format!("{BOTH} struct E {{ id: i64 }}"), "no field is the aggregate id"),
            (
                format!("{BOTH} struct E(#[event(aggregate_id)] i64, #[event(aggregate_id)] i64);"),
                "given twice",
            ),
            (format!("{BOTH} struct E(#[event(key)] i64);"), "unknown attribute: a field has"),
            (format!(r#"{BOTH} struct E(#[event(header = "Walpost.x")] i64);"#), "are reserved"),
            (
                format!(
                    r#"{BOTH} struct E(#[event(header = "h")] i64, #[event(header = "h")] i64);"#
                ),
                "another field",
            ),
            (format!("{BOTH} enum E {{ A, B }}"), "use a struct for each event type"),
            (format!("{BOTH} union E {{ a: i64 }}"), "a union cannot derive"),
        ] {
            let error = expanded(&source).expect_err(&source).to_string();
            assert!(error.contains(expected), "{source}: {error}");
        }
    }
}
