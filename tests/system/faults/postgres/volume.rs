//! Very large numbers of rows: in one transaction, and in one each (46, 47). Verified as they
//! arrive, since so many records cannot be kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::Message;
use rdkafka::message::{BorrowedMessage, Headers};
use walpost_bed::fixture::{Fixture, SHORT_TIMEOUT, stop};
use walpost_bed::oracle::{Location, Row, Verdict};
use walpost_bed::{Kafka, Major, Postgres, Tail, Walpost, eventually};

use crate::case::{Case, CaseReport};

/// What a release build may have, and room for a debug build's.
const MEMORY_BYTES: u64 = (96 + 32) << 20;

/// For millions of rows on two busy cores, by a build without optimisation.
const MUCH_LATER: Duration = Duration::from_secs(3600);

/// How many keys there are; row `i` has the key `i % KEYS`.
const KEYS: u32 = 1000;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(46, "transaction_of_ten_million_rows_keeps_memory_bounded", one_transaction)
            .long(),
        Case::new(47, "million_single_row_transactions_are_published_in_order", each_its_own)
            .long(),
    ]
}

async fn one_transaction(report: CaseReport) {
    let rows = 10_000_000;
    let setup = VolumeFixture::new(rows).await;
    let walpost = setup.fixture.run().await;
    setup.insert_in_one(rows).await;
    setup.published(&walpost).await;
    let peak = walpost.peak_rss_bytes().expect("it runs");
    assert!(peak < MEMORY_BYTES, "{} MiB", peak >> 20);
    report.did(format!("{} MiB at the most", peak >> 20));
    report.exact(&setup.verdict());
    report.still_running(&walpost);
    stop(walpost).await;
}

async fn each_its_own(report: CaseReport) {
    let rows = 1_000_000;
    let setup = VolumeFixture::new(rows).await;
    let walpost = setup.fixture.run().await;
    setup
        .fixture
        .postgres
        .execute(
            "CREATE PROCEDURE write_one_by_one(first int, last int) LANGUAGE plpgsql AS $$
             BEGIN
               FOR i IN first..last LOOP
                 INSERT INTO public.outbox VALUES (i, 'order', i % 1000, 'placed', '{}');
                 COMMIT;
               END LOOP;
             END $$",
        )
        .await;
    setup.fixture.postgres.execute(&format!("CALL write_one_by_one(0, {})", rows - 1)).await;
    setup.published(&walpost).await;
    let peak = walpost.peak_rss_bytes().expect("it runs");
    report.did(format!("{} MiB at the most", peak >> 20));
    report.exact(&setup.verdict());
    report.still_running(&walpost);
    let last = stop(walpost).await;
    assert!(last["transactions"].as_u64() >= Some(u64::from(rows)), "{last}");
}

/// An outbox whose ids are numbers from 0, and a consumer that judges.
struct VolumeFixture {
    fixture: Fixture,
    judge: Arc<Mutex<Judge>>,
    _tail: Tail,
    _kafka: Kafka,
}

impl VolumeFixture {
    async fn new(rows: u32) -> Self {
        let kafka = Kafka::start().await;
        let fixture = Fixture::bare(Postgres::start(Major::V15).await, &kafka.bootstrap());
        // Inserts are faster without a primary key, and walpost needs none.
        let fixture = fixture
            .over(
                "CREATE TABLE public.outbox (id int, aggregate_type text, aggregate_id text,
                   event_type text, payload jsonb)",
            )
            .await;
        let judge = Arc::new(Mutex::new(Judge::new(rows)));
        let shared = Arc::clone(&judge);
        let tail = Tail::start(&kafka.bootstrap(), fixture.topics(), move |message| {
            shared.lock().unwrap_or_else(PoisonError::into_inner).take(message);
        });
        Self { fixture, judge, _tail: tail, _kafka: kafka }
    }

    async fn insert_in_one(&self, rows: u32) {
        let last = rows - 1;
        let sql = format!(
            "INSERT INTO public.outbox
               SELECT i, 'order', i % {KEYS}, 'placed', '{{\"a\": 1}}' FROM generate_series(0, {last}) AS i"
        );
        self.fixture.postgres.execute(&sql).await;
    }

    /// Awaits that all is confirmed, and read.
    async fn published(&self, walpost: &Walpost) {
        let confirmed = async {
            self.fixture.confirmed(MUCH_LATER).await;
        };
        tokio::select! {
            () = confirmed => {}
            ended = walpost.wait(MUCH_LATER) => panic!("{ended:?}: {:?}", walpost.stderr().last()),
        }
        eventually(SHORT_TIMEOUT * 10, "all that is confirmed is read", async || {
            let judge = self.judge.lock().unwrap_or_else(PoisonError::into_inner);
            if judge.unseen == 0 { Ok(()) } else { Err(judge.unseen) }
        })
        .await;
    }

    fn verdict(&self) -> Verdict {
        self.judge.lock().unwrap_or_else(PoisonError::into_inner).verdict()
    }
}

/// The oracle's rules, for rows whose ids are 0 to `seen.len()` in the order of
/// their commits.
struct Judge {
    seen: Vec<bool>,
    unseen: usize,
    /// By key: the latest row, and the partition.
    keys: HashMap<u32, (u32, i32)>,
    verdict: Verdict,
}

impl Judge {
    fn new(rows: u32) -> Self {
        let rows = rows as usize;
        let verdict = Verdict { expected: rows, ..Verdict::default() };
        Self { seen: vec![false; rows], unseen: rows, keys: HashMap::new(), verdict }
    }

    fn take(&mut self, message: &BorrowedMessage<'_>) {
        self.verdict.consumed += 1;
        let number = |bytes: Option<&[u8]>| std::str::from_utf8(bytes?).ok()?.parse::<u32>().ok();
        let headers = message.headers();
        let id = headers.and_then(|all| all.iter().find(|one| one.key == "id"));
        let id = id.and_then(|header| number(header.value));
        let place = || Location {
            id: id.map_or_else(|| "(no id)".to_owned(), |id| id.to_string()),
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
        };
        let Some((id, seen)) = id.and_then(|id| Some((id, self.seen.get_mut(id as usize)?))) else {
            return self.verdict.unexpected.push(place());
        };
        if std::mem::replace(seen, true) {
            return self.verdict.duplicates.push(place());
        }
        self.unseen -= 1;
        let key = id % KEYS;
        if number(message.key()) != Some(key) {
            self.verdict.wrong_key.push(place());
        }
        let (latest, partition) = self.keys.entry(key).or_insert((id, message.partition()));
        if *partition != message.partition() {
            self.verdict.scattered.push(place());
        } else if *latest > id {
            self.verdict.out_of_order.push((place(), latest.to_string()));
        }
        *latest = id.max(*latest);
    }

    fn verdict(&self) -> Verdict {
        let unseen = self.seen.iter().zip(0_u32..).filter(|(seen, _)| !**seen);
        let missing = unseen.map(|(_, id)| Row::new(id, id % KEYS)).collect();
        Verdict { missing, ..self.verdict.clone() }
    }
}
