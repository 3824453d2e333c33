# What people and the CI run alike.
.PHONY: bench corpus demo fuzz lint setup test

# All of it in a minute once it is built. DEMO=stay: it runs on until Ctrl-C.
demo:
	@tests/bed/setup.sh demo
	@echo "Building walpost with optimisation: several minutes the first time."
	@cargo build --release --workspace --bin walpost --bin demo
	@"$${CARGO_TARGET_DIR:-target}/release/demo" $(DEMO)

# The system's packages that building and testing need (as root, where some are missing).
setup:
	@tests/bed/setup.sh

test: setup
	cargo test --workspace

lint: setup
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps

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
