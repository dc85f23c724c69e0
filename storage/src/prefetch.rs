//! Asks the processor for memory that will be read soon, without waiting for it. Only on x86-64: stable
//! Rust has no such instruction for others, where nothing is done, and reads wait.

/// Has the processor fetch the cache line in which a value begins.
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

/// Has the processor fetch the cache lines of some values.
#[inline(always)]
pub(crate) fn prefetch_all<T>(values: &[T]) {
    /// Bytes of a cache line, or less.
    const LINE: usize = 64;
    values.iter().step_by((LINE / size_of::<T>().max(1)).max(1)).for_each(prefetch);
}
