//! A backlog to drain: rows with a payload of 200 bytes, written and left.

use crate::stage::Stage;

/// In what transactions the rows were committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    OneRowTransactions,
    OneTransaction,
}

const ROW: &str = "'order', (i % 1000)::text, 'placed', \
     jsonb_build_object('i', i, 'text', repeat('x', 170))";

impl Shape {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneRowTransactions => "one-row transactions",
            Self::OneTransaction => "one transaction",
        }
    }

    /// Commits that many rows behind the slot `base`.
    pub(crate) async fn write(self, stage: &Stage, rows: u64) {
        let columns = "aggregate_type, aggregate_id, event_type, payload";
        if self == Self::OneTransaction {
            let insert = format!(
                "INSERT INTO public.outbox ({columns}) SELECT {ROW} FROM generate_series(1, {rows}) AS i"
            );
            return stage.execute(&insert).await;
        }
        stage
            .execute(&format!(
                "CREATE OR REPLACE PROCEDURE write_rows(first int8, last int8) LANGUAGE plpgsql AS $$ \
                 BEGIN SET synchronous_commit = off; \
                 FOR i IN first..last LOOP INSERT INTO public.outbox ({columns}) VALUES ({ROW}); COMMIT; END LOOP; \
                 END $$"
            ))
            .await;
        let half = rows / 2;
        let (first, second) = (
            format!("CALL write_rows(1, {half})"),
            format!("CALL write_rows({}, {rows})", half + 1),
        );
        tokio::join!(stage.execute(&first), stage.execute(&second));
    }
}
