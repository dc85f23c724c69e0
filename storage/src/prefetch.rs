//! Prefetches memory that will be read soon, without waiting for it. Only on x86-64: stable Rust
//! has no such instruction for other processors, where this does nothing.

/// Prefetches the cache line in which a value begins.
#[inline(always)]
pub(crate) fn prefetch<T: ?Sized>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction, and it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(std::ptr::from_ref(value));
}

/// Prefetches the cache lines of a slice.
#[inline(always)]
pub(crate) fn prefetch_all<T>(values: &[T]) {
    /// Lower bound of the bytes of a cache line.
    const LINE: usize = 64;
    values.iter().step_by((LINE / size_of::<T>().max(1)).max(1)).for_each(prefetch);
}
