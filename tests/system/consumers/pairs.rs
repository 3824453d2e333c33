//! Each example consumer reads the events of each example writer.

use walpost_bed::Walpost;
use walpost_bed::fixture::{LONG_TIMEOUT, ended};

use crate::fixture::OrdersFixture;
use crate::program::Program;
use crate::{tools, writers};

#[allow(dead_code, reason = "its main is for people")]
#[path = "../../../examples/writers/rust/main.rs"]
mod rust;

/// How many orders a writer places and pays.
const ORDERS: u32 = 20;

/// Which programs to pair, with names for databases and groups.
type Named = (&'static str, Program);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_programs_fit_together() {
    fit_together([("rust", Program::Rust)], [("rust", Program::Rust)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants the tools of all languages: make consumers"]
async fn programs_of_all_languages_fit_together() {
    let writing = [
        ("java_jdbc", writers::java_jdbc()),
        ("java_spring", writers::java_spring()),
        ("go_pgx", writers::go_pgx()),
        ("psycopg", writers::python("writer_psycopg.py", "postgres")),
        ("sqlalchemy", writers::python("writer_sqlalchemy.py", "postgresql+psycopg")),
        ("typescript", writers::typescript()),
        ("rust", Program::Rust),
    ];
    let reading = [
        ("java", tools::java()),
        ("go", tools::go()),
        ("python", tools::python()),
        ("rust", Program::Rust),
    ];
    fit_together(writing, reading).await;
}

async fn fit_together<const N: usize, const M: usize>(writing: [Named; N], reading: [Named; M]) {
    for (writer, program) in &writing {
        let shop = OrdersFixture::shop().await;
        write(program, &shop).await;
        shop.publish(&[]).await;
        let placed = shop.placed().await;
        assert_eq!(placed.values().map(|(orders, _)| orders).sum::<u64>(), u64::from(ORDERS));
        for (reader, program) in &reading {
            let name = format!("{writer}_{reader}");
            let read = program.reads(&shop, &name).await;
            assert_eq!(read, placed, "{reader} reads what {writer} has written");
        }
    }
}

/// Runs the writer to its end.
async fn write(program: &Program, shop: &OrdersFixture) {
    let database = program.database(&shop.database_server(), "postgres");
    let Program::Command { line, .. } = program else {
        let written = tokio::time::timeout(LONG_TIMEOUT, rust::write(&database, ORDERS.into()));
        assert_eq!(written.await.expect("it ends").expect("it succeeds"), (ORDERS, ORDERS));
        return;
    };
    let process = Walpost::builder("/usr/bin/env").args(line).arg(ORDERS.to_string());
    let (code, said) = ended(&process.env("DATABASE_URL", database).start()).await;
    assert_eq!(code, Some(0), "{said}");
}
