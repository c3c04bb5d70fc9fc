# Run all tests, as CI does.
test:
    ./test

# Run the lints and the tests that need no server.
fast:
    ./test fast

fmt:
    cargo fmt --all

lint:
    cargo clippy --workspace --all-targets --all-features -- -D warnings

# Check whether a store meets the requirements: `just doctor --store s3://bucket/prefix`
doctor *args:
    cargo run --release -- doctor {{args}}

# Measure the raw request rate of each store, the limit for all other benchmarks.
bench-raw *args:
    cargo run --release -p leasehold-bench -- raw {{args}}

# Measure submitted and completed tasks per second, against the raw request rate.
bench-queue *args:
    cargo run --release -p leasehold-bench -- queue {{args}}

# Measure the cost of a task and the memory of a worker, with few and with many pending tasks.
bench-depth *args:
    cargo run --release -p leasehold-bench -- depth {{args}}

# Measure fifty worker processes on one journal, idle and with tasks: processor time and requests to the store.
bench-broker *args:
    cargo build --release
    crates/leasehold-bench/broker.py {{args}} target/release/leasehold

# Measure the time to assign pieces to peers, with many of both.
bench-manager *args:
    cargo run --release -p leasehold-bench -- manager {{args}}
