use super::*;
use proptest::prelude::*;
use std::hash::Hasher;

/// The default of hll-sparse-max-bytes.
const SPARSE_MAX: usize = 3000;

fn stored(sketch: Sketch<'_>) -> Vec<u8> {
    sketch.into_changed().unwrap().whole().unwrap().into_owned()
}

fn from_bytes(bytes: &[u8]) -> Option<Sketch<'static>> {
    let s = Str::new(bytes);
    let sketch = Sketch::open(&s).unwrap()?;
    Some(Sketch { bytes: Cow::Owned(sketch.bytes.into_owned()), changed: false })
}

/// Returns a sparse sketch of these opcodes.
fn sparse_of(opcodes: &[u8]) -> Sketch<'static> {
    let mut bytes = Sketch::empty().bytes.into_owned();
    bytes.truncate(HEADER);
    bytes.extend_from_slice(opcodes);
    from_bytes(&bytes).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// The bytes are those of Valkey 8.1.1 after each element.
#[test]
fn few_elements_are_kept_as_in_the_reference() {
    let mut sketch = Sketch::empty();
    for (element, body) in [
        ("a", "71a6844e57"),
        ("b", "71a6844bfb80425a"),
        ("c", "60f38050b1844bfb80425a"),
        ("d", "5c7b8044768050b1844bfb80425a"),
        ("", "57318445488044768050b1844bfb80425a"),
        ("a longer element of several words", "44a98452868445488044768050b1844bfb80425a"),
    ] {
        assert_eq!(sketch.add(element.as_bytes(), SPARSE_MAX), Ok(true));
        assert_eq!(sketch.add(element.as_bytes(), SPARSE_MAX), Ok(false));
        assert_eq!(hex(&sketch.bytes[..HEADER]), "48594c4c010000000000000000000080");
        assert_eq!(hex(sketch.body()), body, "{element}");
    }
}

/// Length, digest and estimate of Valkey 8.1.1 for the first numbers.
#[test]
fn many_elements_are_kept_as_in_the_reference() {
    let mut sketch = Sketch::empty();
    let mut last = 0;
    for (count, len, want, estimate) in [
        (10, 48, 0x9d80_bd34_6ef0_7c36, 10),
        (100, 287, 0x7f96_22e5_ee34_a522, 100),
        (1000, 1923, 0xe0a7_aef8_b838_588a, 1001),
        (2000, 12304, 0x19c0_53a6_4b09_8980, 2007),
        (5000, 12304, 0x2382_440b_bb80_8c26, 4985),
        (50_000, 12304, 0xa90b_ac47_de42_deb9, 50_354),
    ] {
        for n in last..count {
            sketch.add(n.to_string().as_bytes(), SPARSE_MAX).unwrap();
        }
        last = count;
        assert_eq!(sketch.bytes.len(), len, "{count}");
        assert_eq!(digest(&sketch.bytes), want, "{count}");
        assert_eq!(sketch.cached(), None);
        assert_eq!(sketch.estimate(), Ok(estimate));
        sketch.cache(estimate);
        assert_eq!(sketch.cached(), Some(estimate));
    }
}

/// The element with which Valkey 8.1.1 converts to the dense encoding.
#[test]
fn a_long_sparse_sketch_becomes_dense() {
    for (sparse_max, at, want) in [
        (18, 1, 0x746c_3d9e_a2d4_e4cd),
        (100, 29, 0x3d29_aa1e_dc82_0051),
        (3000, 1649, 0x37a4_a5f1_ec8c_a55a),
    ] {
        let mut sketch = Sketch::empty();
        let mut count = 0u32;
        while sketch.is_sparse() {
            assert!(sketch.bytes.len() <= sparse_max);
            sketch.add(count.to_string().as_bytes(), sparse_max).unwrap();
            count += 1;
        }
        assert_eq!((count, digest(&sketch.bytes)), (at, want), "{sparse_max}");
    }
}

#[test]
fn a_great_value_makes_a_sketch_dense() {
    let mut sketch = Sketch::empty();
    assert_eq!(sketch.raise(5, sparse::MAX_VALUE, SPARSE_MAX), Ok(true));
    assert!(sketch.is_sparse());
    sketch.cache(77);
    assert_eq!(sketch.raise(6, sparse::MAX_VALUE + 1, SPARSE_MAX), Ok(true));
    assert!(!sketch.is_sparse());
    assert_eq!(sketch.registers().unwrap()[4..8], [0, 32, 33, 0]);
    assert_eq!(hex(&stored(sketch)[..HEADER]), "48594c4c000000004d00000000000080");
}

#[test]
fn runs_are_split_and_joined() {
    for (before, index, value, after) in [
        ("7fff", 0, 1, "807ffe"),
        ("7fff", 16383, 32, "7ffefc"),
        ("7fff", 64, 3, "3f887fbe"),
        ("7fff", 65, 3, "4040887fbd"),
        ("3f7fbf", 63, 2, "3e847fbf"),
        ("007ffe", 0, 2, "847ffe"),
        ("40007ffe", 0, 2, "847ffe"),
        ("807ffe", 0, 2, "847ffe"),
        ("837ffb", 2, 2, "8184807ffb"),
        ("837ffb", 0, 2, "84827ffb"),
        ("807ffe", 1, 1, "817ffd"),
        ("8000807ffc", 1, 1, "827ffc"),
        ("8100807ffb", 2, 1, "837ffb"),
        ("8200807ffa", 3, 1, "83807ffa"),
        ("8384807ff9", 5, 2, "83857ff9"),
        // Only runs next to the change are joined.
        ("848488007ffb", 2, 4, "84848c007ffb"),
    ] {
        let bytes = |text: &str| -> Vec<u8> {
            let digits = text.as_bytes().chunks(2).map(|d| std::str::from_utf8(d).unwrap());
            digits.map(|d| u8::from_str_radix(d, 16).unwrap()).collect()
        };
        let mut sketch = sparse_of(&bytes(before));
        assert_eq!(sketch.raise(index, value, SPARSE_MAX), Ok(true), "{before} {index}");
        assert_eq!(hex(sketch.body()), after, "{before} {index}");
        assert_eq!(sketch.registers().unwrap()[index], value);
        assert_eq!(sketch.raise(index, value, SPARSE_MAX), Ok(false), "{before} {index}");
    }
}

#[test]
fn only_valid_headers_are_sketches() {
    let header = |encoding: u8, len: usize| {
        let mut bytes = b"HYLL".to_vec();
        bytes.push(encoding);
        bytes.resize(len, 0);
        bytes
    };
    let dense_len = HEADER + dense::BYTES;
    for (bytes, want) in [
        (header(SPARSE, HEADER), true),
        (header(SPARSE, 100), true),
        (header(SPARSE, 100_000), true),
        (header(DENSE, dense_len), true),
        (header(DENSE, dense_len + 1), false),
        (header(DENSE, dense_len - 1), false),
        (header(DENSE, HEADER), false),
        (header(2, 100), false),
        (header(SPARSE, HEADER - 1), false),
        (b"HYLM\x01 and more than that".to_vec(), false),
        (b"1234567890123456".to_vec(), false),
        (Vec::new(), false),
    ] {
        assert_eq!(
            from_bytes(&bytes).is_some(),
            want,
            "{} {}",
            hex(&bytes[..16.min(bytes.len())]),
            bytes.len()
        );
    }
}

#[test]
fn runs_that_do_not_fit_are_corrupt() {
    for opcodes in [&b""[..], b"\x7f\xfe", b"\x7f\xff\x00", b"\x7f\xff\x80", b"\x7f"] {
        let mut sketch = sparse_of(opcodes);
        assert_eq!(sketch.estimate(), Err(Corrupt), "{opcodes:?}");
        assert_eq!(sketch.registers(), Err(Corrupt), "{opcodes:?}");
        assert_eq!(sketch.make_dense(), Err(Corrupt), "{opcodes:?}");
        assert_eq!(sketch.raise(0, 40, SPARSE_MAX), Err(Corrupt), "{opcodes:?}");
        assert_eq!(sketch.raise(0, 4, 0), Err(Corrupt), "{opcodes:?}");
        assert!(sketch.into_changed().is_none(), "{opcodes:?}");
    }
    // Registers that exist can still be raised; others cannot.
    let mut short = sparse_of(b"\x3f");
    assert_eq!(short.raise(63, 1, SPARSE_MAX), Ok(true));
    assert_eq!(short.raise(64, 1, SPARSE_MAX), Err(Corrupt));
    assert_eq!(short.body(), b"\x3e\x80");
}

#[test]
fn an_opcode_that_is_cut_off_is_corrupt() {
    // With a zero in place of the missing byte, the runs would add up to all registers. In the last
    // one, they do without the opcode.
    for opcodes in [&b"\x40\xff\x7e\xff\x40"[..], b"\x43\xff\x7b\xff\x40", b"\x7f\xff\x40"] {
        let mut sketch = sparse_of(opcodes);
        assert_eq!(sketch.estimate(), Err(Corrupt), "{opcodes:?}");
        assert_eq!(sketch.registers(), Err(Corrupt), "{opcodes:?}");
        assert_eq!(sketch.make_dense(), Err(Corrupt), "{opcodes:?}");
        assert!(sketch.into_changed().is_none(), "{opcodes:?}");
    }
    let mut sketch = sparse_of(b"\x40\xff\x7e\xfe\x40");
    let last = REGISTERS - 1;
    assert_eq!(sketch.raise(last, 1, SPARSE_MAX), Err(Corrupt));
    assert!(sketch.into_changed().is_none());
}

#[test]
fn estimates_are_near_the_truth() {
    let mut sketch = Sketch::empty();
    let mut checkpoint = 1;
    for n in 1..=100_000u64 {
        sketch.add(&n.to_le_bytes(), SPARSE_MAX).unwrap();
        if n == checkpoint {
            let error = sketch.estimate().unwrap().abs_diff(n) as f64;
            let standard = 1.04 / (REGISTERS as f64).sqrt();
            assert!(error <= (4.0 * standard * n as f64).ceil(), "{n}: off by {error}");
            checkpoint *= 10;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn both_encodings_agree_with_the_model(
        raises in prop::collection::vec((prop_oneof![0..300usize, 0..REGISTERS], 1..=32u8), 0..300),
        sparse_max in prop_oneof![Just(100_000usize), 18..600usize],
    ) {
        let mut model = vec![0; REGISTERS];
        let (mut sparse, mut dense) = (Sketch::empty(), Sketch::empty());
        dense.make_dense().unwrap();
        for (index, value) in raises {
            let raised = Ok(model[index] < value);
            model[index] = value.max(model[index]);
            prop_assert_eq!(sparse.raise(index, value, sparse_max), raised);
            prop_assert_eq!(dense.raise(index, value, sparse_max), raised);
            prop_assert!(sparse.bytes.len() <= sparse_max || !sparse.is_sparse());
        }
        prop_assert_eq!(sparse.registers().unwrap(), model.clone());
        prop_assert_eq!(dense.registers().unwrap(), model);
        prop_assert_eq!(sparse.estimate(), dense.estimate());
        sparse.make_dense().unwrap();
        prop_assert_eq!(stored(sparse), stored(dense));
    }

    #[test]
    fn any_opcodes_are_read_without_harm(
        opcodes in prop::collection::vec(any::<u8>(), 0..600),
        raises in prop::collection::vec((0..REGISTERS, 1..=52u8), 0..20),
    ) {
        let mut sketch = sparse_of(&opcodes);
        for (index, value) in raises {
            let _ = sketch.raise(index, value, SPARSE_MAX);
        }
        prop_assert_eq!(sketch.estimate().is_ok(), sketch.registers().is_ok());
        prop_assert_eq!(sketch.estimate().is_ok(), sketch.make_dense().is_ok());
    }
}
