//! Versions that this server reports.

/// The version of Valkey that this server is compatible with.
pub(crate) const COMPATIBLE_VERSION: &str = "8.1.1";
/// The version of Redis that this server is compatible with.
pub(crate) const REDIS_VERSION: &str = "7.2.4";
