use super::*;
use proptest::prelude::*;

/// Generates a string of up to a few chunks with holes, by writing bytes into it.
fn string() -> impl Strategy<Value = Str> {
    let byte = prop_oneof![Just(0u8), Just(0xFF), any::<u8>()];
    let write = (0..3 * CHUNK, byte, prop_oneof![1..9usize, CHUNK - 2..CHUNK + 3]);
    (prop_oneof![0..40usize, 0..4 * CHUNK], prop::collection::vec(write, 0..3)).prop_map(
        |(len, writes)| {
            let mut s = Str::from_vec(Vec::new());
            s.grow(len).unwrap();
            for (at, byte, n) in writes {
                s.write_at(at % (len + 1), &vec![byte; n]).unwrap();
            }
            s
        },
    )
}

fn combined(op: BitOperation, sources: &[Option<Str>]) -> Str {
    let mut result = Combined::default();
    for source in sources {
        match source {
            Some(s) => result.add(op, s).unwrap(),
            None => result.add_missing_key(op),
        }
    }
    Str::from_chunks(result.len, result.chunks)
}

/// Combines the sources byte by byte.
fn model(op: BitOperation, sources: &[Option<Str>]) -> Vec<u8> {
    let sources: Vec<Vec<u8>> = sources
        .iter()
        .map(|s| s.as_ref().map_or_else(Vec::new, |s| s.whole().unwrap().into_owned()))
        .collect();
    let len = sources.iter().map(Vec::len).max().unwrap_or(0);
    (0..len)
        .map(|i| {
            let mut bytes = sources.iter().map(|s| s.get(i).copied().unwrap_or(0));
            let first = bytes.next().unwrap_or(0);
            match op {
                BitOperation::Not => !first,
                BitOperation::And => bytes.fold(first, |a, b| a & b),
                BitOperation::Or => bytes.fold(first, |a, b| a | b),
                BitOperation::Xor => bytes.fold(first, |a, b| a ^ b),
            }
        })
        .collect()
}

#[test]
fn holes_stay_holes() {
    let hole = |len| {
        let mut s = Str::new(b"x");
        s.grow(len).unwrap();
        s
    };
    let sources = [Some(hole(100 * CHUNK)), Some(hole(200 * CHUNK))];
    for op in [BitOperation::And, BitOperation::Or, BitOperation::Xor] {
        let result = combined(op, &sources);
        assert_eq!(result.len(), 200 * CHUNK, "{op:?}");
        assert!(result.memory() < 2 * CHUNK, "{op:?}");
    }
}

#[test]
fn no_sources_have_no_bytes() {
    for op in [BitOperation::And, BitOperation::Or, BitOperation::Xor, BitOperation::Not] {
        assert!(combined(op, &[None]).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn combining_agrees_with_the_model(
        sources in prop::collection::vec(prop::option::weighted(0.9, string()), 1..4),
    ) {
        for op in [BitOperation::And, BitOperation::Or, BitOperation::Xor] {
            let result = combined(op, &sources);
            prop_assert!(*result.whole().unwrap() == model(op, &sources), "{:?}", op);
        }
        let one = &sources[..1];
        prop_assert!(*combined(BitOperation::Not, one).whole().unwrap() == model(BitOperation::Not, one));
    }
}
