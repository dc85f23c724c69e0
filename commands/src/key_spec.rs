//! Key specs: where the keys of a command are among its arguments, as COMMAND INFO shows it. Routing
//! and locks find the keys of a command by them.

use bitflags::bitflags;
use flagstone_wire::resp::Args;

/// The positions of keys among a command's arguments, and the access to them.
#[derive(Clone, Copy, Debug)]
pub struct KeySpec {
    pub flags: KeyFlags,
    pub begin: Begin,
    pub find: Find,
}

bitflags! {
    /// Flags of a key spec, named as COMMAND INFO shows them, in its order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyFlags: u32 {
        const RO = 1 << 0;
        const RW = 1 << 1;
        const OW = 1 << 2;
        const RM = 1 << 3;
        #[bitflags(flag_name = "access")]
        const ACCESS = 1 << 4;
        #[bitflags(flag_name = "update")]
        const UPDATE = 1 << 5;
        #[bitflags(flag_name = "insert")]
        const INSERT = 1 << 6;
        #[bitflags(flag_name = "delete")]
        const DELETE = 1 << 7;
        #[bitflags(flag_name = "not_key")]
        const NOT_KEY = 1 << 8;
        #[bitflags(flag_name = "incomplete")]
        const INCOMPLETE = 1 << 9;
        #[bitflags(flag_name = "variable_flags")]
        const VARIABLE_FLAGS = 1 << 10;
    }
}

/// A key among a command's arguments, and the access to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyAccess {
    /// Index among the arguments.
    pub index: usize,
    pub flags: KeyFlags,
}

/// Returns the access to a command's keys where it depends on the arguments.
pub type AccessFinder = fn(Args<'_>) -> KeyFlags;

/// Channels among a command's arguments that its user needs a right to. No right is needed to end a
/// subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    None,
    /// The first argument.
    First,
    /// All arguments.
    All,
    /// All arguments, which are patterns.
    Patterns,
}

/// Returns a set of [`KeyFlags`], as [`flag!`](crate::flag!) does.
#[macro_export]
macro_rules! key {
    ($($name:ident)|+) => {
        $crate::KeyFlags::empty()$(.union($crate::KeyFlags::$name))+
    };
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
    /// The same, where clients see another way, which they follow less exactly.
    ShownAs(&'static Self, for<'a> fn(Args<'a>, &mut Vec<usize>)),
    /// The keys depend on data, not on the arguments: the command needs undeclared keys.
    Unknown,
}

impl Find {
    /// Returns the way that clients see.
    pub const fn shown(self) -> Self {
        match self {
            Self::ShownAs(shown, _) => *shown,
            own => own,
        }
    }
}

impl KeySpec {
    /// Returns the spec of one key at argument `index`.
    pub const fn one(index: usize, flags: KeyFlags) -> Self {
        Self { flags, begin: Begin::Index(index), find: Find::Range { last: 0, step: 1, limit: 0 } }
    }

    /// Returns the spec of keys from argument `first` to the end, every `step`-th.
    pub const fn to_end(first: usize, step: usize, flags: KeyFlags) -> Self {
        Self { flags, begin: Begin::Index(first), find: Find::Range { last: -1, step, limit: 0 } }
    }

    /// Returns the spec of keys behind their count at argument `at`.
    pub const fn numkeys(at: usize, flags: KeyFlags) -> Self {
        let find = Find::KeyNum { at: 0, first: 1, step: 1 };
        Self { flags, begin: Begin::Index(at), find }
    }

    /// Returns the spec of keys that do not depend on the arguments.
    pub const fn unknown(flags: KeyFlags) -> Self {
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
                // As the last argument it has no key behind it.
                let found = if start >= 0 {
                    (start as usize..len.saturating_sub(1)).find(is_word)
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
            Find::Options(find) | Find::ShownAs(_, find) => find(args, out),
            Find::Unknown => {}
        }
        Some(())
    }
}
