//! Sets.

pub mod combine;
mod encoding;
pub mod random;
pub mod read;
pub mod scan;
pub mod write;

pub(super) use encoding::restored;

use super::{ErrorText, KeySpec, arg, key, tail};
use flagstone_wire::resp::Args;

/// Key spec of commands that read members.
const READS: &[KeySpec] = &[KeySpec::one(1, key!(RO | ACCESS))];
/// Key spec of commands that return only the number of members or membership.
const LOOKS: &[KeySpec] = &[KeySpec::one(1, key!(RO))];

/// Returns the key, the first argument of most commands here.
fn key_arg(args: Args<'_>) -> Result<&[u8], ErrorText> {
    arg(args, 1)
}

#[cfg(test)]
mod tests;
