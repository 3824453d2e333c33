# What people and the CI run alike.
.PHONY: bench consumers corpus debezium debezium-corpus demo faults fuzz lint setup simulate soak test

# All of it in a minute once it is built. DEMO=stay: it runs on until Ctrl-C.
demo:
	@tests/bed/setup.sh demo
	@echo "Building walpost with optimisation: several minutes the first time."
	@cargo build --release --workspace --bin walpost --bin demo
	@"$${CARGO_TARGET_DIR:-target}/release/demo" $(DEMO)

# The system's packages that building and testing need (as root, where some are missing).
setup:
	@tests/bed/setup.sh

# With the points at which a test lets walpost die; an ordinary build has none.
test: setup
	cargo test --workspace --features crash-points

lint: setup
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	@cargo tree --package walpost --edges normal --prefix none | awk '/^walpost / { seen = 1 } \
	  /^fail / { crash = 1 } END { exit !seen || crash }' || \
	  { echo "an ordinary build of walpost would have points to crash at" >&2; exit 1; }
	cargo clippy --workspace --all-targets --features crash-points -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps

# Every fault of docs/faults.md, and a table of what came of each.
# FAULTS="broker" commits those whose names have that in them.
faults: setup
	cargo test --workspace --features crash-points --test faults -- --include-ignored $(FAULTS)

# The whole relay between a simulated PostgreSQL and a simulated Kafka, on a time of its
# own: SCHEDULES of them, each from a seed. What fails prints the line that replays it.
SCHEDULES ?= 100000
simulate: setup
	WALPOST_SCHEDULES=$(SCHEDULES) cargo test --workspace --features crash-points --test simulation

# KILLS kills at random, of walpost and of all that it stands on, and the oracle after
# each: seconds a kill. SEED=… chooses the same ones again.
KILLS ?= 25
soak: setup
	@# The programs of these tests, so that nothing is built that `make test` has not built.
	cargo test --workspace --features crash-points --test faults --test program --no-run
	"$${CARGO_TARGET_DIR:-target}/debug/soak" $(KILLS) $(SEED)

# walpost beside pg_recvlogical, on servers of its own: about half an hour.
# BENCH="drain-rows --rows 100000 --rounds 1" runs a part of it.
bench: setup
	cargo bench --bench pipeline -- $(BENCH)

# Any bytes into everything that reads what comes from outside, SECONDS in all:
# a line for each target, an error where one found something.
# TARGETS="stream json" runs these alone.
SECONDS ?= 600
fuzz: setup
	@fuzz/run $(SECONDS) $(TARGETS)

# Records pgoutput's messages anew, from PostgreSQL 14 to 18.
corpus: setup
	cargo run --package walpost-bed --bin record_pgoutput -- tests/corpus/pgoutput

# Whether the real Debezium still does what was recorded of it.
debezium: setup
	cargo test --package walpost-bed --test debezium -- --include-ignored --test-threads 1
	cargo test --features crash-points --test debezium -- --include-ignored

# The consumers of docs/consumers.md in each of their languages, Java, Go (1.24 or later) and
# Python too, with what they need from Maven, Go's proxy and Python's index.
consumers:
	@tests/bed/setup.sh consumers
	cargo test --workspace --features crash-points --test consumers -- --include-ignored

# Records anew what the real Debezium makes of outbox rows.
# SCENARIOS="type/text mode/" records those whose name has one of these in them.
debezium-corpus: setup
	cargo run --package walpost-bed --bin record_debezium -- tests/corpus/debezium "$(SCENARIOS)"
