# Common tasks, for people and for the CI. `make help` lists them.
#
# The text after `##` beside a target is its line in `make help`; `##@` starts a group.
# `make setup` installs missing system packages (as root) or lists them (otherwise); most targets
# run it first.

.DEFAULT_GOAL := help
.PHONY: advisories alerts bench bench-destinations bench-instructions bench-matrix bench-peers \
  bench-records book browser consumers corpus deb-test debezium debezium-corpus demo \
  demo-compose deny docker-test docs e2e faults features fuzz helm-test help lint long monitoring msrv other-kafka \
  packaging-test patroni release setup simulate soak test unit writers

# Features that all tests are built with: the crash points, at which a test can abort walpost, the
# sinks, and traces. One set for every target, so that nothing is compiled twice.
FEATURES = crash-points,destinations,traces

# walpost, its core, its test bed and the tests that run it: named in each target, so that the client's
# features add none to their dependencies.
PROGRAM = --package walpost --package walpost-core --package walpost-bed --package walpost-system

# One suite of walpost-system. tidy builds the program beside it: Cargo builds a package's programs with
# its tests.
SYSTEM = cargo test $(PROGRAM) --features $(FEATURES) --test tidy --test

# The Rust client, with all drivers.
OUTBOX = --package walpost-outbox --package walpost-outbox-derive

# Most tests wait for servers most of the time: six run at once on two processors. With four, a quarter
# of the processors' time is not used.
export RUST_TEST_THREADS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) * 3)))

help: ## List the targets
	@echo "make TARGET [VARIABLE=VALUE ...]"
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z][a-z0-9-]*:.*## / { printf "  %-18s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Where the servers of `make test` keep their files: in memory, if 8 GiB are free there. A new
# server is a thousand new files, which takes 0.1 s of a processor there and up to 0.9 s on ext4.
IN_MEMORY = $(shell [ "$$(df --output=avail /dev/shm 2>&1 | tail -1)" -gt 8388608 ] 2>/dev/null && echo /dev/shm)

##@ Try it

# The destination of the demo and of the soak: kafka, redis, nats, rabbitmq, http or sqs.
SINK ?= kafka

# Ends by itself, a minute after the build. With DEMO=stay it runs until Ctrl-C.
demo: ## Run the demo: publish orders, kill walpost, check what arrived (DEMO=stay: keep it running, SINK=redis, nats, rabbitmq, http or sqs)
	@tests/bed/setup.sh demo $(SINK)
	@echo "Building walpost with optimisation: several minutes the first time."
	@cargo build --release $(PROGRAM) --bin walpost --bin demo --bin http_receiver \
	  $(if $(filter-out kafka,$(SINK)),--features $(SINK))
	@WALPOST_DEMO_SINK=$(SINK) "$${CARGO_TARGET_DIR:-target}/release/demo" $(DEMO)

demo-compose: ## Run the Docker Compose stack with Prometheus and Grafana until Ctrl-C
	@docker compose version >/dev/null 2>&1 || \
	  { echo "demo-compose: Docker with its compose plugin is missing" >&2; exit 1; }
	docker compose --file docker/compose.yaml up --build; \
	  docker compose --file docker/compose.yaml down --volumes

##@ Test

setup: ## Install the system packages that building and testing need
	@tests/bed/setup.sh

test: export TMPDIR := $(or $(TMPDIR),$(IN_MEMORY),/tmp)
test: setup ## Run all tests except the long ones: unit, property, end-to-end, doc tests
	cargo test $(PROGRAM) --features $(FEATURES)
	cargo test $(OUTBOX) --all-features

# Also checks that a default build of walpost contains no crash points.
lint: setup ## Check formatting, run clippy and rustdoc with warnings as errors
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	@cargo tree --package walpost --edges normal --prefix none | awk '/^walpost / { seen = 1 } \
	  /^fail / { crash = 1 } END { exit !seen || crash }' || \
	  { echo "a default build of walpost would contain crash points" >&2; exit 1; }
	cargo clippy $(PROGRAM) --all-targets --features $(FEATURES) -- -D warnings
	cargo clippy $(OUTBOX) --all-targets --all-features -- -D warnings
	cargo clippy --package walpost-instructions --all-targets -- -D warnings
	@# Users build without the features of the tests, and some targets build the test bed alone.
	cargo clippy --package walpost -- -D warnings
	cargo check --package walpost-bed
	RUSTDOCFLAGS=-Dwarnings cargo doc $(PROGRAM) --no-deps
	RUSTDOCFLAGS=-Dwarnings cargo doc --package walpost-outbox --all-features --no-deps

features: setup ## Check the Rust client with each of its features alone, and walpost with none
	cargo test --package walpost --lib -- config:: destination::
	cargo clippy --package walpost --lib --no-default-features -- -D warnings
	for feature in derive tokio-postgres sqlx diesel-async opentelemetry tracing; do \
	  cargo clippy --package walpost-outbox --no-default-features --features $$feature -- -D warnings || exit 1; done

# The compiler comes from rustup.
MSRV = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
msrv: setup ## Build walpost and the Rust client with the oldest compiler that they support
	rustup toolchain install $(MSRV) --profile minimal --no-self-update
	cargo +$(MSRV) check --locked --package walpost --features destinations,traces
	cargo +$(MSRV) check --locked $(OUTBOX) --all-features

unit: setup ## Run unit and property tests (NAME=part of a name)
	cargo test $(PROGRAM) --features $(FEATURES) --lib -- $(NAME)

SUITE ?= e2e
e2e: setup ## Run end-to-end tests (NAME=part of a name, SUITE=check: another folder of tests/system)
	$(SYSTEM) $(SUITE) -- $(NAME)

# A quarter of an hour. Prints a table of the outcomes. BED_CATCH_UP_THRESHOLD=1KiB in the
# environment makes walpost use catch-up reads for small backlogs too.
faults: setup ## Inject every fault of docs/faults.md (FAULTS=broker: only names that contain it)
	$(SYSTEM) faults -- --include-ignored $(FAULTS)

# The tests that are marked `#[ignore = "long: make long"]`, each about a minute, and an outage of each
# destination, each of OUTAGE seconds. The long faults are part of `make faults`.
OUTAGE ?= 600
long: setup ## Run the long end-to-end and security tests, which `make test` leaves out (OUTAGE=600)
	@tests/bed/setup.sh long
	WALPOST_OUTAGE_SECONDS=$(OUTAGE) $(SYSTEM) e2e \
	  --test security --test destinations -- --ignored

# Built with optimisation, which takes longer than the schedules of `make test`. A failing schedule
# or case prints the command that replays it.
SCHEDULES ?= 100000
OPTIMISED = cargo test --config profile.dev.package.walpost.opt-level=2 \
  --config profile.dev.package.walpost-core.opt-level=2 --package walpost --package walpost-core \
  --features $(FEATURES)
simulate: setup ## Simulate random failures of PostgreSQL and Kafka (SCHEDULES=100000)
	WALPOST_SCHEDULES=$(SCHEDULES) $(OPTIMISED) --test simulation
	WALPOST_CASES=30000 $(OPTIMISED) --lib -- properties

# Takes seconds per kill. The oracle checks the delivered records after each one. DELIVERY and
# PRODUCERS are for Kafka.
KILLS ?= 25
DELIVERY ?= at-least-once
PRODUCERS ?=
soak: setup ## Kill walpost and its servers at random (KILLS=25, SEED=...: same kills, SINK=redis, nats, rabbitmq, http or sqs, DELIVERY=exactly-once, PRODUCERS=3)
	@# Builds the binaries the way the tests do, so that `make test` shares them.
	cargo test $(PROGRAM) --features $(FEATURES) --test tidy --test program --no-run
	WALPOST_SOAK_SINK=$(SINK) WALPOST_SOAK_DELIVERY=$(DELIVERY) WALPOST_SOAK_PRODUCERS=$(PRODUCERS) \
	  "$${CARGO_TARGET_DIR:-target}/debug/soak" $(KILLS) $(SEED)

# SECONDS is for all targets together. Prints one line per target and fails on a finding.
SECONDS ?= 600
fuzz: setup ## Fuzz all decoders and parsers (SECONDS=600, TARGETS="stream json")
	@fuzz/run $(SECONDS) $(TARGETS)

# Java, Go (1.24 or later) and Python with their libraries, from Maven, Go's proxy and Python's
# index. The Rust consumer runs in `make test`. Clients of the other destinations, in Python and Go, read
# what walpost makes of random rows.
consumers: ## Run the example consumers of docs/consumers.md in all four languages, and other clients
	@tests/bed/setup.sh consumers
	$(SYSTEM) consumers -- --include-ignored

# The same languages, and TypeScript with its compiler from npm. The Rust writer and the page's SQL
# run in `make test`.
writers: ## Run the example writers of docs/writing-events.md in all five languages
	@tests/bed/setup.sh writers
	$(SYSTEM) writers -- --include-ignored

# Go (1.26 or later) with the library that has the brokers, from Go's proxy. The brokers are kfake of
# franz-go, in memory.
other-kafka: ## Run walpost against brokers that are not Apache Kafka
	@tests/bed/setup.sh other-kafka
	$(SYSTEM) compatibility -- --ignored

# Patroni from Python's index, etcd from Debian. Prints each change of the leader and what walpost did.
patroni: ## Run walpost with PostgreSQL under Patroni: switchovers, and kills of the leader
	@tests/bed/setup.sh patroni
	$(SYSTEM) patroni -- --ignored --nocapture

debezium: setup ## Check a real Debezium against the recorded corpus, and hand over its slot
	$(SYSTEM) debezium -- --include-ignored --test-threads 1

alerts: ## Unit-test the alert rules with promtool
	@tests/bed/setup.sh alerts
	promtool check config docker/prometheus/prometheus.yml
	promtool test rules docker/prometheus/tests/*.yml

# Stops Kafka for AWAY and checks that the alerts fire and clear. Runs every query of the dashboard
# and of the pages.
AWAY ?= 120s
monitoring: alerts ## Check alerts, dashboard and queries in a real Prometheus (AWAY=120s)
	WALPOST_AWAY=$(AWAY) $(SYSTEM) monitoring -- --include-ignored --nocapture

browser: setup ## Look at the page at `/` in a real Chromium; screenshots are left in target/page
	@tests/bed/setup.sh browser
	$(SYSTEM) browser -- --ignored --nocapture --test-threads 1

##@ Benchmark

# Half an hour, on its own servers or on yours (BENCH=--help). Writes target/bench/pipeline.json.
bench: setup ## Benchmark against pg_recvlogical (BENCH="drain-rows --rounds 1": a part of it)
	cargo bench --bench pipeline -- --json target/bench/pipeline.json $(BENCH)

# An hour. Debezium comes from its own packages. Writes target/bench/peers.json.
PEERS ?= drain-rows drain-one latency start memory
bench-peers: setup ## Benchmark against Debezium on Kafka Connect and pg_recvlogical
	cargo bench --bench pipeline -- --peers --json target/bench/peers.json $(PEERS) $(BENCH)

# An hour, or two with BENCH=--peers. Writes target/bench/matrix.json. A change of a default needs
# this, not one cell.
MATRIX ?= --rounds 1 --rows 300000
bench-matrix: setup ## Benchmark over networks, many partitions, other tables' WAL (BENCH=latency: a part)
	cargo bench --bench pipeline -- --matrix --json target/bench/matrix.json $(MATRIX) $(BENCH)

# Half an hour. BENCH="redis --rounds 1": a part of it.
bench-destinations: setup ## Benchmark a backlog to Redis, NATS, RabbitMQ, HTTP and SQS beside bare producers
	cargo bench --features destinations --bench destinations -- $(BENCH)

bench-records: setup ## Measure time and allocations per event inside walpost
	cargo bench --bench records

# Instruction counts hardly vary between runs, so small changes show. The first build takes minutes,
# since everything is compiled with symbols. Per-function counts for callgrind_annotate are left in
# target/gungraun.
bench-instructions: ## Count instructions per event inside walpost, with callgrind
	@tests/bed/setup.sh instructions
	@GUNGRAUN_RUNNER="$$(packaging/tool gungraun-runner)" && export GUNGRAUN_RUNNER && mkdir -p target/bench && \
	  cargo bench --package walpost-instructions --profile instructions --bench instructions -- --callgrind-metrics=ir \
	    >target/bench/instructions.log || { cat target/bench/instructions.log; exit 1; }
	@benches/instructions/table target/bench/instructions.log

##@ Document

docs: ## Regenerate the pages that are made from the code
	WALPOST_DOCS=write cargo test --features $(FEATURES) --lib the_metrics_page
	WALPOST_DOCS=write cargo test $(PROGRAM) --features $(FEATURES) --test docs -- reference

# The first run builds mdBook, which takes minutes.
book: ## Build the documentation as a book in target/book/docs
	@tests/docs/book.sh

##@ Record test data

corpus: setup ## Record pgoutput messages of PostgreSQL 14 to 18 into tests/corpus/pgoutput
	cargo run --package walpost-bed --bin record_pgoutput -- tests/corpus/pgoutput

# SCENARIOS="type/text mode/" records only the scenarios whose names contain one of these.
debezium-corpus: setup ## Record what Debezium makes of outbox rows (SCENARIOS=type/text)
	cargo run --package walpost-bed --bin record_debezium -- tests/corpus/debezium "$(SCENARIOS)"

##@ Package

release: ## Build the archive, the Debian package and the bill of materials in target/dist
	@packaging/release

deb-test: setup release ## Test the Debian package under systemd, install to purge (as root)
	@tests/deb/run

docker-test: setup ## Test the image, its limits and health check, and the stack (as root)
	@tests/docker/run

helm-test: ## Render and validate the Helm chart
	@packaging/helm/test

packaging-test: ## Check that archives are reproducible and signatures hold
	@tests/bed/setup.sh packaging
	@packaging/test

deny: ## Check licences, sources and versions of the dependencies
	@"$$(packaging/tool cargo-deny)" --workspace check bans licenses sources

# Fails with a message if the advisory database cannot be fetched.
advisories: ## Check the dependencies for known vulnerabilities (needs GitHub)
	@packaging/advisories
