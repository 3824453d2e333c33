//! A shop's database with an outbox, triggers that fail some transactions, and a walpost that
//! publishes the events.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use walpost_bed::fixture::{Fixture, LONG_TIMEOUT};
use walpost_bed::{Consumed, Walpost};

/// The table that the programs change.
const ORDERS: &str = include_str!("../../../examples/writers/shop.sql");

/// By the last digit of the order's number: what fails when it is placed, and when it is paid.
const FAULTS: &str = "
    CREATE FUNCTION public.fails() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        is_change boolean := TG_TABLE_NAME = 'orders';
        number bigint := to_jsonb(NEW) ->> CASE WHEN is_change THEN 'id' ELSE 'aggregate_id' END;
        is_paid boolean := CASE WHEN is_change THEN to_jsonb(NEW) ->> 'status' = 'paid'
                                ELSE to_jsonb(NEW) ->> 'event_type' = 'order_paid' END;
    BEGIN
        IF number % 10 = TG_ARGV[CASE WHEN is_paid THEN 1 ELSE 0 END]::bigint THEN
            RAISE EXCEPTION 'the % of order % fails', TG_NAME, number;
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER change BEFORE INSERT OR UPDATE ON public.orders
        FOR EACH ROW EXECUTE FUNCTION public.fails(1, 2);
    CREATE TRIGGER event BEFORE INSERT ON public.outbox
        FOR EACH ROW EXECUTE FUNCTION public.fails(3, 4);
    CREATE CONSTRAINT TRIGGER commit AFTER INSERT OR UPDATE ON public.orders
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.fails(5, 6)";

/// Whether an order of this number can be placed, with these triggers.
fn is_placed(number: i64) -> bool {
    ![1, 3, 5].contains(&(number % 10))
}

/// Whether it can be paid.
fn is_paid(number: i64) -> bool {
    is_placed(number) && ![2, 4, 6].contains(&(number % 10))
}

/// What a program prints at its end that has written the orders `from` to `upto`, and tried those
/// before them in vain.
pub fn summary(from: i64, upto: i64) -> String {
    let count = |done: fn(i64) -> bool| (from..=upto).filter(|number| done(*number)).count();
    format!("placed {}, paid {}", count(is_placed), count(is_paid))
}

/// The database, and the walpost that publishes its events.
pub struct Shop {
    pub fixture: Fixture,
    _walpost: Walpost,
}

impl Shop {
    /// After `walpost init --apply --publish-function`.
    pub async fn open() -> Self {
        let fixture = Fixture::empty().await;
        fixture.init(&["--publish-function"]).await;
        fixture.postgres.execute(ORDERS).await;
        let walpost = fixture.run().await;
        Self { fixture, _walpost: walpost }
    }

    /// In which some transactions fail.
    pub async fn with_faults() -> Self {
        let shop = Self::open().await;
        shop.fixture.postgres.execute(FAULTS).await;
        shop
    }

    /// What is committed by now, as a consumer sees it.
    pub async fn records(&self) -> Vec<Consumed> {
        self.fixture.confirmed(LONG_TIMEOUT).await;
        self.fixture.records().await
    }

    /// The state of each order.
    async fn orders(&self) -> BTreeMap<String, String> {
        let rows = self.fixture.postgres.query_rows("SELECT id, status FROM public.orders").await;
        let text = |value: &Option<String>| value.clone().expect("not null");
        rows.iter().map(|row| (text(&row[0]), text(&row[1]))).collect()
    }

    /// Each committed change has its event, in order, and nothing else was published.
    pub async fn assert_events_are_the_changes(&self) {
        let mut events: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for record in self.records().await {
            let (key, event_type) = self.assert_event(&record);
            events.entry(key).or_default().push(event_type);
        }
        let changes: BTreeMap<String, Vec<String>> = self
            .orders()
            .await
            .into_iter()
            .map(|(order, status)| {
                let paid = (status == "paid").then_some("order_paid");
                (order, ["order_placed"].into_iter().chain(paid).map(str::to_owned).collect())
            })
            .collect();
        assert_eq!(events, changes, "events (left) and changes");
    }

    /// Exactly the orders 1 to `upto` are there that no trigger refuses.
    pub async fn assert_orders(&self, upto: i64) {
        let orders = (1..=upto).filter(|number| is_placed(*number)).map(|number| {
            (number.to_string(), if is_paid(number) { "paid" } else { "placed" }.to_owned())
        });
        assert_eq!(self.orders().await, orders.collect());
    }

    /// Topic, key, value and headers are those of the order; returns key and event type.
    fn assert_event(&self, record: &Consumed) -> (String, String) {
        let key = record.key_text().expect("a key").to_owned();
        let number: i64 = key.parse().expect("an order's number");
        let event_type = record.header("event_type").expect("a type").to_owned();
        assert_eq!(record.topic, self.fixture.topic("order"));
        let names: Vec<&str> = record.headers.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["id", "event_type", "source", "walpost.position"], "{key}");
        assert_eq!(record.header("source"), Some("shop"), "{key}");
        assert_eq!(record.header("id").map(str::len), Some(36), "{key}");
        let value: Value =
            serde_json::from_str(record.value_text().expect("a value")).expect("JSON");
        let expected = if event_type == "order_placed" {
            json!({ "customer": format!("customer {}", number % 7), "total_cents": number * 100 })
        } else {
            json!({ "total_cents": number * 100 })
        };
        assert_eq!(value, expected, "{event_type} of {key}");
        (key, event_type)
    }
}
