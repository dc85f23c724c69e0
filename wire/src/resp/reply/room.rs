//! Asks for the room of a reply before its data is there.

use super::Reply;
use crate::client_memory::SMALL;

impl Reply {
    /// Like [`foresee`](Self::foresee), of a reply that takes at least so many bytes, in strings of any size.
    pub fn foresee_at_least(&mut self, bytes: u64) -> bool {
        self.foresee(usize::try_from(bytes).unwrap_or(usize::MAX), usize::MAX)
    }

    /// Returns true if there is room for `bytes` more bytes of strings, the greatest of which takes
    /// `greatest`; takes none of it. If there is too little, none of them is to be rendered
    /// ([`Reply::is_lost`]): their data need not be loaded.
    pub fn foresee(&mut self, bytes: usize, greatest: usize) -> bool {
        let wanted = self.buf.len().saturating_add(bytes);
        let greatest = self.greatest.max(greatest);
        let fits = wanted <= self.buf.capacity().max(SMALL)
            || self.taken.would_fit(wanted, greatest, self.is_spared);
        if !fits {
            self.discard_rest();
        }
        !self.is_lost()
    }
}
