//! LZF, the compression of strings in RDB.
//!
//! The stream consists of runs. A control byte below 32 means that many literals plus one, which
//! follow. Any other refers back: its three high bits are the length less two (seven: another byte
//! with the rest of the length follows), its five low bits and the byte at the end are the distance
//! less one, high bits first.
//!
//! The compressor makes the same choices as liblzf 3.6 in its build with a table of 2^16 positions
//! and the setting "very fast", so that the bytes are those other servers write.

/// Maximum number of literals of a run.
const MAX_LITERALS: usize = 32;
/// Maximum distance of a reference.
const MAX_DISTANCE: usize = 1 << 13;
/// Maximum length of a reference.
const MAX_LENGTH: usize = 264;
/// A reference of three bytes gives at most `MAX_LENGTH` bytes.
const MAX_EXPANSION: u64 = 88;
const TABLE_LEN: usize = 1 << 16;

/// Decompresses `input` to exactly `len` bytes; `None` if the result differs from that. Allocates
/// no memory for a `len` that `input` cannot give.
pub(crate) fn decompress(input: &[u8], len: u64) -> Option<Vec<u8>> {
    if len > (input.len() as u64).saturating_mul(MAX_EXPANSION) {
        return None;
    }
    let len = usize::try_from(len).ok()?;
    let mut out = Vec::with_capacity(len);
    let mut input = input;
    while !input.is_empty() {
        input = decompress_run(input, &mut out, len)?;
    }
    (out.len() == len).then_some(out)
}

/// Distance up to which a run may refer back.
pub(crate) const WINDOW: usize = MAX_DISTANCE;
/// Maximum size of a run in bytes.
pub(crate) const MAX_RUN: usize = 1 + MAX_LITERALS;

/// Decompresses one run behind `out`, which does not grow beyond `max_len`. Returns the rest of the
/// input; `None` if it is malformed.
pub(crate) fn decompress_run<'a>(
    input: &'a [u8],
    out: &mut Vec<u8>,
    max_len: usize,
) -> Option<&'a [u8]> {
    let (control, rest) = input.split_first()?;
    let control = usize::from(*control);
    if control < MAX_LITERALS {
        let (literals, rest) = rest.split_at_checked(control + 1)?;
        out.extend_from_slice(literals);
        return (out.len() <= max_len).then_some(rest);
    }
    let (long, rest) = if control >> 5 == 7 { rest.split_first()? } else { (&0, rest) };
    let (low, rest) = rest.split_first()?;
    let length = (control >> 5) + usize::from(*long) + 2;
    let distance = ((control & 0x1f) << 8) + usize::from(*low) + 1;
    let start = out.len().checked_sub(distance)?;
    if out.len() + length > max_len {
        return None;
    }
    copy_back(out, start, length);
    Some(rest)
}

/// Appends `length` bytes of `out` from `start` on; the source may overlap the bytes being
/// appended.
fn copy_back(out: &mut Vec<u8>, start: usize, length: usize) {
    if start + length <= out.len() {
        out.extend_from_within(start..start + length);
    } else {
        for at in start..start + length {
            out.push(out[at]);
        }
    }
}

/// Compresses successive strings with one table.
pub(crate) struct Compressor {
    /// For each hash of three bytes, `base` plus the last position at which they were seen. Entries
    /// of at most `base` are of earlier inputs; so is the first byte of this one, which is never
    /// referred to.
    table: Vec<u32>,
    base: u32,
}

impl Compressor {
    pub(crate) fn new() -> Self {
        Compressor { table: vec![0; TABLE_LEN], base: 0 }
    }

    /// Compresses `input` to at most `max_len` bytes; `None` if that is impossible.
    pub(crate) fn compress(&mut self, input: &[u8], max_len: usize) -> Option<Vec<u8>> {
        let input_len = u32::try_from(input.len()).ok()?;
        if input.len() < 3 || max_len == 0 {
            return None;
        }
        if self.base.checked_add(input_len).is_none() {
            self.table.fill(0);
            self.base = 0;
        }
        let mut out = Runs::new(max_len);
        let complete = self.compress_into(input, &mut out);
        self.base += input_len;
        complete.then_some(out.bytes)
    }

    /// Compresses `input` to `out`; returns true if all of it fitted.
    fn compress_into(&mut self, input: &[u8], out: &mut Runs) -> bool {
        let mut at = 0;
        while at + 2 < input.len() {
            match self.seen_before(input, at) {
                None => {
                    if out.bytes.len() >= out.max_len {
                        return false;
                    }
                    out.literal(input[at]);
                    at += 1;
                }
                Some(earlier) => {
                    if !out.has_room_for_reference() {
                        return false;
                    }
                    let length = match_length(input, earlier, at);
                    out.reference(at - earlier, length);
                    at += length;
                    if at + 2 >= input.len() {
                        break;
                    }
                    self.record(input, at - 2);
                    self.record(input, at - 1);
                }
            }
        }
        if out.bytes.len() + 3 > out.max_len {
            return false;
        }
        input[at..].iter().for_each(|&byte| out.literal(byte));
        out.end_run();
        true
    }

    /// Records the position `at` for its three bytes, and returns the entry that it replaces.
    fn record(&mut self, input: &[u8], at: usize) -> u32 {
        let [high, middle, low] = [input[at], input[at + 1], input[at + 2]].map(u32::from);
        let word = high << 16 | middle << 8 | low;
        let slot = (word >> 8).wrapping_sub(word.wrapping_mul(5)) as usize % TABLE_LEN;
        std::mem::replace(&mut self.table[slot], self.base + at as u32)
    }

    /// Returns an earlier position, near enough, of the same three bytes as at `at`.
    fn seen_before(&mut self, input: &[u8], at: usize) -> Option<usize> {
        let entry = self.record(input, at);
        let earlier = entry.checked_sub(self.base).filter(|&earlier| earlier > 0)? as usize;
        (at - earlier <= MAX_DISTANCE && input[earlier..earlier + 3] == input[at..at + 3])
            .then_some(earlier)
    }
}

/// Returns how many bytes at `at` equal those at `earlier`, where three are known to be equal.
fn match_length(input: &[u8], earlier: usize, at: usize) -> usize {
    // The end of the input is not always used: liblzf compares the first sixteen at once.
    let limit = match (input.len() - at - 2).min(MAX_LENGTH) {
        limit @ 0..=16 => limit,
        limit => limit.max(19),
    };
    let equal = |length: &usize| input[earlier + length] == input[at + length];
    (3..limit.max(3)).take_while(equal).count() + 3
}

/// Compressed bytes with a run of literals open at the end.
struct Runs {
    bytes: Vec<u8>,
    /// Number of literals of the open run; its control byte, before them, is set at its end.
    literals: usize,
    max_len: usize,
}

impl Runs {
    fn new(max_len: usize) -> Self {
        Runs { bytes: vec![0], literals: 0, max_len }
    }

    fn literal(&mut self, byte: u8) {
        self.bytes.push(byte);
        self.literals += 1;
        if self.literals == MAX_LITERALS {
            self.end_run();
            self.begin_run();
        }
    }

    fn begin_run(&mut self) {
        self.bytes.push(0);
        self.literals = 0;
    }

    fn end_run(&mut self) {
        if self.literals == 0 {
            self.bytes.pop();
        } else {
            let control = self.bytes.len() - self.literals - 1;
            self.bytes[control] = (self.literals - 1) as u8;
        }
    }

    fn has_room_for_reference(&self) -> bool {
        self.bytes.len() - usize::from(self.literals == 0) + 4 < self.max_len
    }

    fn reference(&mut self, distance: usize, length: usize) {
        self.end_run();
        let (distance, length) = (distance - 1, length - 2);
        let high = (distance >> 8) as u8;
        if length < 7 {
            self.bytes.push(high | (length as u8) << 5);
        } else {
            self.bytes.extend([high | 7 << 5, (length - 7) as u8]);
        }
        self.bytes.push(distance as u8);
        self.begin_run();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn roundtrip(input: &[u8]) -> Option<usize> {
        let compressed = Compressor::new().compress(input, input.len())?;
        assert_eq!(decompress(&compressed, input.len() as u64).as_deref(), Some(input));
        Some(compressed.len())
    }

    #[test]
    fn repetition_gets_short() {
        assert_eq!(roundtrip(&[b'a'; 264 * 3]), Some(15));
        for len in 3..400 {
            roundtrip(&vec![7; len]);
        }
    }

    #[test]
    fn one_table_serves_many_inputs() {
        let mut compressor = Compressor::new();
        for round in 0..200u8 {
            let input: Vec<u8> = (0..300u16).map(|i| (i % 50) as u8 ^ (round / 3)).collect();
            let compressed = compressor.compress(&input, input.len()).unwrap();
            assert_eq!(decompress(&compressed, 300).unwrap(), input);
            assert_eq!(Some(compressed), Compressor::new().compress(&input, input.len()));
        }
        compressor.base = u32::MAX - 10;
        assert!(compressor.compress(&[b'x'; 100], 96).is_some());
    }

    #[test]
    fn a_length_the_input_cannot_give_is_refused() {
        assert_eq!(decompress(&[0xe0, 0xff, 0x00], u64::MAX), None);
        assert_eq!(decompress(&[0, b'a'], 1 << 40), None);
        assert_eq!(decompress(&[0xe0, 0xff], 264), None);
        assert_eq!(decompress(&[0x20, 0x00], 3), None);
        assert_eq!(decompress(&[1, b'a'], 2), None);
        assert_eq!(decompress(&[0, b'a', 0x20, 0x00], 4), Some(b"aaaa".to_vec()));
        assert_eq!(decompress(&[0, b'a', 0x20, 0x00], 3), None);
    }

    proptest! {
        #[test]
        fn any_input_comes_back(input in proptest::collection::vec(0u8..4, 0..3000)) {
            roundtrip(&input);
        }

        #[test]
        fn any_bytes_are_decompressed_or_refused(
            input in proptest::collection::vec(any::<u8>(), 0..100), len in 0u64..10_000
        ) {
            if let Some(out) = decompress(&input, len) {
                prop_assert_eq!(out.len() as u64, len);
            }
        }
    }
}
