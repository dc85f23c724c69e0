//! The sparse encoding: registers as runs of equal values, for few elements. A run is one opcode:
//!
//! | bytes | name | run |
//! |---|---|---|
//! | `00xxxxxx` | zero | 1 to 64 zeros |
//! | `01xxxxxx yyyyyyyy` | xzero | 1 to 16384 zeros |
//! | `1vvvvvxx` | val | 1 to 4 registers of value 1 to 32 |

use super::registers::{Corrupt, REGISTERS};
use smallvec::SmallVec;

/// Maximum value of an opcode's registers.
pub(super) const MAX_VALUE: u8 = 32;

const MAX_ZEROS: usize = 64;
const MAX_VALS: usize = 4;
const XZERO: u8 = 0x40;
const VAL: u8 = 0x80;

/// Number of opcodes that are examined for runs to be joined after a change.
const JOIN_WITHIN: usize = 5;

/// A run of registers, decoded from an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegisterRun {
    pub(super) value: u8,
    pub(super) len: usize,
    /// Length of its opcode in bytes.
    pub(super) bytes: usize,
}

/// Decodes the first run of `opcodes`; `None` if there is none, or its opcode is cut off.
fn decode(opcodes: &[u8]) -> Option<RegisterRun> {
    let first = *opcodes.first()?;
    let low = usize::from(first & 0x3f);
    Some(match first & (VAL | XZERO) {
        0 => RegisterRun { value: 0, len: low + 1, bytes: 1 },
        XZERO => {
            let second = usize::from(*opcodes.get(1)?);
            RegisterRun { value: 0, len: (low << 8 | second) + 1, bytes: 2 }
        }
        _ => RegisterRun {
            value: (first >> 2 & 0x1f) + 1,
            len: usize::from(first & 3) + 1,
            bytes: 1,
        },
    })
}

/// Returns all runs, in order, up to an opcode that is cut off.
pub(super) fn runs(opcodes: &[u8]) -> impl Iterator<Item = RegisterRun> {
    let mut rest = opcodes;
    std::iter::from_fn(move || {
        let run = decode(rest)?;
        rest = rest.get(run.bytes..).unwrap_or_default();
        Some(run)
    })
}

/// Calls `f` for every run with its first register; the runs must add up to all registers exactly,
/// and no opcode may be cut off.
pub(super) fn for_each(
    opcodes: &[u8],
    mut f: impl FnMut(usize, RegisterRun),
) -> Result<(), Corrupt> {
    let (mut first, mut read) = (0, 0);
    for run in runs(opcodes) {
        if first + run.len > REGISTERS {
            return Err(Corrupt);
        }
        f(first, run);
        first += run.len;
        read += run.bytes;
    }
    if first == REGISTERS && read == opcodes.len() { Ok(()) } else { Err(Corrupt) }
}

/// Opcodes to be written into a sketch.
type Opcodes = SmallVec<[u8; 8]>;

fn push_zeros(out: &mut Opcodes, len: usize) {
    match len.checked_sub(1) {
        None => {}
        Some(n) if len <= MAX_ZEROS => out.push(n as u8),
        Some(n) => out.extend_from_slice(&[XZERO | (n >> 8) as u8, n as u8]),
    }
}

fn push_value(out: &mut Opcodes, value: u8, len: usize) {
    if let Some(n) = len.checked_sub(1) {
        out.push(VAL | (value - 1) << 2 | n as u8);
    }
}

/// Returns the opcode of an empty sketch: zeros only.
pub(super) fn empty() -> [u8; 2] {
    let n = REGISTERS - 1;
    [XZERO | (n >> 8) as u8, n as u8]
}

/// The replacement of one opcode by up to three, which raises a register.
#[derive(Debug)]
pub(super) struct OpcodeChange {
    at: usize,
    old: usize,
    new: Opcodes,
    /// Position of the previous opcode: joining runs starts there.
    before: usize,
}

/// Returns the change that raises a register to `value` (at most [`MAX_VALUE`]); `None` if it is
/// not less already.
pub(super) fn raise(
    opcodes: &[u8],
    index: usize,
    value: u8,
) -> Result<Option<OpcodeChange>, Corrupt> {
    let (mut at, mut before, mut first) = (0, 0, 0);
    let mut found = None;
    for run in runs(opcodes) {
        if index < first + run.len {
            found = Some(run);
            break;
        }
        (before, at, first) = (at, at + run.bytes, first + run.len);
    }
    let run = found.ok_or(Corrupt)?;
    if run.value >= value {
        return Ok(None);
    }
    let (left, right) = (index - first, first + run.len - 1 - index);
    let push = |out: &mut Opcodes, len| match run.value {
        0 => push_zeros(out, len),
        value => push_value(out, value, len),
    };
    let mut new = Opcodes::new();
    push(&mut new, left);
    push_value(&mut new, value, 1);
    push(&mut new, right);
    Ok(Some(OpcodeChange { at, old: run.bytes, new, before }))
}

impl OpcodeChange {
    /// Returns the number of bytes by which the opcodes become longer.
    pub(super) fn growth(&self) -> usize {
        self.new.len().saturating_sub(self.old)
    }

    /// Applies the change to the opcodes, which begin at `start`, and joins runs next to it.
    pub(super) fn apply(self, bytes: &mut Vec<u8>, start: usize) {
        let at = start + self.at;
        bytes.splice(at..at + self.old, self.new);
        join(bytes, start + self.before);
    }
}

/// Joins adjacent runs of one value, where one opcode can hold both.
fn join(bytes: &mut Vec<u8>, mut at: usize) {
    for _ in 0..JOIN_WITHIN {
        let Some(run) = bytes.get(at..).and_then(decode) else { return };
        let next = bytes.get(at + run.bytes..).and_then(decode);
        let fits = |next: RegisterRun| next.value == run.value && run.len + next.len <= MAX_VALS;
        if run.value > 0 && next.is_some_and(fits) {
            bytes.remove(at);
            // The length is in the lowest bits of the remaining opcode.
            bytes[at] += run.len as u8;
        } else {
            at += run.bytes;
        }
    }
}
