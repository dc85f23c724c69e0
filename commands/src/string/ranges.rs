//! Parts of strings. Of a big string only the affected chunks are loaded and written.

use super::{bulk_range, grown_len};
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::{Str, Value};
use flagstone_wire::resp::Args;
use std::ops::Range;

const OFFSET_OUT_OF_RANGE: &str = "ERR offset is out of range";

/// Returns the length of a key's string, `None` if the key does not exist.
fn existing_len(cx: &mut Ctx<'_>, name: &[u8]) -> Result<Option<usize>, Stop> {
    match cx.store.peek(cx.db, name)?.map(|entry| &entry.value) {
        None => Ok(None),
        Some(Value::Str(s)) => Ok(Some(s.len())),
        Some(_) => Err(error::WRONG_TYPE.into()),
    }
}

/// Writes into the string of a key, which becomes "raw"; a missing one counts as empty.
fn write(
    cx: &mut Ctx<'_>,
    name: &[u8],
    offset: usize,
    bytes: &[u8],
    event: &'static str,
) -> Outcome {
    let mut entry = cx.store.entry_mut(cx.db, name)?;
    if let Value::Str(s) = &entry.value {
        s.require_write(offset, bytes.len()).or_load(cx.db, name)?;
    } else {
        entry.value = Value::Str(Str::from_vec(Vec::new()));
    }
    let Some(value) = entry.as_str_mut() else { return Ok(()) };
    if offset == value.len() { value.append(bytes) } else { value.write_at(offset, bytes) }
        .or_load(cx.db, name)?;
    cx.out.count(value.len());
    entry.event(NotifyFlags::STRING, event);
    Ok(())
}

/// `APPEND key value`
fn append(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (name, more) = (arg(args, 1)?, arg(args, 2)?);
    let Some(len) = existing_len(cx, name)? else {
        let mut entry = cx.store.entry_mut(cx.db, name)?;
        entry.value = Value::Str(Str::new(more));
        entry.event(NotifyFlags::STRING, "append");
        cx.out.count(more.len());
        return Ok(());
    };
    grown_len(len, more.len(), cx.longest_string())?;
    write(cx, name, len, more, "append")
}

/// `STRLEN key`
fn strlen(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let len = cx.store.string(cx.db, arg(args, 1)?)?.map_or(0, Str::len);
    cx.out.count(len);
    Ok(())
}

/// `SETRANGE key offset value`
fn setrange(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let offset = usize::try_from(int_arg(args, 2)?).map_err(|_| OFFSET_OUT_OF_RANGE)?;
    let (name, bytes) = (arg(args, 1)?, arg(args, 3)?);
    let len = existing_len(cx, name)?;
    if bytes.is_empty() {
        cx.out.count(len.unwrap_or(0));
        return Ok(());
    }
    grown_len(offset, bytes.len(), cx.longest_string())?;
    write(cx, name, offset, bytes, "setrange")
}

/// Returns the bytes from `start` to `end`, both included, of a string of `len`; negative positions
/// count from its end.
fn range_within(len: usize, start: i64, end: i64) -> Range<usize> {
    let len = len as i64;
    let from_front = |index: i64| if index < 0 { (index + len).max(0) } else { index };
    // If both positions are before the front, in the wrong order, the range is empty: clamped, it
    // would be the first byte.
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let (start, end) = (from_front(start), from_front(end).min(len - 1));
    if start > end { 0..0 } else { start as usize..end as usize + 1 }
}

/// `GETRANGE key start end`, and `SUBSTR`
fn getrange(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (start, end) = (int_arg(args, 2)?, int_arg(args, 3)?);
    let name = arg(args, 1)?;
    match cx.store.string(cx.db, name)? {
        Some(s) => {
            let range = range_within(s.len(), start, end);
            bulk_range(cx.out, s, range).or_load(cx.db, name)?;
        }
        None => cx.out.bulk(b""),
    }
    Ok(())
}

/// Declarations of the commands on parts of strings.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "append",
        group: Group::String,
        since: "2.0.0",
        complexity: "O(N) with N the length of what is appended.",
        summary: "Appends to the string of a key; a missing key is created.",
        arity: 3,
        flags: flag!(WRITE | DENYOOM | FAST),
        keys: &[KeySpec::one(1, key!(RW | INSERT))],
        run: Run::Keys(append),
        ..Spec::NEW
    },
    Spec {
        name: "strlen",
        group: Group::String,
        since: "2.2.0",
        summary: "Returns the length of the string of a key.",
        arity: 2,
        flags: flag!(READONLY | FAST),
        keys: &[KeySpec::one(1, key!(RO))],
        run: Run::Keys(strlen),
        ..Spec::NEW
    },
    Spec {
        name: "setrange",
        group: Group::String,
        since: "2.2.0",
        complexity: "O(N) with N the length of what is written.",
        summary: "Overwrites a part of the string of a key, which is extended with zeros if needed.",
        arity: 4,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(RW | UPDATE))],
        run: Run::Keys(setrange),
        ..Spec::NEW
    },
    Spec {
        name: "getrange",
        group: Group::String,
        since: "2.4.0",
        complexity: "O(N) with N the length of the part.",
        summary: "Returns a part of the string of a key.",
        arity: 4,
        flags: flag!(READONLY),
        keys: &[KeySpec::one(1, key!(RO | ACCESS))],
        run: Run::Keys(getrange),
        ..Spec::NEW
    },
    Spec {
        name: "substr",
        group: Group::String,
        complexity: "O(N) with N the length of the part.",
        summary: "Returns a part of the string of a key: the older name of GETRANGE.",
        arity: 4,
        flags: flag!(READONLY),
        keys: &[KeySpec::one(1, key!(RO | ACCESS))],
        run: Run::Keys(getrange),
        ..Spec::NEW
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_the_string() {
        for (len, start, end, want) in [
            (5, 0, -1, 0..5),
            (5, 1, 3, 1..4),
            (5, -3, -2, 2..4),
            (5, -100, 100, 0..5),
            (5, -100, -99, 0..1),
            (5, -99, -100, 0..0),
            (5, 4, 3, 0..0),
            (5, 5, 9, 0..0),
            (0, 0, -1, 0..0),
            (5, i64::MIN, i64::MAX, 0..5),
        ] {
            assert_eq!(range_within(len, start, end), want, "{len} {start} {end}");
        }
    }
}
