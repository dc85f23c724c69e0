//! Runs a fuzz target as a plain test: over its corpus, and over seeded mutations of it.

use std::path::Path;

/// Mutations of the corpus of one target, unless the environment names another number.
const MUTATIONS: u64 = 3_000;
const MUTATIONS_VARIABLE: &str = "FLAGSTONE_FUZZ_MUTATIONS";

/// Longest input, in bytes.
const MAX_LEN: usize = 1 << 16;

/// Small generator of pseudo-random numbers (xorshift64*).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 11) as usize % bound.max(1)
    }
}

/// Runs `target` over the files of `corpus`, a folder of `fuzz/corpus/`, and over mutations of them.
///
/// # Panics
/// If there is no corpus, or where the target does: the seed of the mutation is printed then.
pub(crate) fn replay(corpus: &str, target: impl Fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = root.ancestors().find(|dir| dir.join("fuzz/corpus").is_dir());
    let dir = workspace.expect("the workspace has a folder fuzz/corpus").join("fuzz/corpus");
    let mut files: Vec<_> = std::fs::read_dir(dir.join(corpus))
        .expect("the target has a corpus")
        .map(|entry| entry.expect("the corpus can be listed").path())
        .collect();
    files.sort();
    let inputs: Vec<Vec<u8>> =
        files.iter().map(|path| std::fs::read(path).expect("the corpus can be read")).collect();
    assert!(!inputs.is_empty(), "fuzz/corpus/{corpus} is empty");
    for (path, input) in files.iter().zip(&inputs) {
        let _at = Named(path.display().to_string());
        target(input);
    }
    let wanted = std::env::var(MUTATIONS_VARIABLE).ok().and_then(|number| number.parse().ok());
    for seed in 1..=wanted.unwrap_or(MUTATIONS) {
        let _at = Named(format!("mutation {seed} of fuzz/corpus/{corpus}"));
        target(&mutated(&inputs, seed));
    }
}

/// Says which input a panic belongs to.
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the target fails on {}", self.0);
        }
    }
}

/// One of the inputs with up to eight changes.
fn mutated(inputs: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut input = inputs[rng.below(inputs.len())].clone();
    for _ in 0..=rng.below(8) {
        let at = rng.below(input.len());
        match rng.below(6) {
            0 if !input.is_empty() => input[at] ^= 1 << rng.below(8),
            1 if !input.is_empty() => input[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5)],
            2 => input.truncate(at),
            3 => {
                let byte = rng.next() as u8;
                input.insert(at, byte);
            }
            4 => {
                let other = &inputs[rng.below(inputs.len())];
                let from = rng.below(other.len());
                let len = rng.below(64).min(other.len() - from);
                input.splice(at..at, other[from..from + len].iter().copied());
            }
            _ => {
                let end = (at + rng.below(16)).min(input.len());
                input.drain(at..end);
            }
        }
    }
    input.truncate(MAX_LEN);
    input
}
