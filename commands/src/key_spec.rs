//! Key specs: where the keys of a command are among its arguments, as COMMAND INFO shows it. Routing
//! and locks find the keys of a command by them.

use flagstone_wire::resp::Args;

/// The positions of keys among a command's arguments, and the access to them.
#[derive(Clone, Copy, Debug)]
pub struct KeySpec {
    /// Bits of [`key`].
    pub flags: u32,
    pub begin: Begin,
    pub find: Find,
}

/// Flags of a key spec, as named by COMMAND INFO.
pub mod key {
    pub const RO: u32 = 1;
    pub const RW: u32 = 1 << 1;
    pub const OW: u32 = 1 << 2;
    pub const RM: u32 = 1 << 3;
    pub const ACCESS: u32 = 1 << 4;
    pub const UPDATE: u32 = 1 << 5;
    pub const INSERT: u32 = 1 << 6;
    pub const DELETE: u32 = 1 << 7;
    pub const NOT_KEY: u32 = 1 << 8;
    pub const INCOMPLETE: u32 = 1 << 9;
    pub const VARIABLE_FLAGS: u32 = 1 << 10;

    pub const NAMES: &[(u32, &str)] = &[
        (RO, "RO"),
        (RW, "RW"),
        (OW, "OW"),
        (RM, "RM"),
        (ACCESS, "access"),
        (UPDATE, "update"),
        (INSERT, "insert"),
        (DELETE, "delete"),
        (NOT_KEY, "not_key"),
        (INCOMPLETE, "incomplete"),
        (VARIABLE_FLAGS, "variable_flags"),
    ];
}

/// The start of the search for keys.
#[derive(Clone, Copy, Debug)]
pub enum Begin {
    Index(usize),
    /// Behind this word, searched from `start` on (negative: backwards from the end).
    Keyword(&'static str, i32),
    Unknown,
}

/// The way to find the keys from there.
#[derive(Clone, Copy, Debug)]
pub enum Find {
    /// Every `step`-th argument up to `last` (relative to the first; negative: from the end of the
    /// arguments); `limit` > 1: only the first 1/limit of the remaining arguments.
    Range { last: i32, step: usize, limit: usize },
    /// A count at `at`, and the keys from `first` on (both relative), every `step`-th.
    KeyNum { at: usize, first: usize, step: usize },
    /// A function that appends the indices, for keys among options in any order. Clients see the
    /// spec as unknown.
    Options(for<'a> fn(Args<'a>, &mut Vec<usize>)),
    /// The keys depend on data, not on the arguments: the command needs undeclared keys.
    Unknown,
}

impl KeySpec {
    /// Returns the spec of one key at argument `index`.
    pub const fn one(index: usize, flags: u32) -> Self {
        Self { flags, begin: Begin::Index(index), find: Find::Range { last: 0, step: 1, limit: 0 } }
    }

    /// Returns the spec of keys from argument `first` to the end, every `step`-th.
    pub const fn to_end(first: usize, step: usize, flags: u32) -> Self {
        Self { flags, begin: Begin::Index(first), find: Find::Range { last: -1, step, limit: 0 } }
    }

    /// Returns the spec of keys behind their count at argument `at`.
    pub const fn numkeys(at: usize, flags: u32) -> Self {
        let find = Find::KeyNum { at: 0, first: 1, step: 1 };
        Self { flags, begin: Begin::Index(at), find }
    }

    /// Returns the spec of keys that do not depend on the arguments.
    pub const fn unknown(flags: u32) -> Self {
        Self { flags, begin: Begin::Unknown, find: Find::Unknown }
    }

    /// Appends the indices of the keys in `args`; `None` if the arguments do not fit.
    pub fn find(&self, args: Args<'_>, out: &mut Vec<usize>) -> Option<()> {
        let len = args.len();
        let begin = match self.begin {
            Begin::Index(index) => index,
            Begin::Keyword(word, start) => {
                let is_word = |i: &usize| {
                    args.get(*i).is_some_and(|a| a.eq_ignore_ascii_case(word.as_bytes()))
                };
                let found = if start >= 0 {
                    (start as usize..len).find(is_word)
                } else {
                    (1..=len.checked_sub(start.unsigned_abs() as usize)?).rev().find(is_word)
                };
                match found {
                    Some(index) => index + 1,
                    None => return Some(()),
                }
            }
            Begin::Unknown => 0,
        };
        match self.find {
            Find::Range { last, step, limit } => {
                if begin >= len {
                    return None;
                }
                let end = match last {
                    0.. => begin + last as usize,
                    -1 if limit > 1 => begin + (len - begin) / limit - 1,
                    _ => len.checked_sub(last.unsigned_abs() as usize)?,
                };
                if end >= len {
                    return None;
                }
                out.extend((begin..=end).step_by(step));
            }
            Find::KeyNum { at, first, step } => {
                let count = flagstone_wire::num::parse_i64(args.get(begin + at)?)?;
                let count = usize::try_from(count).ok().filter(|&n| n <= len)?;
                let first = begin + first;
                if count > 0 && first + (count - 1) * step >= len {
                    return None;
                }
                out.extend((0..count).map(|i| first + i * step));
            }
            Find::Options(find) => find(args, out),
            Find::Unknown => {}
        }
        Some(())
    }
}
