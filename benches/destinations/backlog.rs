//! The rows that wait when walpost starts.

/// How they are committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    OneRow,
    OneTransaction,
}

impl Shape {
    pub(crate) const ALL: [Self; 2] = [Self::OneRow, Self::OneTransaction];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneRow => "one-row transactions",
            Self::OneTransaction => "one transaction",
        }
    }
}

/// Inserts rows of about 250 bytes with so many keys.
pub(crate) fn sql(shape: Shape, keys: usize, rows: usize) -> String {
    let insert = "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)";
    let values = format!(
        "'order', (i % {keys})::text, 'placed', \
         jsonb_build_object('n', i, 'text', repeat('x', 150))"
    );
    match shape {
        Shape::OneTransaction => {
            format!("{insert} SELECT {values} FROM generate_series(1, {rows}) AS i")
        }
        Shape::OneRow => format!(
            "DO $$ BEGIN FOR i IN 1..{rows} LOOP {insert} VALUES ({values}); COMMIT; \
             END LOOP; END $$"
        ),
    }
}
