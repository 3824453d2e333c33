//! What a destination promises of the rows of a database, and how tests assert it.

use std::ops::{Deref, DerefMut};

use walpost_bed::fixture::{LONG_TIMEOUT, stop};
use walpost_bed::oracle::Verdict;
use walpost_bed::writer::Writer;
use walpost_bed::{Consumed, Proxy, SinkFixture};

/// A test of each case with each of these destinations, or with `all`; `make` makes its fixture.
macro_rules! cases {
    ($($(#[$attribute:meta])? $case:ident($make:ident): $kinds:tt;)*) => {
        $(mod $case { $crate::promise::tests!([$(#[$attribute])?] $case $make $kinds); })*
    };
}
pub(crate) use cases;

macro_rules! tests {
    ($attribute:tt $case:ident $make:ident all) => {
        $crate::promise::tests!($attribute $case $make [redis nats rabbitmq http sqs]);
    };
    ($attribute:tt $case:ident $make:ident [$($kind:ident)*]) => {
        $($crate::promise::one!($attribute $case $make $kind);)*
    };
}
pub(crate) use tests;

macro_rules! one {
    ([$($attribute:tt)*] $case:ident $make:ident $kind:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        $($attribute)*
        async fn $kind() {
            super::$case(&mut $crate::$kind::Fixture::$make().await).await;
        }
    };
}
pub(crate) use one;

/// The fixture is a [`SinkFixture`] with more.
macro_rules! over_sink {
    ($fixture:ident) => {
        impl std::ops::Deref for $fixture {
            type Target = walpost_bed::SinkFixture;

            fn deref(&self) -> &Self::Target {
                &self.sink
            }
        }

        impl std::ops::DerefMut for $fixture {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.sink
            }
        }
    };
}
pub(crate) use over_sink;

/// A fixture that knows what its destination promises. Rows that were rolled back must not be there.
pub trait Promise: Deref<Target = SinkFixture> {
    /// Whether it has each row once, even after kills; otherwise at least once, in order.
    const ONCE: bool;

    /// A configuration file that every command has from here on.
    #[must_use]
    fn configured(self, toml: &str) -> Self
    where
        Self: Sized,
    {
        self.configure(toml);
        self
    }

    /// Everything that a consumer of it has read, or can read.
    async fn records(&self) -> Vec<Consumed>;

    /// The oracle on everything: the table against the destination.
    async fn judge(&self) -> Verdict {
        self.judge_with(&[]).await
    }

    async fn judge_with(&self, rolled_back: &[String]) -> Verdict {
        self.verdict(&self.records().await, rolled_back).await
    }

    /// The same once the writer has stopped and everything is confirmed.
    async fn judge_after(&self, writer: Writer) -> Verdict {
        let rolled_back = writer.stop().await;
        self.confirmed(LONG_TIMEOUT).await;
        self.judge_with(&rolled_back).await
    }

    /// It had no two events of a key at a time, if that can be seen.
    fn assert_one_at_a_time(&self) {}

    /// Everything is confirmed, and it has each row once.
    async fn assert_exact(&self) {
        self.confirmed(LONG_TIMEOUT).await;
        self.judge().await.assert_exact();
        self.assert_one_at_a_time();
    }

    /// The same once the writer has stopped.
    async fn assert_exact_after(&self, writer: Writer) {
        self.judge_after(writer).await.assert_exact();
    }

    /// Once the writer has stopped, it has the rows as it promises.
    async fn assert_kept_after(&self, writer: Writer) {
        self.assert_is_kept(&self.judge_after(writer).await);
    }

    /// It has the rows as it promises.
    async fn assert_kept(&self, rolled_back: &[String]) {
        self.assert_is_kept(&self.judge_with(rolled_back).await);
    }

    fn assert_is_kept(&self, verdict: &Verdict) {
        assert_rows(verdict, Self::ONCE);
    }
}

/// All rows are there in order, and none twice if `is_once`.
pub fn assert_rows(verdict: &Verdict, is_once: bool) {
    if is_once {
        verdict.assert_exact();
    } else {
        verdict.assert_ok();
    }
}

/// A destination with which the cases for all are tried.
pub trait Destination: Promise + DerefMut {
    /// Whether it has each row once after an outage.
    const ONCE_AFTER_OUTAGE: bool = true;

    /// The same after a kill of its server, or minutes later.
    const ONCE_LATER: bool = Self::ONCE;

    /// Rows of a transaction that is more than may be in flight, and their keys.
    const BACKLOG: (u32, u32) = (20_000, 50);

    /// What the log calls it.
    const NAME: &str;

    /// What the findings of `check` call it.
    const SUBJECT: &str = Self::NAME;

    /// Whether walpost has a connection while nothing is sent.
    const HAS_CONNECTION: bool = true;

    /// Whether it keeps walpost's position, which `walpost adopt` begins.
    const HAS_POSITION: bool = false;

    /// Transactions a second that its server takes, however it is.
    const LOAD: u32 = 300;

    /// How often its server is killed.
    const KILLS: u32 = 5;

    /// After which records a crash point ends walpost, of how many rows with how many keys.
    const CRASHES: (&[u32], u32, u32) = (&[1, 40, 333], 500, 7);

    /// The port of its server.
    fn port(&self) -> u16;

    /// The URL for walpost at this port.
    fn url_at(&self, port: u16) -> String;

    /// What the first line of the log says of it, at this port.
    fn described(&self, port: u16) -> String;

    /// Kills its server, which must not be shared.
    async fn kill(&self);

    async fn start_again(&self);

    /// A disturbance of the server while walpost is not running; by default none.
    async fn meanwhile(&self, random: &mut fastrand::Rng) {
        let _ = random;
    }

    /// Level and code of each finding of `check` about it.
    async fn codes(&self, arguments: &[&str]) -> Vec<(String, String)> {
        self.findings(Self::SUBJECT, arguments).await
    }

    /// `check` has this finding.
    async fn assert_found(&self, level: &str, code: &str) {
        let found = self.codes(&[]).await;
        assert!(found.contains(&finding(level, code)), "{level} {code}: {found:?}");
    }

    /// Runs `walpost adopt --apply` where the destination keeps the position.
    async fn begins(&self) {
        if Self::HAS_POSITION {
            self.adopt().await;
        }
    }

    /// 100 events arrive.
    async fn delivers(&self) {
        let walpost = self.run().await;
        self.insert(100, 5).await;
        self.assert_exact().await;
        stop(walpost).await;
    }

    /// A proxy between walpost and the server from here on.
    async fn proxied(&mut self) -> Proxy {
        let proxy = Proxy::to(self.port()).await;
        self.url = self.url_at(proxy.port());
        proxy
    }
}

/// A finding: level and code.
pub fn finding(level: &str, code: &str) -> (String, String) {
    (level.to_owned(), code.to_owned())
}
