//! A database with an outbox, a NATS server, and the walpost binary between them.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use walpost_bed::{
    CertificateAuthority, Consumed, Major, Nats, NatsBuilder, Postgres, SinkFixture, StoredMessage,
};

use crate::position::Keeper;
use crate::promise::{Destination, Promise, over_sink};
use crate::security::Secured;

/// The configured stream.
pub const STREAM: &str = "orders";

/// Its subjects.
pub const SUBJECTS: &[&str] = &["outbox.>", "walpost.dead-letter", "orders.>"];

/// What is acknowledged is confirmed at once: it is lost only by what a test does to the server's files.
const VARIABLES: &[(&str, &str)] =
    &[("WALPOST_NATS_STREAM", STREAM), ("WALPOST_NATS_SYNC_INTERVAL", "0s")];

/// What the page lists, for a user of walpost's own.
const PERMISSIONS: &str = r#"{
  publish: ["outbox.>", "walpost.dead-letter", "$JS.API.INFO",
            "$JS.API.STREAM.INFO.orders", "$JS.API.STREAM.MSG.GET.orders",
            "$JS.API.STREAM.INFO.KV_walpost_orders", "$JS.API.STREAM.MSG.GET.KV_walpost_orders",
            "$JS.API.STREAM.CREATE.KV_walpost_orders", "$KV.walpost_orders.position",
            "$KV.walpost_orders.letters"]
  subscribe: ["_INBOX.>"]
}"#;

/// The bed's own login, as the server's configuration has it.
pub const BED: &str = "{ user: bed, password: bed }";

/// The server's configuration of a user who may publish events to these subjects.
pub fn users(subjects: &str) -> String {
    let permissions = PERMISSIONS.replace("outbox.>", subjects);
    format!(
        "authorization {{ users = [ {BED}, {{ user: walpost, password: s3cret, \
         permissions: {permissions} }} ] }}"
    )
}

/// Has a user of walpost's own, that may publish events to these subjects.
pub async fn limited_to(subjects: &str) -> NatsFixture {
    let nats = Nats::builder().configured(&users(subjects)).login("bed", "bed");
    let mut fixture = NatsFixture::of_server(nats.start().await).await;
    fixture.url = fixture.url.replace("nats://", "nats://walpost:s3cret@");
    fixture
}

pub struct NatsFixture {
    pub nats: Nats,
    sink: SinkFixture,
}

over_sink!(NatsFixture);

impl NatsFixture {
    /// After `walpost init --apply` and `walpost adopt --apply`.
    pub async fn new() -> Self {
        Self::with(Nats::builder()).await
    }

    /// A fixture whose server is the test's alone, as it always is here.
    pub async fn alone() -> Self {
        Self::new().await
    }

    pub async fn with(nats: NatsBuilder) -> Self {
        let fixture = Self::of_server(nats.start().await).await;
        fixture.adopt().await;
        fixture
    }

    /// Before `walpost adopt --apply`.
    pub async fn of_server(nats: Nats) -> Self {
        let fixture = Self::bare(nats).await;
        fixture.make_stream().await;
        fixture
    }

    /// Without a stream, and before `walpost adopt --apply`.
    pub async fn bare(nats: Nats) -> Self {
        Self::over(Postgres::start(Major::V15).await, nats).await
    }

    /// Before `walpost adopt --apply`, on a server that is the test's alone.
    pub async fn before_adopt() -> Self {
        Self::of_server(Nats::start().await).await
    }

    /// The same with a user of walpost's own besides.
    pub async fn of_user() -> Self {
        let mut fixture = limited_to("outbox.>").await;
        fixture.url = fixture.nats.url();
        fixture
    }

    /// Its data can be set back to a copy.
    pub async fn restorable() -> Self {
        Self::new().await
    }

    /// Messages are synced every two minutes.
    pub async fn syncing_seldom() -> Self {
        Self::with(Nats::builder().sync_interval("2m")).await
    }

    pub async fn with_tls() -> Secured<Self> {
        Self::secured(NatsBuilder::tls).await
    }

    pub async fn with_mutual_tls() -> Secured<Self> {
        Self::secured(NatsBuilder::mutual_tls).await
    }

    async fn secured(tls: fn(NatsBuilder, &CertificateAuthority) -> NatsBuilder) -> Secured<Self> {
        let authority = Arc::new(CertificateAuthority::new());
        let nats = tls(Nats::builder(), &authority);
        Secured { fixture: Self::of_server(nats.start().await).await, authority, _front: None }
    }

    /// The last event that the state key knows, and its owner.
    pub async fn state(&self) -> Value {
        let key = self.nats.messages("KV_walpost_orders").await.pop().expect("the state key");
        serde_json::from_slice(&key.payload).expect("JSON")
    }

    /// Where a copy of its data is kept.
    pub fn kept(&self) -> std::path::PathBuf {
        self.nats.data().with_extension("kept")
    }

    /// A database with an identity of its own, after `walpost adopt --apply`.
    pub async fn of_own_server() -> Self {
        let server = Postgres::builder(Major::V15).own_identity().start().await;
        let fixture = Self::over(server, Nats::start().await).await;
        fixture.make_stream().await;
        fixture.adopt().await;
        fixture
    }

    async fn over(postgres: Postgres, nats: Nats) -> Self {
        let sink = SinkFixture::over(postgres, "nats", nats.url(), VARIABLES).await;
        Self { nats, sink }
    }
}

impl Promise for NatsFixture {
    const ONCE: bool = true;
    async fn records(&self) -> Vec<Consumed> {
        self.nats.records(STREAM).await
    }
}

impl Destination for NatsFixture {
    const NAME: &str = "NATS";
    const HAS_POSITION: bool = true;

    fn port(&self) -> u16 {
        self.nats.port()
    }

    fn url_at(&self, port: u16) -> String {
        format!("nats://127.0.0.1:{port}")
    }

    fn described(&self, _: u16) -> String {
        format!("\"stream\":\"{STREAM}\"")
    }

    async fn kill(&self) {
        self.nats.kill9().await;
    }

    async fn start_again(&self) {
        self.nats.start_again().await;
    }
}

impl Keeper for NatsFixture {
    const PLACE: &str = "walpost_orders";
    const FOREIGN: &str = "messages of another publisher";
    const DELETED: &str = "nats_stream_missing";
    const MADE_AGAIN: &str = "was deleted, replaced or restored";

    async fn another() -> Self {
        Self::of_own_server().await
    }

    async fn length(&self) -> usize {
        usize::try_from(self.nats.last_sequence(STREAM).await).expect("few messages")
    }

    async fn generations(&self) -> Vec<Option<String>> {
        let messages = self.nats.messages(STREAM).await.into_iter();
        let id = |message: &StoredMessage| message.header("Nats-Msg-Id").map(str::to_owned);
        let ids = messages.map(|message| id(&message));
        ids.map(|id| Some(id?.rsplit_once('-').expect("a position").0.to_owned())).collect()
    }

    async fn write_as_another(&self) {
        self.nats.publish("outbox.event.order", "foreign").await;
    }

    async fn delete_stream(&self) {
        self.nats.api(&format!("STREAM.DELETE.{STREAM}"), &Value::Null).await;
    }

    async fn make_stream(&self) {
        self.nats.add_stream(STREAM, SUBJECTS, &json!({})).await;
    }

    async fn remove_oldest(&self, count: usize) {
        let purge = format!("STREAM.PURGE.{STREAM}");
        self.nats.api(&purge, &json!({ "seq": count + 1 })).await;
    }

    async fn replace_owner(&self, owner: &str) -> String {
        let mut state = self.state().await;
        let former = std::mem::replace(&mut state["owner"], owner.into());
        self.nats.publish("$KV.walpost_orders.position", &state.to_string()).await;
        former.as_str().expect("a text").to_owned()
    }

    async fn snapshot(&self) {
        self.kill().await;
        // There may be an earlier one.
        let _ = std::fs::remove_dir_all(self.kept());
        copy(&self.nats.data(), &self.kept());
        self.start_again().await;
    }

    async fn set_back(&self) {
        self.kill().await;
        std::fs::remove_dir_all(self.nats.data()).expect("it can be removed");
        copy(&self.kept(), &self.nats.data());
        self.start_again().await;
    }
}

pub fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(status.success());
}
