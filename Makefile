# What people and the CI run alike.
.PHONY: advisories alerts bench bench-instructions bench-peers bench-records book consumers corpus deb-test debezium debezium-corpus demo demo-compose deny \
  docker-test docs faults fuzz helm-test lint monitoring packaging-test release setup simulate soak test

# What tests are built with: the points at which a test lets walpost die, and traces. The same for all of
# them, so that nothing is built twice.
FEATURES = crash-points,traces

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
	cargo test --workspace --features $(FEATURES)

lint: setup
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	@cargo tree --package walpost --edges normal --prefix none | awk '/^walpost / { seen = 1 } \
	  /^fail / { crash = 1 } END { exit !seen || crash }' || \
	  { echo "an ordinary build of walpost would have points to crash at" >&2; exit 1; }
	cargo clippy --workspace --all-targets --features $(FEATURES) -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps

# Every fault of docs/faults.md, and a table of what came of each.
# FAULTS="broker" commits those whose names have that in them. BED_CATCH_UP_THRESHOLD=1KiB reads
# whatever waits in batches, as a large backlog is.
faults: setup
	cargo test --workspace --features $(FEATURES) --test faults -- --include-ignored $(FAULTS)

# The whole relay between a simulated PostgreSQL and a simulated Kafka, on a time of its
# own: SCHEDULES of them, each from a seed. What fails prints the line that replays it.
SCHEDULES ?= 100000
simulate: setup
	WALPOST_SCHEDULES=$(SCHEDULES) cargo test --workspace --features $(FEATURES) --test simulation

# KILLS kills at random, of walpost and of all that it stands on, and the oracle after
# each: seconds a kill. SEED=… chooses the same ones again.
KILLS ?= 25
soak: setup
	@# The programs of these tests, so that nothing is built that `make test` has not built.
	cargo test --workspace --features $(FEATURES) --test faults --test program --no-run
	"$${CARGO_TARGET_DIR:-target}/debug/soak" $(KILLS) $(SEED)

# walpost beside pg_recvlogical, on servers of its own: about half an hour. The figures are
# left in target/bench/. BENCH="drain-rows --rows 100000 --rounds 1" runs a part of it, BENCH=--help
# says what there is, also for servers of yours.
bench: setup
	cargo bench --bench pipeline -- --json target/bench/pipeline.json $(BENCH)

# The same beside Debezium on Kafka Connect, from its own packages: an hour.
PEERS ?= drain-rows drain-one latency start memory
bench-peers: setup
	cargo bench --bench pipeline -- --peers --json target/bench/peers.json $(PEERS) $(BENCH)

# What an event costs between its bytes and its record: time and allocations.
bench-records: setup
	cargo bench --bench records

# The same in instructions, as callgrind counts them, for each part of an event's way: they hardly differ from
# run to run, so that a small change shows. What each function took stays in target/gungraun, for
# callgrind_annotate. Everything is built once more for it, with names: minutes, once.
bench-instructions:
	@tests/bed/setup.sh instructions
	@GUNGRAUN_RUNNER="$$(packaging/tool gungraun-runner)" && export GUNGRAUN_RUNNER && mkdir -p target/bench && \
	  cargo bench --profile instructions --bench instructions -- --callgrind-metrics=ir \
	    >target/bench/instructions.log || { cat target/bench/instructions.log; exit 1; }
	@benches/instructions/table target/bench/instructions.log

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
	cargo test --features $(FEATURES) --test debezium -- --include-ignored

# The consumers of docs/consumers.md in each of their languages, Java, Go (1.24 or later) and
# Python too, with what they need from Maven, Go's proxy and Python's index.
consumers:
	@tests/bed/setup.sh consumers
	cargo test --workspace --features $(FEATURES) --test consumers -- --include-ignored

# Records anew what the real Debezium makes of outbox rows.
# SCENARIOS="type/text mode/" records those whose name has one of these in them.
debezium-corpus: setup
	cargo run --package walpost-bed --bin record_debezium -- tests/corpus/debezium "$(SCENARIOS)"

# What is handed out, in target/dist: the Debian package, an archive, the bill of materials.
release:
	@packaging/release

# The package in a bare Debian with systemd, from its installation to its purge; as root.
deb-test: setup release
	@tests/deb/run

# The image, its limits and its health check, and the stack of docker/compose.yaml; as root.
docker-test: setup
	@tests/docker/run

# The chart, rendered and validated.
helm-test:
	@packaging/helm/test

# PostgreSQL, Kafka, walpost, a writer, Prometheus and Grafana, until Ctrl-C; needs Docker.
demo-compose:
	@docker compose version >/dev/null 2>&1 || \
	  { echo "demo-compose: Docker with its compose plugin is missing" >&2; exit 1; }
	docker compose --file docker/compose.yaml up --build; \
	  docker compose --file docker/compose.yaml down --volumes

# Licences, sources and versions of what walpost is made of.
deny:
	@"$$(packaging/tool cargo-deny)" check bans licenses sources

# Known vulnerabilities in it. Where the database of advisories cannot be fetched it says so, and fails.
advisories:
	@packaging/advisories

# The archive's bytes, and signatures.
packaging-test:
	@tests/bed/setup.sh packaging
	@packaging/test

# The alert rules, and what promtool makes of them: each fires, and only when it should.
alerts:
	@tests/bed/setup.sh alerts
	promtool check config docker/prometheus/prometheus.yml
	promtool test rules docker/prometheus/tests/*.yml

# With a real Prometheus: Kafka is away for AWAY, and the alerts see it; each query of the
# dashboard and of the pages has an answer.
AWAY ?= 120s
monitoring: alerts
	WALPOST_AWAY=$(AWAY) cargo test --workspace --features $(FEATURES) --test monitoring -- --include-ignored --nocapture

# The book, into target/book/docs. Its builder is built once: some minutes.
book:
	@tests/docs/book.sh

# Writes the pages that are made from the code anew.
docs:
	WALPOST_DOCS=write cargo test --features $(FEATURES) --lib page_of_metrics
	WALPOST_DOCS=write cargo test --workspace --features $(FEATURES) --test docs -- reference
