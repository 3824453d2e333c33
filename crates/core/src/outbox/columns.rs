//! Maps a table's columns to the fields of an event.
//!
//! Names only: the plan checks which columns a relation really has.

/// A field of an event that a column can provide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The event's id.
    Id,
    /// The type of the entity that the event is about.
    AggregateType,
    /// The id of that entity.
    AggregateId,
    /// The type of the event.
    EventType,
    /// The payload.
    Payload,
    /// Additional headers, as a JSON object.
    Headers,
    /// W3C trace context.
    Traceparent,
    /// W3C trace state.
    Tracestate,
    /// The record's timestamp.
    Timestamp,
    /// The version of the payload's schema.
    SchemaVersion,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 10] = [
        Self::Id,
        Self::AggregateType,
        Self::AggregateId,
        Self::EventType,
        Self::Payload,
        Self::Headers,
        Self::Traceparent,
        Self::Tracestate,
        Self::Timestamp,
        Self::SchemaVersion,
    ];

    /// The role's name in the configuration, in templates and in errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::AggregateType => "aggregate_type",
            Self::AggregateId => "aggregate_id",
            Self::EventType => "event_type",
            Self::Payload => "payload",
            Self::Headers => "headers",
            Self::Traceparent => "traceparent",
            Self::Tracestate => "tracestate",
            Self::Timestamp => "timestamp",
            Self::SchemaVersion => "schema_version",
        }
    }

    /// The names to look for if none is configured: walpost's own first, then those of Debezium's
    /// event router.
    pub const fn default_columns(self) -> &'static [&'static str] {
        match self {
            Self::Id => &["id"],
            Self::AggregateType => &["aggregate_type", "aggregatetype"],
            Self::AggregateId => &["aggregate_id", "aggregateid"],
            Self::EventType => &["event_type", "type"],
            Self::Payload => &["payload"],
            Self::Headers => &["headers"],
            Self::Traceparent => &["traceparent"],
            Self::Tracestate => &["tracestate"],
            Self::Timestamp => &[],
            Self::SchemaVersion => &["schema_version"],
        }
    }
}

/// A set of roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u16);

impl Roles {
    /// Whether the set contains `role`.
    pub const fn contains(self, role: Role) -> bool {
        self.0 & Self::bit(role) != 0
    }

    /// Adds `role`.
    pub const fn insert(&mut self, role: Role) {
        self.0 |= Self::bit(role);
    }

    const fn bit(role: Role) -> u16 {
        1 << role as u16
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        let mut all = Self::default();
        roles.into_iter().for_each(|role| all.insert(role));
        all
    }
}

/// The roles from which records are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// A table without a column for one of these is rejected.
    pub required: Roles,
    /// Roles that records contain if the event has them; includes the required ones.
    pub used: Roles,
}

impl Default for Needs {
    /// The needs of the default record format.
    fn default() -> Self {
        let required = [Role::Id, Role::AggregateType, Role::AggregateId, Role::Payload];
        Self { required: required.into_iter().collect(), used: Role::ALL.into_iter().collect() }
    }
}

impl Needs {
    /// No roles.
    pub const NONE: Self = Self { required: Roles(0), used: Roles(0) };

    /// Adds roles that a table may lack.
    #[must_use]
    pub fn using(mut self, roles: impl IntoIterator<Item = Role>) -> Self {
        roles.into_iter().for_each(|role| self.used.insert(role));
        self
    }

    /// Adds roles that a table must have.
    #[must_use]
    pub fn requiring(mut self, roles: impl IntoIterator<Item = Role>) -> Self {
        for role in roles {
            self.required.insert(role);
            self.used.insert(role);
        }
        self
    }
}

/// The configured column names, as stored in the catalog (unquoted); `None` means the default
/// names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnNames {
    /// Column of the event's id.
    pub id: Option<String>,
    /// Column of the aggregate's type.
    pub aggregate_type: Option<String>,
    /// Column of the aggregate's id.
    pub aggregate_id: Option<String>,
    /// Column of the event's type.
    pub event_type: Option<String>,
    /// Column of the payload.
    pub payload: Option<String>,
    /// Column of further headers.
    pub headers: Option<String>,
    /// Column of the record's timestamp; the role has no default columns.
    pub timestamp: Option<String>,
    /// Column of the schema's version.
    pub schema_version: Option<String>,
}

impl ColumnNames {
    /// The names to look for, in order of preference; empty if the role has no column.
    pub fn looked_for(&self, role: Role) -> impl Iterator<Item = &str> {
        let configured = self.configured(role);
        let defaults = if configured.is_some() { &[] } else { role.default_columns() };
        configured.into_iter().chain(defaults.iter().copied())
    }

    /// Whether a table without such a column is rejected: records need it, or it is configured.
    pub fn is_required(&self, role: Role, needs: Needs) -> bool {
        needs.required.contains(role) || self.configured(role).is_some()
    }

    fn configured(&self, role: Role) -> Option<&str> {
        match role {
            Role::Id => self.id.as_deref(),
            Role::AggregateType => self.aggregate_type.as_deref(),
            Role::AggregateId => self.aggregate_id.as_deref(),
            Role::EventType => self.event_type.as_deref(),
            Role::Payload => self.payload.as_deref(),
            Role::Headers => self.headers.as_deref(),
            Role::Timestamp => self.timestamp.as_deref(),
            Role::SchemaVersion => self.schema_version.as_deref(),
            Role::Traceparent | Role::Tracestate => None,
        }
    }
}

/// The destination of a column's value in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldTarget {
    Role(Role),
    /// Index in `Event::placed`.
    Placed(usize),
    /// A trace in a tracer's format, parsed after all columns are read (`Event::trace_by`).
    Trace,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configured_name_replaces_the_defaults_and_is_required() {
        let names = ColumnNames { event_type: Some("kind".to_owned()), ..ColumnNames::default() };
        assert_eq!(names.looked_for(Role::EventType).collect::<Vec<_>>(), ["kind"]);
        assert!(names.is_required(Role::EventType, Needs::NONE));
        let names = ColumnNames::default();
        assert_eq!(names.looked_for(Role::EventType).collect::<Vec<_>>(), ["event_type", "type"]);
        assert!(!names.is_required(Role::EventType, Needs::default()));
        assert!(names.is_required(Role::AggregateType, Needs::default()));
        assert!(!names.is_required(Role::AggregateType, Needs::NONE));
        assert_eq!(names.looked_for(Role::Timestamp).count(), 0);
    }
}
