//! The program's allocator: mimalloc, with large blocks as mappings of their own.
//!
//! A large block is most often a buffer that grows while a client sends or is sent a value. A mapping
//! grows where it is, or is moved by changes to page tables, so that no byte is copied and no page
//! is taken twice; the first use of a page costs more than to copy one. Pages that no byte was
//! written to take no memory.

use super::MAPPED;
use mimalloc::MiMalloc;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use rustix::mm::{madvise, mmap_anonymous, mremap, munmap};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Greatest alignment in bytes that every mapping has.
const ALIGNED: usize = 4096;

/// Bytes of all mappings, and the most so far.
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Returns the bytes of all mappings, and the most so far.
pub(super) fn mapped() -> (usize, usize) {
    (NOW.load(Ordering::Relaxed), PEAK.load(Ordering::Relaxed))
}

fn count(before: usize, now: usize) {
    if now >= before {
        let sum = NOW.fetch_add(now - before, Ordering::Relaxed) + (now - before);
        PEAK.fetch_max(sum, Ordering::Relaxed);
    } else {
        NOW.fetch_sub(before - now, Ordering::Relaxed);
    }
}

/// Returns true if a block of this layout is a mapping: it says so for as long as the block lives.
fn is_mapped(layout: Layout) -> bool {
    layout.size() >= MAPPED && layout.align() <= ALIGNED
}

/// Creates a mapping of zeros; null if there is none to be had.
fn map(size: usize) -> *mut u8 {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: the system chooses an address where nothing is.
    let Ok(block) = (unsafe { mmap_anonymous(null_mut(), size, protection, flags) }) else {
        return null_mut();
    };
    // Where the program has not refused huge pages, there are far fewer to be taken.
    // SAFETY: the advice changes no contents.
    let _ = unsafe { madvise(block, size, Advice::LinuxHugepage) };
    count(0, size);
    block.cast()
}

/// The allocator.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: each block is given to the one of the two that it came from, which its layout tells.
// Mappings are private, readable, writable, zeroed and aligned to pages.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's layout is valid.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's layout is valid.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !is_mapped(layout) {
            // SAFETY: it came from there, with this layout.
            return unsafe { MiMalloc.dealloc(block, layout) };
        }
        count(layout.size(), 0);
        // SAFETY: it is a whole mapping of this size, and the caller uses it no more.
        let _ = unsafe { munmap(block.cast(), layout.size()) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's size is valid with its alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as the caller says; each way gives a block that has the bytes of the one before.
        unsafe {
            match (is_mapped(layout), is_mapped(wanted)) {
                (false, false) => MiMalloc.realloc(block, layout, size),
                (true, true) => remap(block, layout.size(), size),
                _ => self.replace(block, layout, wanted),
            }
        }
    }
}

/// Changes the size of a mapping, which may move; null if that cannot be had, and it stays.
///
/// # Safety
/// `block` is a mapping of `size` bytes, which is used no more if another one is returned.
unsafe fn remap(block: *mut u8, size: usize, wanted: usize) -> *mut u8 {
    // SAFETY: see above.
    match unsafe { mremap(block.cast(), size, wanted, MremapFlags::MAYMOVE) } {
        Ok(moved) => {
            count(size, wanted);
            moved.cast()
        }
        Err(_) => null_mut(),
    }
}

impl Allocator {
    /// Moves a block into a new one of another kind; null if there is none, and it stays.
    ///
    /// # Safety
    /// As for [`GlobalAlloc::realloc`].
    #[cold]
    unsafe fn replace(&self, block: *mut u8, layout: Layout, wanted: Layout) -> *mut u8 {
        // SAFETY: both blocks are as long as what is copied, and the first is used no more if there
        // is a second.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                new.copy_from_nonoverlapping(block, layout.size().min(wanted.size()));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_its_bytes_while_it_grows_and_shrinks_across_both_kinds() {
        let layout = |size| Layout::from_size_align(size, 16).expect("valid");
        let sizes = [1000, MAPPED - 1, MAPPED, 3 * MAPPED + 5, 64 * MAPPED, MAPPED + 1, 100];
        let mut size = sizes[0];
        // SAFETY: each block is used within its size, with its layout.
        unsafe {
            let mut block = Allocator.alloc_zeroed(layout(size));
            block.write(1);
            for next in sizes {
                block.add(size - 1).write(2);
                block = Allocator.realloc(block, layout(size), next);
                assert!(!block.is_null() && block.read() == 1);
                assert_eq!(block.add(size.min(next) - 1).read(), if next < size { 0 } else { 2 });
                block.add(size.min(next) - 1).write(0);
                block.write(1);
                size = next;
            }
            Allocator.dealloc(block, layout(size));
            let zeros = Allocator.alloc_zeroed(layout(2 * MAPPED));
            assert!(std::slice::from_raw_parts(zeros, 2 * MAPPED).iter().all(|byte| *byte == 0));
            assert!(mapped().0 >= 2 * MAPPED && mapped().1 >= 64 * MAPPED);
            Allocator.dealloc(zeros, layout(2 * MAPPED));
        }
    }

    #[test]
    fn what_no_system_has_is_no_block() {
        let layout = Layout::from_size_align(1 << 60, 16).expect("valid");
        // SAFETY: it gets no block.
        unsafe {
            assert!(Allocator.alloc(layout).is_null());
            let small = Layout::from_size_align(MAPPED, 1).expect("valid");
            let block = Allocator.alloc(small);
            assert!(Allocator.realloc(block, small, 1 << 60).is_null());
            block.write(1);
            Allocator.dealloc(block, small);
        }
    }
}
