//! The configuration of an outbox.

use std::sync::Arc;

use crate::columns::{self, Column, ColumnType, Field};
use crate::sql::Statements;

/// Where and how events are published. Cheap to clone; make one when the application starts.
///
/// The default is the table `public.outbox` of walpost's `sql/01-schema.sql`. The application's
/// role needs `INSERT` on the table and nothing else; for logical messages it needs no privilege.
///
/// ```
/// use walpost_outbox::{ColumnType, Field, Outbox};
///
/// // The table that walpost's `sql/01-schema.sql` creates:
/// let outbox = Outbox::new();
///
/// // A table of one's own:
/// let outbox = Outbox::new()
///     .table("shop", "events")
///     .column(Field::EventType, "type")
///     .column_type(Field::Payload, ColumnType::Bytea);
///
/// // No table, with `message_prefix = "outbox"` in walpost's `[outbox]`:
/// let outbox = Outbox::new().logical_messages("outbox");
/// ```
#[derive(Clone, Debug)]
pub struct Outbox {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Clone, Debug)]
pub(crate) struct Inner {
    pub(crate) form: Form,
    pub(crate) columns: Vec<Column>,
    pub(crate) ids: Ids,
    pub(crate) trace: TraceContext,
    pub(crate) statements: Statements,
}

/// What an event is in PostgreSQL.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    Row { schema: String, table: String },
    Message { prefix: String },
}

/// How an event gets its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ids {
    /// A UUID of version 7: random, and ascending in time, which keeps the index of the primary
    /// key compact.
    #[default]
    Random,
    /// A UUID of version 8, derived by SHA-256 from aggregate type, aggregate id, event type and
    /// payload: the same event has the same id. It is an idempotency key, so an event that can
    /// happen twice needs something in its payload that tells the two apart, such as a version.
    ///
    /// The payload must serialize to the same text every time: use `BTreeMap`, not `HashMap`.
    FromContent(OnDuplicate),
}

/// What happens to an event whose id is in the table already.
///
/// A row that was deleted is not there any more, and logical messages have no table: their
/// consumers have to drop duplicates by the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDuplicate {
    /// The primary key refuses it, and the transaction fails.
    Fail,
    /// It is not inserted again (`ON CONFLICT … DO NOTHING`). The column of the id alone must be
    /// unique, which it cannot be in a table that is partitioned by another column.
    Ignore,
}

/// Where the trace context of the current span goes.
///
/// It is read with the feature `opentelemetry` or `tracing`, when `publish` is called. Without
/// these features, or outside a span, there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceContext {
    /// Headers `traceparent` and `tracestate` of the event, unless it has a `traceparent` already.
    #[default]
    Headers,
    /// Columns `traceparent` and `tracestate`, by which walpost finds them too.
    Columns,
    /// Nowhere.
    Off,
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Outbox {
    /// The table `public.outbox` with the columns of walpost's `sql/01-schema.sql`.
    pub fn new() -> Self {
        let inner = Inner {
            form: Form::Row { schema: "public".to_owned(), table: "outbox".to_owned() },
            columns: columns::usual(),
            ids: Ids::default(),
            trace: TraceContext::default(),
            statements: Statements::default(),
        };
        Self { inner: Arc::new(inner) }.changed(|_| ())
    }

    /// Events are rows of this table. Both names are quoted, so they are case-sensitive.
    #[must_use]
    pub fn table(self, schema: impl Into<String>, table: impl Into<String>) -> Self {
        let form = Form::Row { schema: schema.into(), table: table.into() };
        self.changed(|inner| inner.form = form)
    }

    /// Events are transactional logical messages with this prefix, which is
    /// `outbox.message_prefix` of walpost. Their members have the names of the columns.
    #[must_use]
    pub fn logical_messages(self, prefix: impl Into<String>) -> Self {
        let form = Form::Message { prefix: prefix.into() };
        self.changed(|inner| inner.form = form)
    }

    /// The name of a field's column, which is quoted. Columns for [`Field::Traceparent`] and
    /// [`Field::Tracestate`] are only written with [`TraceContext::Columns`]. The default table
    /// lacks them, and walpost knows only the names `traceparent` and `tracestate`.
    #[must_use]
    pub fn column(self, field: Field, name: impl Into<String>) -> Self {
        let name = name.into();
        self.changed(|inner| match inner.columns.iter_mut().find(|it| it.field == field) {
            Some(column) => column.name = name,
            None => inner.columns.push(Column { field, name, r#type: ColumnType::Text }),
        })
    }

    /// The type of a field's column, if it is not that of walpost's `sql/01-schema.sql`. It has no
    /// effect on logical messages.
    #[must_use]
    pub fn column_type(self, field: Field, r#type: ColumnType) -> Self {
        self.changed(|inner| {
            if let Some(column) = inner.columns.iter_mut().find(|it| it.field == field) {
                column.r#type = r#type;
            }
        })
    }

    /// The table has no column for this field. An event with headers is refused if there is none
    /// for headers.
    #[must_use]
    pub fn without_column(self, field: Field) -> Self {
        self.changed(|inner| inner.columns.retain(|it| it.field != field))
    }

    /// How events get their ids.
    #[must_use]
    pub fn ids(self, ids: Ids) -> Self {
        self.changed(|inner| inner.ids = ids)
    }

    /// Where the trace context goes.
    #[must_use]
    pub fn trace_context(self, place: TraceContext) -> Self {
        let outbox = self.changed(|inner| inner.trace = place);
        if place != TraceContext::Columns {
            return outbox.without_column(Field::Traceparent).without_column(Field::Tracestate);
        }
        outbox.column(Field::Traceparent, "traceparent").column(Field::Tracestate, "tracestate")
    }

    fn changed(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        let inner = Arc::make_mut(&mut self.inner);
        change(inner);
        inner.columns.sort_by_key(|column| Field::ALL.iter().position(|it| *it == column.field));
        inner.statements = match &inner.form {
            Form::Message { .. } => Statements::messages(),
            Form::Row { schema, table } => {
                let id = inner.columns.iter().find(|column| column.field == Field::Id);
                let unique = match (inner.ids, id) {
                    (Ids::FromContent(OnDuplicate::Ignore), Some(id)) => Some(id.name.as_str()),
                    _ => None,
                };
                Statements::rows(schema, table, &inner.columns, unique)
            }
        };
        self
    }
}
