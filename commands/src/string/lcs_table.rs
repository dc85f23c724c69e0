//! Computes the longest common subsequence of two strings with the textbook table.

use std::ops::Range;

/// A run of bytes in both strings that is part of the common subsequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) a: Range<usize>,
    pub(super) b: Range<usize>,
}

/// The path through the table: for each cell that is no match, a bit that tells if the cell above
/// it (without the last byte of `a`) has a longer subsequence than the one to its left. That
/// suffices to walk back; lengths are not stored.
#[derive(Debug)]
pub(super) struct Table<'a> {
    a: &'a [u8],
    b: &'a [u8],
    /// Bits of all cells; empty if only the length is needed.
    up: Vec<u64>,
    len: u32,
}

impl<'a> Table<'a> {
    /// Computes the table; `walkable` must be true for [`Table::matches`].
    pub(super) fn new(a: &'a [u8], b: &'a [u8], walkable: bool) -> Self {
        let cells = if walkable { a.len() * b.len() } else { 0 };
        let mut up = vec![0u64; cells.div_ceil(64)];
        // Lengths of the row above; overwritten from left to right by the current row's.
        let mut row = vec![0u32; b.len() + 1];
        let mut cell = 0;
        for &x in a {
            let (mut diagonal, mut left) = (0, 0);
            for (&y, length) in b.iter().zip(row.iter_mut().skip(1)) {
                let above = *length;
                *length = if x == y { diagonal + 1 } else { above.max(left) };
                if walkable && x != y && above > left {
                    up[cell / 64] |= 1 << (cell % 64);
                }
                (diagonal, left) = (above, *length);
                cell += 1;
            }
        }
        Self { a, b, up, len: row.last().copied().unwrap_or(0) }
    }

    /// Returns the length of the longest common subsequence in bytes.
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the runs of the subsequence, the last one first.
    pub(super) fn matches(&self) -> Vec<Match> {
        let mut out: Vec<Match> = Vec::new();
        let mut open = false;
        let (mut i, mut j) = (self.a.len(), self.b.len());
        while i > 0 && j > 0 {
            if self.a[i - 1] == self.b[j - 1] {
                i -= 1;
                j -= 1;
                match out.last_mut().filter(|_| open) {
                    Some(run) => (run.a.start, run.b.start) = (i, j),
                    None => out.push(Match { a: i..i + 1, b: j..j + 1 }),
                }
                open = true;
                continue;
            }
            open = false;
            let cell = (i - 1) * self.b.len() + j - 1;
            if self.up[cell / 64] >> (cell % 64) & 1 == 1 {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_come_last_first() {
        let table = Table::new(b"ohmytext", b"mynewtext", true);
        assert_eq!(table.len(), 6);
        let want = [Match { a: 4..8, b: 5..9 }, Match { a: 2..4, b: 0..2 }];
        assert_eq!(table.matches(), want);
    }

    #[test]
    fn empty_strings_have_nothing_in_common() {
        assert_eq!(Table::new(b"", b"abc", true).matches(), []);
        assert_eq!(Table::new(b"abc", b"", false).len(), 0);
    }
}
