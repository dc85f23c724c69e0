//! The values that a hash, set or sorted set keeps with its names.

/// The value kept with a name.
pub(crate) trait Payload: Clone + Send + 'static {
    /// Returns the approximate memory use in bytes.
    fn memory(&self) -> usize;

    /// Returns the approximate size in a packed row in bytes.
    fn packed(&self) -> usize;

    /// Prefetches the memory that the payload refers to.
    fn prefetch(&self) {}
}
