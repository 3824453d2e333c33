//! Two of it on one slot: one waits while the other works.

use std::time::Duration;

use walpost_bed::scene::{SOON, Scene, insert, proxied};
use walpost_bed::writer::Writer;
use walpost_bed::{Major, Postgres, Proxy, eventually};

use crate::case::{Account, Case};

const WAITS: &str = "is in use by server process";
const WORKS: &str = "streaming from PostgreSQL";
const GAVE_WAY: &str = "another walpost has gone on in between";

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(7, "one_that_was_frozen_becomes_the_standby_and_takes_over_again", frozen),
        Case::new(7, "one_that_was_cut_off_becomes_the_standby_and_takes_over_again", cut_off),
        Case::new(8, "a_second_relay_waits_and_takes_over_within_seconds", second),
    ]
}

async fn frozen(account: Account) {
    let postgres = Postgres::builder(Major::V15).wal_sender_timeout(Duration::from_secs(2));
    let scene = Scene::with(postgres).await;
    let writer = Writer::start(&scene.postgres, 200);
    let first = scene.run().await;
    writer.commits(50).await;
    first.pause();
    let second = scene.command("run").start();
    second.await_line(WAITS, SOON).await;
    second.await_line(WORKS, SOON).await;
    writer.commits(50).await;
    scene.confirmed(SOON).await;
    let mark = first.mark();
    first.resume();
    first.await_line_after(mark, "lost PostgreSQL, connecting again", SOON).await;
    first.await_line_after(mark, WAITS, SOON).await;
    writer.commits(50).await;
    assert!(!second.said("lost PostgreSQL"), "{:?}", second.stderr());
    let mark = first.mark();
    second.terminate();
    account.ends(&second, 0).await;
    first.await_line_after(mark, GAVE_WAY, SOON).await;
    writer.commits(50).await;
    account.ok(&scene.judge_after(writer).await);
    account.goes_on(&first);
}

async fn cut_off(account: Account) {
    let mut scene = Scene::new().await;
    let proxy = Proxy::to(scene.postgres.port()).await;
    let direct = std::mem::replace(&mut scene.source, proxied(&proxy));
    let first = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    proxy.refuse();
    proxy.cut();
    eventually(SOON, "the slot is free", async || scene.walsender().await.is_none()).await;
    scene.source = direct;
    let second = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    proxy.restore();
    first.await_line(WAITS, SOON).await;
    let mark = first.mark();
    second.kill9().await;
    first.await_line_after(mark, GAVE_WAY, SOON).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    account.ok(&scene.judge().await);
    account.goes_on(&first);
}

async fn second(account: Account) {
    let scene = Scene::new().await;
    let first = scene.run().await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    let second = scene.command("run").start();
    second.await_line(WAITS, SOON).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    assert!(!second.said(WORKS), "only one may stream");
    first.kill9().await;
    second.await_line(WORKS, Duration::from_secs(5)).await;
    scene.postgres.execute(&insert(10, 3)).await;
    scene.confirmed(SOON).await;
    account.ok(&scene.judge().await);
    account.goes_on(&second);
}
