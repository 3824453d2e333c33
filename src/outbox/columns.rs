//! Which columns of a table play which part of an event.
//!
//! Names only: what a relation really has is looked up by its plan.

/// A part of an event that a column can play.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The event's id.
    Id,
    /// What kind of thing the event is about.
    AggregateType,
    /// Which one of them.
    AggregateId,
    /// What happened.
    EventType,
    /// The content.
    Payload,
    /// Further headers, a JSON object.
    Headers,
    /// W3C trace context.
    Traceparent,
    /// W3C trace state.
    Tracestate,
    /// A timestamp for the record.
    Timestamp,
    /// The version of the payload's schema.
    SchemaVersion,
}

impl Role {
    /// All of them.
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

    /// The names that are looked for where none is configured: our own first,
    /// then that of Debezium's event router.
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
    /// Whether it has that one.
    pub const fn contains(self, role: Role) -> bool {
        self.0 & Self::bit(role) != 0
    }

    /// Adds that one.
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

/// Which parts of an event its record is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Those without whose column a table is refused.
    pub required: Roles,
    /// Those that a record shows where the event has them; those above too.
    pub used: Roles,
}

impl Default for Needs {
    /// As records are that say nothing else.
    fn default() -> Self {
        let required = [Role::Id, Role::AggregateType, Role::AggregateId, Role::Payload];
        Self { required: required.into_iter().collect(), used: Role::ALL.into_iter().collect() }
    }
}

impl Needs {
    /// Nothing yet.
    pub const NONE: Self = Self { required: Roles(0), used: Roles(0) };

    /// With these as well, which a table may lack.
    #[must_use]
    pub fn using(mut self, roles: impl IntoIterator<Item = Role>) -> Self {
        roles.into_iter().for_each(|role| self.used.insert(role));
        self
    }

    /// With these as well, which a table may not lack.
    #[must_use]
    pub fn requiring(mut self, roles: impl IntoIterator<Item = Role>) -> Self {
        for role in roles {
            self.required.insert(role);
            self.used.insert(role);
        }
        self
    }
}

/// The configured column names, as the catalog stores them (unquoted);
/// `None`: found by its default names.
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
    /// Column of the record's timestamp; without it there is none.
    pub timestamp: Option<String>,
    /// Column of the schema's version.
    pub schema_version: Option<String>,
}

impl ColumnNames {
    /// The names to look for, the best first; none where the role has no column.
    pub fn looked_for(&self, role: Role) -> impl Iterator<Item = &str> {
        let configured = self.configured(role);
        let defaults = if configured.is_some() { &[] } else { role.default_columns() };
        configured.into_iter().chain(defaults.iter().copied())
    }

    /// Whether a table without such a column is refused: records need it, or it was named.
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

/// Where a column's value goes in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldTarget {
    Role(Role),
    /// Index in `Event::placed`.
    Placed(usize),
    /// A trace as others write it: read once all columns are (`Event::trace_by`).
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
