# What people and the CI run alike.
.PHONY: setup test lint

# The system's packages that building and testing need (as root, where some are missing).
setup:
	@tests/bed/setup.sh

test: setup
	cargo test --workspace

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps
