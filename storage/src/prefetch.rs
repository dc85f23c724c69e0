//! Prefetches memory that will be read soon, without waiting for it. Only on x86-64: stable Rust
//! has no such instruction for other processors, where this does nothing.

/// Lower bound of the bytes of a cache line.
const LINE: usize = 64;

/// Prefetches the cache line of an address.
#[inline(always)]
fn prefetch_at(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction, and it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(address);
}

/// Prefetches the cache line in which a value begins.
#[inline(always)]
pub(crate) fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).cast());
}

/// Prefetches all cache lines of a value that begins with one.
#[inline(always)]
pub(crate) fn prefetch_whole<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    (0..size_of::<T>()).step_by(LINE).for_each(|offset| prefetch_at(start.wrapping_add(offset)));
}

/// Prefetches the cache lines of a slice.
#[inline(always)]
pub(crate) fn prefetch_all<T>(values: &[T]) {
    values.iter().step_by((LINE / size_of::<T>().max(1)).max(1)).for_each(prefetch);
}
