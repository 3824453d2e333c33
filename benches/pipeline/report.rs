//! Prints measurements as they arrive and as a final table, and writes them as JSON.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use serde_json::{Value, json};
use walpost_bed::{Debezium, Kafka, pg_recvlogical};

use crate::Plan;
use crate::conditions::Conditions;

/// Values of one kind, one for each round.
#[derive(Debug)]
struct Figure {
    part: String,
    contender: String,
    name: String,
    unit: &'static str,
    values: Vec<f64>,
}

impl Figure {
    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// Median, least and greatest. Of an even number the median is the mean of the two in the
    /// middle.
    fn spread(&self) -> [f64; 3] {
        let sorted = self.sorted();
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let last = sorted.len().saturating_sub(1);
        [f64::midpoint(at(last / 2), at(sorted.len() / 2)), at(0), at(last)]
    }
}

/// All figures of a run.
#[derive(Debug)]
pub(crate) struct Report {
    figures: Vec<Figure>,
    /// Of the parts that have conditions.
    conditions: BTreeMap<String, Conditions>,
    machine: Value,
}

impl Report {
    /// Of a run on a server of that version, where one was given.
    pub(crate) fn new(plan: &Plan, given: Option<&str>) -> Self {
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let own = given.is_none();
        let machine = json!({
            "walpost": env!("CARGO_PKG_VERSION"),
            "librdkafka": rdkafka::util::get_rdkafka_version().1,
            "cores": cores,
            "cpu": cpu,
            "memory": memory(),
            "linux": kernel.trim(),
            "cores_shared_with_servers_and_consumer": own,
            "postgresql": given.map_or_else(|| plan.major().number().to_string(), str::to_owned),
            "pg_recvlogical": pg_recvlogical::version(),
            "kafka": own.then(Kafka::version),
            "debezium": plan.peers.then(Debezium::version),
            "rows": plan.rows,
            "rounds": plan.rounds,
            "seconds": plan.seconds,
        });
        println!("{machine:#}");
        Self { figures: Vec::new(), conditions: BTreeMap::new(), machine }
    }

    /// The name of a part under these conditions, for its figures.
    pub(crate) fn part(&mut self, name: &str, conditions: &Conditions) -> String {
        let part = conditions.label(name);
        self.conditions.insert(part.clone(), *conditions);
        part
    }

    /// One value more.
    pub(crate) fn add(
        &mut self,
        part: &str,
        contender: &str,
        name: &str,
        unit: &'static str,
        value: f64,
    ) {
        println!("  {part}: {contender}: {name} {} {unit}", short(value));
        let same = self.figures.iter_mut().find(|figure| {
            (figure.part.as_str(), figure.contender.as_str(), figure.name.as_str())
                == (part, contender, name)
        });
        match same {
            Some(figure) => figure.values.push(value),
            None => self.figures.push(Figure {
                part: part.to_owned(),
                contender: contender.to_owned(),
                name: name.to_owned(),
                unit,
                values: vec![value],
            }),
        }
    }

    pub(crate) fn print(&self) {
        let wide = |of: fn(&Figure) -> &String| {
            self.figures.iter().map(|figure| of(figure).len()).max().unwrap_or_default()
        };
        let widths = [wide(|one| &one.part), wide(|one| &one.contender), wide(|one| &one.name)];
        let [part, contender, name] = widths;
        println!(
            "\n{:part$}  {:contender$}  {:name$}  {:>9}  least – most",
            "part", "who", "figure", "median"
        );
        for figure in &self.figures {
            let [median, least, most] = figure.spread().map(short);
            println!(
                "{:part$}  {:contender$}  {:name$}  {median:>9}  {least} – {most} {}",
                figure.part, figure.contender, figure.name, figure.unit
            );
        }
    }

    pub(crate) fn write(&self, path: &Path) -> std::io::Result<()> {
        let figures = self.figures.iter().map(|figure| {
            let [median, least, most] = figure.spread();
            json!({
                "part": figure.part,
                "conditions": self.conditions.get(&figure.part).map(Conditions::json),
                "contender": figure.contender,
                "figure": figure.name,
                "unit": figure.unit,
                "median": median,
                "least": least,
                "most": most,
                "values": figure.values,
            })
        });
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let all = json!({
            "unix_time": now.as_secs(),
            "machine": self.machine,
            "figures": figures.collect::<Vec<_>>(),
        });
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(path, format!("{all:#}\n"))
    }
}

/// All of the machine's memory, as the kernel says it.
fn memory() -> Option<String> {
    let all = std::fs::read_to_string("/proc/meminfo").ok()?;
    all.lines().find_map(|line| Some(line.strip_prefix("MemTotal:")?.trim().to_owned()))
}

/// Three digits, or all before the point.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Memory of a running process as a figure.
pub(crate) fn mebibytes(bytes: Option<u64>) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let bytes = bytes.expect("it runs") as f64;
    bytes / 1_048_576.0
}
