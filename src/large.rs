//! Input buffers that grow while a large value comes. From a size on they are mappings, which grow
//! where they are and go back to the system when they are freed ([`crate::allocator`]); smaller ones
//! are copied into larger ones.

use crate::allocator::MAPPED;
use bytes::BytesMut;

/// Part of a buffer's length by which it may grow beyond twice that length: the rest of a value then
/// needs no further move.
const SLACK: usize = 8;

/// Makes room for at least `more` bytes, or for `wanted`, the bytes that are expected (0: unknown). A
/// buffer that is no mapping grows to just what is expected, but about by no more than its length: a
/// client gets no memory for bytes that it has only announced.
pub(crate) fn reserve(buf: &mut BytesMut, more: usize, wanted: usize) {
    let room = buf.capacity() - buf.len();
    if room >= more || (wanted != 0 && room >= wanted) {
        return;
    }
    let most = (buf.len() + buf.len() / SLACK).max(more);
    let by = if (1..=most).contains(&wanted) { wanted } else { buf.len().max(more) };
    if wanted == 0 {
        buf.reserve(more);
    } else if buf.capacity() >= MAPPED {
        // Not copied. It may become longer than it has to: that takes no memory.
        buf.reserve(by);
    } else {
        let mut grown = BytesMut::with_capacity(buf.len() + by);
        grown.extend_from_slice(buf);
        *buf = grown;
    }
}

/// Returns the bytes of memory that a buffer takes: of a mapping, the part that was written to.
pub(crate) fn memory(buf: &BytesMut) -> usize {
    if buf.capacity() >= MAPPED { buf.len().max(MAPPED) } else { buf.capacity() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_buffer_grows_to_the_end_of_what_is_expected() {
        let (mut buf, end) = (BytesMut::new(), 1_000_013);
        buf.extend_from_slice(&[7; 1000]);
        while buf.len() < end {
            let has = buf.len();
            reserve(&mut buf, 65_536, end - has);
            assert!(buf.capacity() <= (has * 9 / 4).max(has + 65_536), "{}", buf.capacity());
            buf.resize(buf.capacity().min(end), 8);
        }
        assert_eq!(buf.capacity(), end);
        assert_eq!(memory(&buf), end);
        assert!(buf[..1000].iter().all(|byte| *byte == 7));
    }

    #[test]
    fn a_large_buffer_keeps_its_bytes_and_at_most_doubles() {
        let mut buf = BytesMut::new();
        reserve(&mut buf, 10, MAPPED * 8);
        assert!(buf.capacity() < MAPPED, "nothing has come yet");
        buf.extend_from_slice(&vec![1; MAPPED]);
        reserve(&mut buf, 10, MAPPED * 8);
        assert!((2 * MAPPED..3 * MAPPED).contains(&buf.capacity()), "{}", buf.capacity());
        assert_eq!(memory(&buf), MAPPED, "no byte was written to the rest");
        buf.resize(buf.capacity(), 2);
        let has = buf.len();
        reserve(&mut buf, 10, 100);
        assert!((has + 100..=2 * has).contains(&buf.capacity()), "{}", buf.capacity());
        assert_eq!(memory(&buf), has);
        let at = buf.capacity();
        buf.resize(at - 3, 3);
        reserve(&mut buf, 10, 3);
        assert_eq!(buf.capacity(), at, "what is wanted fits");
        assert!(buf[..MAPPED].iter().all(|byte| *byte == 1) && buf[has..].iter().all(|b| *b == 3));
        reserve(&mut buf, 10, 0);
        assert!(buf.capacity() >= at + 7, "it is not known");
    }
}
