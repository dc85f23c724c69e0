//! The registers of a sketch: their number, and how far their values go.

/// Number of bits of an element's hash that select its register.
pub(super) const INDEX_BITS: u32 = 14;
pub(super) const REGISTERS: usize = 1 << INDEX_BITS;

/// Maximum rank of an element: the rest of its hash is zeros.
pub(super) const MAX_RANK: u8 = 64 - INDEX_BITS as u8 + 1;

/// Error: the runs of a sparse sketch do not add up to its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Corrupt;
