//! Reasons for refusing a payload.

use thiserror::Error;

/// The reason why a payload was refused; the client gets the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RestoreError {
    #[error("ERR DUMP payload version or checksum are wrong")]
    BadChecksumOrVersion,
    #[error("ERR Bad data format")]
    BadFormat,
    /// The object takes more memory than was allowed.
    #[error("OOM the value takes too much memory")]
    TooLarge,
    /// A module's value, given as its RDB type.
    #[error("ERR Bad data format")]
    Unsupported(u8),
}
