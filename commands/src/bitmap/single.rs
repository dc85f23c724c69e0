//! SETBIT and GETBIT: commands on one bit.

use super::{bit_offset, string_of};
use crate::{Ctx, Outcome, arg};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{OrLoad, Part};
use flagstone_storage::value::{Str, Value};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;

/// `SETBIT key offset value`
pub(super) fn setbit(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let name = arg(args, 1)?;
    let offset = bit_offset(cx, arg(args, 2)?)?;
    let on = match parse_i64(arg(args, 3)?) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err("ERR bit is not an integer or out of range".into()),
    };
    let byte = (offset / 8) as usize;
    let mask = 0x80 >> (offset % 8);
    let mut entry = cx.store.entry_mut(cx.db, name)?;
    let (len, old) = match string_of(&entry)? {
        Some(s) => {
            // The chunk of the old end may be written to as well.
            s.require_write(byte, 1).or_load(cx.db, name)?;
            (s.len(), byte_at(s, byte).or_load(cx.db, name)?)
        }
        None => (0, 0),
    };
    let was_on = old & mask != 0;
    if len <= byte || was_on != on {
        let changed = &mut *entry;
        if changed.value.is_absent() {
            changed.value = Value::Str(Str::from_vec(Vec::new()));
        }
        if let Value::Str(s) = &mut changed.value {
            if on {
                s.write_at(byte, &[old | mask]).or_load(cx.db, name)?;
            } else if was_on {
                s.write_at(byte, &[old & !mask]).or_load(cx.db, name)?;
            } else {
                s.grow(byte + 1).or_load(cx.db, name)?;
            }
        }
        entry.event(NotifyFlags::STRING, "setbit");
    }
    cx.out.int(i64::from(was_on));
    Ok(())
}

/// `GETBIT key offset`
pub(super) fn getbit(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let name = arg(args, 1)?;
    let offset = bit_offset(cx, arg(args, 2)?)?;
    let byte = match cx.store.string(cx.db, name)? {
        Some(s) => byte_at(s, (offset / 8) as usize).or_load(cx.db, name)?,
        None => 0,
    };
    cx.out.int(i64::from(byte >> (7 - offset % 8) & 1));
    Ok(())
}

/// Returns a byte of a string; zero beyond its end.
fn byte_at(s: &Str, at: usize) -> Result<u8, Part> {
    if at >= s.len() {
        return Ok(0);
    }
    Ok(s.pieces(at..at + 1)?.next().map_or(0, |(_, bytes)| bytes[0]))
}
