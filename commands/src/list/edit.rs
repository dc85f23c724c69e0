//! Changing lists at any position: LSET, LINSERT, LREM, LTRIM.

use super::read::long_arg;
use super::{grow, key_arg, position, range_of, shrink, shrink_or_delete};
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, arg, error, flag, int_arg, is_word, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::List;
use flagstone_wire::resp::Args;

/// `LSET key index element`
fn lset(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, db, element) = (key_arg(args)?, cx.db, arg(args, 3)?);
    let settings = cx.settings;
    let Some(mut entry) = cx.store.typed_mut::<List>(db, key)? else {
        return Err(error::NO_SUCH_KEY.into());
    };
    let index = int_arg(args, 2)?;
    let mut place = None;
    if let Some(list) = entry.typed::<List>()
        && let Some(at) = position(list.len(), index)
        && let Some(found) = list.seek(at).or_load(db, key)?
    {
        list.require_room(found).or_load(db, key)?;
        place = Some(found);
    }
    grow(&mut entry, settings, element.len());
    let place = place.ok_or(error::INDEX_OUT_OF_RANGE)?;
    if let Some(list) = entry.typed_mut::<List>() {
        list.set(place, element);
    }
    shrink(&mut entry, settings);
    entry.event(NotifyFlags::LIST, "lset");
    cx.out.ok();
    Ok(())
}

/// `LINSERT key BEFORE|AFTER pivot element`
fn linsert(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, db, side) = (key_arg(args)?, cx.db, arg(args, 2)?);
    let (pivot, element) = (arg(args, 3)?, arg(args, 4)?);
    let after = is_word(side, "after");
    if !after && !is_word(side, "before") {
        return Err(error::SYNTAX.into());
    }
    let Some(mut entry) = cx.store.typed_mut::<List>(db, key)? else {
        cx.out.int(0);
        return Ok(());
    };
    let mut place = None;
    if let Some(list) = entry.typed::<List>()
        && let Some(found) = list.find(pivot).or_load(db, key)?
    {
        list.require_room(found).or_load(db, key)?;
        place = Some(found);
    }
    grow(&mut entry, cx.settings, element.len());
    match place.and_then(|place| Some((place, entry.typed_mut::<List>()?))) {
        None => cx.out.int(-1),
        Some((place, list)) => {
            list.insert(place, element, after);
            cx.out.count(list.len() as usize);
            entry.event(NotifyFlags::LIST, "linsert");
        }
    }
    Ok(())
}

/// `LREM key count element`
fn lrem(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, db, element) = (key_arg(args)?, cx.db, arg(args, 3)?);
    let count = long_arg(args, 2)?;
    let most = if count == 0 { u64::MAX } else { count.unsigned_abs() };
    let mut removed = 0;
    if let Some(mut entry) = cx.store.typed_mut::<List>(db, key)?
        && let Some(list) = entry.typed::<List>()
    {
        let matches = list.matches(element, most, count < 0).or_load(db, key)?;
        removed = matches.count();
        if removed > 0
            && let Some(list) = entry.typed_mut::<List>()
        {
            list.remove(&matches, element);
            shrink_or_delete(&mut entry, cx.settings, "lrem");
        }
    }
    cx.out.count(removed as usize);
    Ok(())
}

/// `LTRIM key start stop`
fn ltrim(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, db) = (key_arg(args)?, cx.db);
    let (start, stop) = (int_arg(args, 2)?, int_arg(args, 3)?);
    if let Some(mut entry) = cx.store.typed_mut::<List>(db, key)?
        && let Some(list) = entry.typed::<List>()
    {
        let (first, count) = range_of(list.len(), start, stop);
        list.require_trim(first, count).or_load(db, key)?;
        if count < list.len()
            && let Some(list) = entry.typed_mut::<List>()
        {
            list.trim(first, count);
        }
        shrink_or_delete(&mut entry, cx.settings, "ltrim");
    }
    cx.out.ok();
    Ok(())
}

/// Common declaration of the commands that change a list.
const EDIT: Spec = Spec { group: Group::List, flags: flag!(WRITE), arity: 4, ..Spec::NEW };

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "lset",
        complexity: "O(N) where N is the distance to the nearer end, in nodes of elements.",
        summary: "Sets the element at a position.",
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(RW | UPDATE))],
        run: Run::Keys(lset),
        ..EDIT
    },
    Spec {
        name: "linsert",
        since: "2.2.0",
        complexity: "O(N) where N is the number of elements up to the pivot.",
        summary: "Inserts an element before or after another.",
        arity: 5,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(RW | INSERT))],
        run: Run::Keys(linsert),
        ..EDIT
    },
    Spec {
        name: "lrem",
        complexity: "O(N) where N is the number of elements looked at.",
        summary: "Removes elements equal to a given one.",
        keys: &[KeySpec::one(1, key!(RW | DELETE))],
        run: Run::Keys(lrem),
        ..EDIT
    },
    Spec {
        name: "ltrim",
        complexity: "O(N) where N is the number of elements removed, or kept if these are fewer.",
        summary: "Removes all elements outside of a range.",
        keys: &[KeySpec::one(1, key!(RW | DELETE))],
        run: Run::Keys(ltrim),
        ..EDIT
    },
];
