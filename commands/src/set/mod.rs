//! Sets.

pub mod combine;
mod encoding;
pub mod random;
pub mod read;
pub mod scan;
pub mod write;

pub(super) use encoding::restored;

use super::{KeySpec, Stop, arg, key, tail};
use flagstone_wire::resp::Args;

/// The key of commands that read members.
const READS: &[KeySpec] = &[KeySpec::one(1, key::RO | key::ACCESS)];
/// The key of commands that tell only how many members there are or whether something is one.
const LOOKS: &[KeySpec] = &[KeySpec::one(1, key::RO)];

/// The key, which is the first argument of most commands here.
fn key_arg(args: Args<'_>) -> Result<&[u8], Stop> {
    arg(args, 1)
}

#[cfg(test)]
mod tests;
