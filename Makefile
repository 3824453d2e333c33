# What people and the CI run alike.
.PHONY: bench demo faults lint setup soak test

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
	@cargo tree --package walpost --edges normal --prefix none | awk '/^walpost / { seen = 1 } \
	  /^fail / { crash = 1 } END { exit !seen || crash }' || \
	  { echo "an ordinary build of walpost would have points to crash at" >&2; exit 1; }
	cargo clippy --workspace --all-targets --features crash-points -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps

# Every fault of docs/faults.md, and a table of what came of each.
# FAULTS="broker" commits those whose names have that in them.
faults: setup
	cargo test --workspace --features crash-points --test faults -- --include-ignored $(FAULTS)

# walpost beside pg_recvlogical, on servers of its own: about half an hour.
# BENCH="drain-rows --rows 100000 --rounds 1" runs a part of it.
bench: setup
	cargo bench --bench pipeline -- $(BENCH)
