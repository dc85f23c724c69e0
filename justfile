# The verbs of this repository; each one calls the same script that CI and people call. `just` lists them.

default:
    @just --list

# Everything a change has to pass
ci:
    .ci/run

build:
    cargo build --release --bin flagstone

run *args: build
    "${CARGO_TARGET_DIR:-target}/release/flagstone" {{args}}

fmt:
    cargo fmt --all

lint:
    cargo clippy --workspace --all-targets -- -D warnings

test *args:
    cargo test --workspace {{args}}

# The rules of the source tree: imports, sizes, names, texts
tidy:
    cargo test --test tidy

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace

# The links of all documents, and the book of docs/ in target/book (needs mdbook)
book:
    scripts/book

# Draws the README's chart; `just chart --measure` runs the benchmark first
chart *args:
    scripts/chart {{args}}

# Licences, sources and advisories (needs cargo-deny, and the network for advisories)
deny:
    cargo deny check

# Valkey's own test suite and the differential fuzzer: `just conformance suite unit/type/string`
conformance *args: build
    scripts/conformance {{args}}

# Side by side with redis-server: `just bench run --quick`
bench *args: build
    scripts/bench {{args}}

# Kill -9 loops: `just crash sets --mode always --kills 10`
crash *args: build
    scripts/crash {{args}}

# Job queues of other projects on a server that is killed: `just jobs --apps rq`
jobs *args: build
    scripts/jobs {{args}}

# Transfers over all shards under kill -9: `just bank --kills 100 --mode always`
bank *args: build
    scripts/bank {{args}}

# Histories under kill -9, judged by checkers: `just histories linear --mode everysec`
histories *args: build
    scripts/histories {{args}}
