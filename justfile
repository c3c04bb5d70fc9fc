# Everything, as CI runs it.
test:
    ./test

# What needs no server.
fast:
    ./test fast

fmt:
    cargo fmt --all

lint:
    cargo clippy --workspace --all-targets --all-features -- -D warnings

# Does this store meet the requirements? `just doctor --store s3://bucket/prefix`
doctor *args:
    cargo run --release -- doctor {{args}}

# The raw request rate of a store: the limit that everything else is measured against.
bench-raw *args:
    cargo run --release -p leasehold-bench -- raw {{args}}

# Tasks submitted and worked off, against that limit.
bench-queue *args:
    cargo run --release -p leasehold-bench -- queue {{args}}

# What a task costs, and what memory a worker takes, with few and with many waiting.
bench-depth *args:
    cargo run --release -p leasehold-bench -- depth {{args}}

# How long it takes to decide who fetches which piece, with many peers and pieces.
bench-manager *args:
    cargo run --release -p leasehold-bench -- manager {{args}}
