//! The last bytes of the primary's stream that are applied.

use std::collections::VecDeque;

/// Those bytes, of which only the last ones are kept.
#[derive(Debug, Default)]
pub(super) struct AppliedBytes {
    bytes: VecDeque<u8>,
    /// Offset behind them.
    end: u64,
}

impl AppliedBytes {
    /// Appends the bytes from an offset on; at most `kept` stay.
    pub(super) fn push(&mut self, from: u64, bytes: &[u8], kept: usize) {
        if from != self.end {
            self.bytes.clear();
        }
        self.end = from + bytes.len() as u64;
        let bytes = &bytes[bytes.len().saturating_sub(kept)..];
        let surplus = (self.bytes.len() + bytes.len()).saturating_sub(kept);
        self.bytes.drain(..surplus);
        self.bytes.extend(bytes);
    }

    /// Returns the bytes up to an offset, if they end there.
    pub(super) fn up_to(&self, offset: u64) -> Vec<u8> {
        if self.end == offset { self.bytes.iter().copied().collect() } else { Vec::new() }
    }
}
