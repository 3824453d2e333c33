//! Events that one statement inserts.

use crate::outbox::Outbox;
use crate::record::Record;
use crate::sql::Statement;

/// Events of one statement at the most.
const RECORDS_MAX: usize = 1000;

/// Bytes at which a statement takes no more events.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Events that one statement inserts; at least one.
#[derive(Debug)]
pub struct Batch {
    outbox: Outbox,
    records: Vec<Record>,
}

/// What a driver binds: one text, or one for each event.
#[derive(Clone, Debug)]
pub(crate) enum Parameter {
    One(Option<String>),
    Many(Vec<Option<String>>),
}

impl Batch {
    /// One event.
    pub(crate) fn one(outbox: Outbox, record: Record) -> Self {
        Self { outbox, records: vec![record] }
    }

    /// All of them in their order, in as few statements as the bounds allow.
    pub(crate) fn of(outbox: &Outbox, records: impl IntoIterator<Item = Record>) -> Vec<Self> {
        let mut batches: Vec<Self> = Vec::new();
        let mut bytes = 0;
        for record in records {
            let more = record.bytes();
            match batches.last_mut() {
                Some(last) if last.records.len() < RECORDS_MAX && bytes + more <= BYTES_MAX => {
                    bytes += more;
                    last.records.push(record);
                }
                _ => {
                    bytes = more;
                    batches.push(Self::one(outbox.clone(), record));
                }
            }
        }
        batches
    }

    /// Whether it is one event.
    pub(crate) fn is_one(&self) -> bool {
        self.records.len() == 1
    }

    pub(crate) fn statement(&self) -> &Statement {
        let statements = &self.outbox.inner.statements;
        if self.is_one() { &statements.one } else { &statements.many }
    }

    /// The statement's parameters, in their order.
    pub(crate) fn parameters(self) -> Vec<Parameter> {
        let mut records = self.records.into_iter();
        let Some(first) = records.next() else { return Vec::new() };
        if records.len() == 0 {
            return first.values.into_iter().map(Parameter::One).collect();
        }
        let mut columns: Vec<Vec<_>> = first.values.into_iter().map(|value| vec![value]).collect();
        for record in records {
            columns.iter_mut().zip(record.values).for_each(|(column, value)| column.push(value));
        }
        columns.into_iter().map(Parameter::Many).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn record(value: &str) -> Record {
        Record { id: Uuid::nil(), values: vec![Some(value.to_owned()), None] }
    }

    fn sizes(values: impl IntoIterator<Item = String>) -> Vec<usize> {
        let batches = Batch::of(&Outbox::new(), values.into_iter().map(|it| record(&it)));
        batches.iter().map(|batch| batch.records.len()).collect()
    }

    #[test]
    fn statements_are_bounded_by_events_and_bytes() {
        assert_eq!(sizes([]), [0; 0]);
        assert_eq!(sizes(vec!["x".to_owned(); 2001]), [1000, 1000, 1]);
        let large = "x".repeat(BYTES_MAX / 2);
        assert_eq!(sizes(vec![large.clone(); 3]), [2, 1]);
        assert_eq!(sizes(["x".to_owned(), "x".repeat(BYTES_MAX), "x".to_owned()]), [1, 1, 1]);
    }

    #[test]
    fn several_events_become_one_array_per_column() {
        let mut batches = Batch::of(&Outbox::new(), ["a", "b"].map(record));
        let batch = batches.pop().expect("a batch");
        assert!(batch.statement().text.contains("unnest"));
        let parameters = batch.parameters();
        let texts = |at: usize| match &parameters[at] {
            Parameter::Many(texts) => texts.clone(),
            Parameter::One(_) => panic!("one text"),
        };
        assert_eq!(texts(0), [Some("a".to_owned()), Some("b".to_owned())]);
        assert_eq!(texts(1), [None, None]);
    }
}
