//! The place of a header in replies that are not complete.

/// An aggregate of unknown length, begun by one of the `begin_` methods of [`Reply`](super::Reply).
#[derive(Debug)]
#[must_use = "an aggregate without its length breaks the protocol"]
pub struct Mark {
    /// Offset of the header.
    pub(super) at: usize,
    /// The aggregate's type byte.
    pub(super) prefix: u8,
    /// Elements counted for each announced one: 2 for a map that is sent as an array.
    pub(super) scale: usize,
}
