//! PFADD, PFCOUNT and PFMERGE.

use super::NOT_A_SKETCH;
use super::estimate::Histogram;
use super::registers::REGISTERS;
use super::sketch::Sketch;
use crate::bitmap::string_of;
use crate::{Ctx, Outcome, Stop, arg};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Value;
use flagstone_wire::resp::Args;

/// `PFADD key [element …]`
pub(super) fn pfadd(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let name = arg(args, 1)?;
    let sparse_max = cx.settings.hll_sparse_max_bytes;
    let mut entry = cx.store.entry_mut(cx.db, name)?;
    let (mut sketch, mut raised) = match string_of(&entry)? {
        Some(s) => (Sketch::open(s).or_load(cx.db, name)?.ok_or(NOT_A_SKETCH)?, false),
        None => (Sketch::empty(), true),
    };
    let mut added = Ok(());
    for element in args.iter().skip(2) {
        match sketch.add(element, sparse_max) {
            Ok(changed) => raised |= changed,
            // Elements added before the error stay.
            Err(corrupt) => {
                added = Err(corrupt.into());
                break;
            }
        }
    }
    if added.is_ok() && raised {
        sketch.invalidate();
    }
    if let Some(changed) = sketch.into_changed() {
        entry.value = Value::Str(changed);
    }
    if added.is_ok() && raised {
        entry.event(NotifyFlags::STRING, "pfadd");
    }
    cx.out.int(i64::from(raised));
    added
}

/// `PFCOUNT key [key …]`
pub(super) fn pfcount(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let count = if args.len() == 2 {
        count_one(cx, arg(args, 1)?)?
    } else {
        Histogram::of(union(cx, args)?.registers.into_iter()).estimate()
    };
    cx.out.int(count as i64);
    Ok(())
}

/// Returns the estimate of one sketch, and caches it in the sketch.
fn count_one(cx: &mut Ctx<'_>, name: &[u8]) -> Result<u64, Stop> {
    // Nothing is written to what another server owns.
    let is_read_only = cx.store.mirrors(name);
    let Some(s) = cx.store.string(cx.db, name)? else { return Ok(0) };
    let mut sketch = Sketch::open(s).or_load(cx.db, name)?.ok_or(NOT_A_SKETCH)?;
    if let Some(count) = sketch.cached() {
        return Ok(count);
    }
    let count = sketch.estimate()?;
    if is_read_only {
        return Ok(count);
    }
    sketch.cache(count);
    if let Some(changed) = sketch.into_changed() {
        cx.store.entry_mut(cx.db, name)?.value = Value::Str(changed);
        if cx.is_heard() {
            // As a read it says nothing by itself.
            cx.say(&[b"PFCOUNT", name]);
        }
    }
    Ok(count)
}

/// The union of several sketches.
struct Union {
    registers: Vec<u8>,
    any_dense: bool,
}

/// Returns the maximum of each register over all keys; a key that does not exist counts as empty.
fn union(cx: &mut Ctx<'_>, args: Args<'_>) -> Result<Union, Stop> {
    let mut union = Union { registers: vec![0; REGISTERS], any_dense: false };
    for name in args.iter().skip(1) {
        let Some(s) = cx.store.string(cx.db, name)? else { continue };
        let sketch = Sketch::open(s).or_load(cx.db, name)?.ok_or(NOT_A_SKETCH)?;
        union.any_dense |= !sketch.is_sparse();
        sketch.merge_into(&mut union.registers)?;
    }
    Ok(union)
}

/// `PFMERGE destkey [sourcekey …]`
pub(super) fn pfmerge(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let union = union(cx, args)?;
    let name = arg(args, 1)?;
    let sparse_max = cx.settings.hll_sparse_max_bytes;
    let mut entry = cx.store.entry_mut(cx.db, name)?;
    let mut sketch = match string_of(&entry)? {
        Some(s) => Sketch::open(s).or_load(cx.db, name)?.ok_or(NOT_A_SKETCH)?,
        None => Sketch::empty(),
    };
    if union.any_dense {
        sketch.replace(&union.registers);
    } else {
        for (index, &value) in union.registers.iter().enumerate().filter(|(_, v)| **v > 0) {
            sketch.raise(index, value, sparse_max)?;
        }
    }
    sketch.invalidate();
    if let Some(changed) = sketch.into_changed() {
        entry.value = Value::Str(changed);
    }
    entry.event(NotifyFlags::STRING, "pfadd");
    cx.out.ok();
    Ok(())
}
