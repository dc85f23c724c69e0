use super::*;

#[test]
fn integers_are_canonical_only() {
    for (text, want) in [
        ("0", Some(0)),
        ("-1", Some(-1)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("-0", None),
        ("01", None),
        ("+1", None),
        ("", None),
        ("1 ", None),
    ] {
        assert_eq!(parse_int(text.as_bytes()), want, "{text}");
        if let Some(n) = want {
            assert_eq!(int_len(n), text.len());
        }
    }
}

#[test]
fn writes_grow_into_chunks() {
    let mut s = Str::new(b"hello");
    s.write_at(3 * CHUNK + 5, b"world").unwrap();
    assert_eq!(s.len(), 3 * CHUNK + 10);
    assert_eq!(&*s.range(0..6).unwrap(), b"hello\0");
    assert_eq!(&*s.range(3 * CHUNK + 4..3 * CHUNK + 10).unwrap(), b"\0world");
    s.write_at(CHUNK - 2, b"abcd").unwrap();
    assert_eq!(&*s.range(CHUNK - 3..CHUNK + 3).unwrap(), b"\0abcd\0");
}

#[test]
fn growing_allocates_nothing() {
    let mut s = Str::new(b"12");
    s.grow(1).unwrap();
    assert_eq!(s.encoding(), "int");
    s.grow(5).unwrap();
    assert_eq!(&*s.whole().unwrap(), b"12\0\0\0");
    s.grow(100 * CHUNK).unwrap();
    s.grow(1000 * CHUNK + 1).unwrap();
    assert_eq!(s.len(), 1000 * CHUNK + 1);
    assert!(s.memory() < 2 * CHUNK);
    assert_eq!(&*s.range(1000 * CHUNK - 1..1000 * CHUNK + 1).unwrap(), b"\0\0");
}

#[test]
fn pieces_leave_out_holes() {
    let mut s = Str::from_chunks(4 * CHUNK, BTreeMap::from([(0, vec![1; 3]), (2, vec![2])]));
    s.write_at(3 * CHUNK, &[3; CHUNK]).unwrap();
    let pieces = |range: Range<usize>| -> Vec<(usize, usize)> {
        s.pieces(range).unwrap().map(|(at, bytes)| (at, bytes.len())).collect()
    };
    assert_eq!(pieces(0..s.len()), [(0, 3), (2 * CHUNK, 1), (3 * CHUNK, CHUNK)]);
    assert_eq!(pieces(2..2 * CHUNK), [(2, 1)]);
    assert_eq!(pieces(2 * CHUNK + 1..3 * CHUNK + 1), [(3 * CHUNK, 1)]);
    assert_eq!(pieces(5..5), []);
    let int = Str::new(b"1234");
    assert_eq!(&*int.pieces(1..3).unwrap().next().unwrap().1, b"23");
    assert_eq!(&*Str::from_chunks(3, BTreeMap::new()).whole().unwrap(), b"\0\0\0");
}

#[test]
fn many_chunks_are_asked_for_as_a_whole() {
    let len = 100 * CHUNK;
    let mut s = Str::Big(Box::new(BigStr::stored(7, len as u64)));
    assert_eq!(s.require(0..2 * CHUNK).unwrap_err(), Part::Chunks(vec![0, 1]));
    assert!(matches!(s.require(0..50 * CHUNK).unwrap_err(), Part::Chunks(_)));
    assert_eq!(s.require(0..51 * CHUNK).unwrap_err(), Part::All);
    // Behind the end as it was stored there is nothing to be read.
    s.grow(len + 200 * CHUNK).unwrap();
    s.require(len..len + 200 * CHUNK).unwrap();
    assert_eq!(s.require(len - 1..len + CHUNK).unwrap_err(), Part::Chunks(vec![99]));
    assert_eq!(s.require(0..51 * CHUNK).unwrap_err(), Part::All);
}

#[test]
fn a_part_that_is_not_loaded_is_asked_for() {
    let mut big = BigStr::new(&vec![7; 4 * CHUNK]);
    (big.complete, big.holes_from) = (false, 4);
    big.chunks.remove(&2);
    let mut s = Str::Big(Box::new(big));
    assert_eq!(s.range(0..3 * CHUNK).unwrap_err(), Part::Chunks(vec![2]));
    assert_eq!(s.write_at(2 * CHUNK + 1, b"x").unwrap_err(), Part::Chunks(vec![2]));
    s.write_at(2 * CHUNK, &vec![1; CHUNK]).unwrap();
    assert_eq!(s.range(2 * CHUNK..2 * CHUNK + 1).unwrap()[0], 1);
}

#[test]
fn memory_follows_the_chunks() {
    let mut s = Str::from_chunks(9 * CHUNK, BTreeMap::from([(2, vec![2; 5])]));
    s.write_at(2 * CHUNK + 1, &[3; 9]).unwrap();
    s.write_at(6 * CHUNK - 1, &[4; 2]).unwrap();
    let Str::Big(big) = &mut s else { panic!("not in chunks") };
    big.apply_loaded(2, &[1; 100]);
    big.apply_loaded(7, &[1; 100]);
    big.apply_loaded(8, b"");
    assert_eq!(big.held, big.chunks.values().map(Vec::len).sum::<usize>());
    assert_eq!(big.held, 10 + CHUNK + 1 + 100);
}

#[test]
fn a_string_that_is_set_is_as_new_whatever_it_was() {
    let lengths = [0, 1, 5, 44, 45, 46, 60, 100, CHUNK, CHUNK + 1];
    let values =
        lengths.map(|len| vec![b'v'; len]).into_iter().chain([b"12".to_vec(), vec![b'7'; 19]]);
    let values: Vec<Vec<u8>> = values.collect();
    for before in &values {
        for after in &values {
            let mut s = Str::new(before);
            s.set(after);
            let new = Str::new(after);
            assert_eq!(s.whole().unwrap(), *after);
            assert_eq!(s.encoding(), new.encoding(), "{} after {}", after.len(), before.len());
            assert!(s.memory() <= new.memory() + new.len() / 4);
        }
    }
}

/// A stored string, and a model of it: chunks leave memory and come back, between writes and rounds.
#[test]
fn chunks_that_leave_memory_come_back_as_they_were() {
    for seed in 1..20u64 {
        let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let mut rows: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        let mut model = vec![1; 3 * CHUNK];
        let mut big = BigStr::new(&model);
        for _ in 0..200 {
            match random(4) {
                0 => {
                    big.version = 7;
                    for n in std::mem::take(&mut big.dirty) {
                        rows.insert(n, big.chunks[&n].clone());
                    }
                }
                1 => {
                    let unsealed = big.dirty.len();
                    big.shed();
                    assert!(big.version == 0 || big.chunks.len() == unsealed);
                }
                _ => {
                    let (at, len) = (random(12 * CHUNK), random(2 * CHUNK));
                    supply(&mut big, &rows, |big| big.require_write(at, len));
                    big.write_at(at, &vec![seed as u8; len]).unwrap();
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].fill(seed as u8);
                }
            }
            assert_eq!(big.held, big.chunks.values().map(Vec::len).sum::<usize>());
            let whole = 0..model.len();
            if random(3) == 0 {
                supply(&mut big, &rows, |big| big.missing(&whole).map_or(Ok(()), Err));
                assert_eq!(big.range(whole).unwrap(), model, "seed {seed}");
            }
        }
    }
}

/// Loads what a string lacks for an access.
fn supply(
    big: &mut BigStr,
    rows: &BTreeMap<u32, Vec<u8>>,
    access: impl Fn(&BigStr) -> Result<(), Part>,
) {
    match access(big) {
        Ok(()) => {}
        Err(Part::Chunks(chunks)) => {
            let row = |n: &u32| rows.get(n).map_or(&[][..], |row| row);
            chunks.iter().for_each(|n| big.apply_loaded(*n, row(n)));
        }
        Err(Part::All) => {
            rows.iter().for_each(|(n, row)| big.apply_loaded(*n, row));
            big.complete = true;
        }
        Err(other) => panic!("{other:?}"),
    }
    access(big).unwrap();
}
