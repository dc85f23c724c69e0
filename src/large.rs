//! Large buffers, whose memory returns to the system when they are freed. The allocator keeps freed
//! memory for some seconds, because it is likely to be requested again; a buffer of hundreds of
//! megabytes is rare, and its kept memory would add to all that the value takes afterwards.

use bytes::BytesMut;
use std::mem::MaybeUninit;

/// Size in bytes from which on a buffer is large.
const LARGE: usize = 16 << 20;

/// Number of bytes of a buffer that are moved at once when it grows: as many are there twice.
const PIECE: usize = 4 << 20;

/// A multiple of the size of a memory page in bytes.
const PAGE: usize = 64 << 10;

/// Frees a buffer.
pub(crate) fn free(mut buf: BytesMut) {
    if buf.capacity() >= LARGE {
        buf.clear();
        give_back(buf.spare_capacity_mut());
    }
}

/// Frees a vector.
pub(crate) fn free_vec(mut buf: Vec<u8>) {
    if buf.capacity() >= LARGE {
        buf.clear();
        give_back(buf.spare_capacity_mut());
    }
}

/// Part of a buffer's length by which it may grow beyond twice that length: the rest of a value then
/// needs no further move.
const SLACK: usize = 8;

/// Makes room for at least `more` bytes, or for `wanted`, the bytes that are expected (0: unknown). A
/// buffer grows to just what is expected, but about by no more than its length: a client gets no
/// memory for bytes that it has only announced.
pub(crate) fn reserve(buf: &mut BytesMut, more: usize, wanted: usize) {
    let room = buf.capacity() - buf.len();
    if room >= more || (wanted != 0 && room >= wanted) {
        return;
    }
    if wanted == 0 && buf.len() < LARGE {
        return buf.reserve(more);
    }
    let most = (buf.len() + buf.len() / SLACK).max(more);
    let by = if (1..=most).contains(&wanted) { wanted } else { buf.len().max(more) };
    let mut grown = BytesMut::with_capacity(buf.len() + by);
    if buf.len() < LARGE {
        grown.extend_from_slice(buf);
        *buf = grown;
        return;
    }
    for piece in buf.chunks_mut(PIECE) {
        grown.extend_from_slice(piece);
        give_back(initialised(piece));
    }
    free(std::mem::replace(buf, grown));
}

/// Returns memory whose contents are not needed any more.
fn initialised(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the layout is the same, and only zeros are written through the result.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}

/// Returns the memory of whole pages to the system; the next write gets pages of zeros.
fn give_back(memory: &mut [MaybeUninit<u8>]) {
    let skipped = memory.as_ptr().align_offset(PAGE);
    let Some(pages) = memory.get_mut(skipped..) else { return };
    let bytes = pages.len() / PAGE * PAGE;
    // SAFETY: these are whole pages of a buffer that no other code uses, and that may hold anything.
    // If the system refuses, the memory stays as it is.
    unsafe { libc::madvise(pages.as_mut_ptr().cast(), bytes, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of bytes in these pages that are resident.
    fn resident(memory: &[u8]) -> usize {
        const SMALLEST: usize = 4096;
        let front = memory.as_ptr().align_offset(SMALLEST);
        let pages = (memory.len() - front) / SMALLEST;
        let mut states = vec![0_u8; pages];
        // SAFETY: the pages are part of the slice, and there is a byte of state for each.
        let asked = unsafe {
            libc::mincore(
                memory.as_ptr().add(front).cast_mut().cast(),
                pages * SMALLEST,
                states.as_mut_ptr(),
            )
        };
        assert_eq!(asked, 0);
        states.iter().filter(|state| **state & 1 != 0).count() * SMALLEST
    }

    #[test]
    fn the_memory_of_a_buffer_is_given_back() {
        let mut buf = vec![7_u8; 2 * LARGE];
        assert!(resident(&buf) > 2 * LARGE - PAGE);
        buf.clear();
        give_back(buf.spare_capacity_mut());
        // SAFETY: every byte was written, and is a zero where its page was given back.
        unsafe { buf.set_len(2 * LARGE) };
        assert!(resident(&buf) <= 2 * PAGE, "{}", resident(&buf));
        assert!(buf[PAGE..][..LARGE].iter().all(|byte| *byte == 0));
    }

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
        assert!(buf[..1000].iter().all(|byte| *byte == 7));
    }

    #[test]
    fn a_large_buffer_grows_to_the_wanted_size_and_at_most_doubles() {
        let mut buf = BytesMut::new();
        reserve(&mut buf, 10, LARGE * 8);
        assert!(buf.capacity() < LARGE, "nothing has come yet");
        buf.extend_from_slice(&vec![1; LARGE]);
        reserve(&mut buf, 10, LARGE * 8);
        assert!((2 * LARGE..3 * LARGE).contains(&buf.capacity()), "{}", buf.capacity());
        buf.resize(buf.capacity(), 2);
        let has = buf.len();
        reserve(&mut buf, 10, 100);
        assert!((has + 100..has + 5000).contains(&buf.capacity()), "{}", buf.capacity());
        let at = buf.capacity();
        buf.resize(at - 3, 3);
        reserve(&mut buf, 10, 3);
        assert_eq!(buf.capacity(), at, "what is wanted fits");
        assert!(buf[..LARGE].iter().all(|byte| *byte == 1) && buf[has..].iter().all(|b| *b == 3));
        reserve(&mut buf, 10, 0);
        assert!(buf.capacity() >= 2 * (at - 3), "it is not known");
    }
}
