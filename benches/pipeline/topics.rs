//! The topics of one measurement: one, or one for each aggregate type.

use crate::conditions::Conditions;

#[derive(Debug, Clone)]
pub(crate) struct TopicNames {
    base: String,
    names: Vec<String>,
}

impl TopicNames {
    /// Aggregate types are as [`crate::backlog::aggregate_type`] makes them.
    pub(crate) fn new(base: String, conditions: &Conditions) -> Self {
        let names = match conditions.topics {
            1 => vec![base.clone()],
            count => (0..count).map(|number| format!("{base}-t{number}")).collect(),
        };
        Self { base, names }
    }

    pub(crate) fn all(&self) -> &[String] {
        &self.names
    }

    /// That of the row with this number.
    pub(crate) fn of_row(&self, number: u32) -> &str {
        &self.names[number as usize % self.names.len()]
    }

    /// walpost's template for them.
    pub(crate) fn template(&self) -> String {
        self.with_type("{aggregate_type}")
    }

    /// The replacement of Debezium's event router for them.
    pub(crate) fn replacement(&self) -> String {
        self.with_type("${routedByValue}")
    }

    /// A name for what belongs to all of them.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    fn with_type(&self, variable: &str) -> String {
        match self.names.len() {
            1 => self.base.clone(),
            _ => format!("{}-{variable}", self.base),
        }
    }
}
