//! BITOP: combines whole strings bit by bit. The result is built chunk by chunk; a hole that stays
//! a hole is never written.

use crate::{Ctx, Outcome, Stop, arg, error, is_word};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{OrLoad, Part};
use flagstone_storage::value::string::CHUNK;
use flagstone_storage::value::{Str, Value};
use flagstone_wire::resp::Args;
use std::collections::BTreeMap;

/// Bitwise operation of BITOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BitOperation {
    And,
    Or,
    Xor,
    Not,
}

impl BitOperation {
    fn parse(word: &[u8]) -> Result<Self, Stop> {
        [("and", Self::And), ("or", Self::Or), ("xor", Self::Xor), ("not", Self::Not)]
            .into_iter()
            .find(|(name, _)| is_word(word, name))
            .map(|(_, op)| op)
            .ok_or_else(|| error::SYNTAX.into())
    }
}

/// `BITOP AND|OR|XOR|NOT destkey key [key ...]`
pub(super) fn bitop(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let op = BitOperation::parse(arg(args, 1)?)?;
    let target = arg(args, 2)?;
    if op == BitOperation::Not && args.len() != 4 {
        return Err("ERR BITOP NOT must be called with a single source key.".into());
    }
    for at in 3..args.len() {
        let name = arg(args, at)?;
        if let Some(s) = cx.store.string(cx.db, name)? {
            s.require(0..s.len()).or_load(cx.db, name)?;
        }
    }
    cx.store.peek(cx.db, target)?;
    let mut result = Combined::default();
    for at in 3..args.len() {
        let name = arg(args, at)?;
        let entry = cx.store.peek(cx.db, name)?;
        match entry.map(|e| &e.value) {
            Some(Value::Str(s)) => result.add(op, s).or_load(cx.db, name)?,
            _ => result.add_missing_key(op),
        }
    }
    cx.out.count(result.len);
    let value = match result.len {
        0 => Value::Absent,
        len => Value::Str(Str::from_chunks(len, result.chunks)),
    };
    Ok(cx.put_result(target, value, NotifyFlags::STRING, "set")?)
}

/// The combination of the sources added so far.
#[derive(Debug, Default)]
pub(super) struct Combined {
    /// Length of the longest source in bytes.
    len: usize,
    /// Chunks by number; zeros follow a short chunk and replace a missing one.
    chunks: BTreeMap<u32, Vec<u8>>,
    sources: usize,
}

impl Combined {
    /// Combines a source, which must be entirely in memory.
    pub(super) fn add(&mut self, op: BitOperation, s: &Str) -> Result<(), Part> {
        let pieces = s.pieces(0..s.len())?.map(|(at, bytes)| ((at / CHUNK) as u32, bytes));
        match op {
            BitOperation::Not => {
                self.chunks = ones(s.len());
                pieces.for_each(|(n, bytes)| self.merge(n, &bytes, |a, b| a & !b));
            }
            BitOperation::And if self.sources > 0 => {
                let mut before = std::mem::take(&mut self.chunks);
                for (n, bytes) in pieces {
                    if let Some(mut chunk) = before.remove(&n) {
                        chunk.truncate(bytes.len());
                        self.chunks.insert(n, chunk);
                        self.merge(n, &bytes, |a, b| a & b);
                    }
                }
            }
            BitOperation::Xor => pieces.for_each(|(n, bytes)| self.merge(n, &bytes, |a, b| a ^ b)),
            BitOperation::Or | BitOperation::And => {
                pieces.for_each(|(n, bytes)| self.merge(n, &bytes, |a, b| a | b))
            }
        }
        self.len = self.len.max(s.len());
        self.sources += 1;
        Ok(())
    }

    /// Combines a key that does not exist, as zeros.
    pub(super) fn add_missing_key(&mut self, op: BitOperation) {
        if op == BitOperation::And {
            self.chunks.clear();
        }
        self.sources += 1;
    }

    /// Merges stored bytes of a source into a chunk, which is lengthened to hold them.
    fn merge(&mut self, n: u32, bytes: &[u8], merge: impl Fn(u8, u8) -> u8) {
        let chunk = self.chunks.entry(n).or_default();
        if chunk.len() < bytes.len() {
            chunk.resize(bytes.len(), 0);
        }
        for (a, b) in chunk.iter_mut().zip(bytes) {
            *a = merge(*a, *b);
        }
    }
}

/// Returns the chunks of `len` bytes of ones.
fn ones(len: usize) -> BTreeMap<u32, Vec<u8>> {
    let chunk_len = |n: usize| (len - n * CHUNK).min(CHUNK);
    (0..len.div_ceil(CHUNK)).map(|n| (n as u32, vec![0xFF; chunk_len(n)])).collect()
}

#[cfg(test)]
#[path = "combine_tests.rs"]
mod tests;
