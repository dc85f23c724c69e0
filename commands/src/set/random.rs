//! SPOP and SRANDMEMBER: members drawn at random.

use super::{READS, encoding, key_arg};
use crate::DataSettings;
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, draws, error, flag, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{EntryMut, OrLoad};
use flagstone_storage::value::{Set, SetEncoding, Typed};
use flagstone_storage::words::{NAMES_AT_ONCE, RemovalCause};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;
use std::collections::HashSet;

/// Ratio of popped to remaining members from which on the remaining ones are moved to a new set, in
/// its smallest encoding.
const FEW_ARE_LEFT: u64 = 5;

/// `SPOP key [count]`
fn spop(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    match args.len() {
        2 => {}
        3 => return spop_count(cx, args),
        _ => return Err(error::SYNTAX.into()),
    }
    let popped = match cx.store.typed_mut::<Set>(cx.db, key)? {
        Some(mut entry) => {
            let popped = draw_names(&entry, 1).or_load(cx.db, key)?;
            remove_all(&mut entry, &popped);
            entry.removal_event(NotifyFlags::SET, "spop");
            say_removed(cx, key, &popped);
            popped
        }
        None => Vec::new(),
    };
    cx.out.bulk_or_null(popped.first().map(|name| &**name));
    Ok(())
}

/// `SPOP key count`
fn spop_count(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, settings) = (key_arg(args)?, cx.settings);
    let count = pop_count(args)?;
    let Some(mut entry) = cx.store.typed_mut::<Set>(cx.db, key)?.filter(|_| count > 0) else {
        cx.out.set(0);
        return Ok(());
    };
    let len = entry.typed::<Set>().map_or(0, Set::len);
    if count >= len {
        let popped = all_names(&entry).or_load(cx.db, key)?;
        entry.clear();
        entry.removal_event(NotifyFlags::SET, "spop");
        cx.say_removal(key, RemovalCause::Command);
        show(cx, &popped);
        return Ok(());
    }
    let popped =
        draw_names(&entry, usize::try_from(count).unwrap_or(usize::MAX)).or_load(cx.db, key)?;
    if (len - count).saturating_mul(FEW_ARE_LEFT) <= count {
        keep_few(&mut entry, &popped, settings);
    } else {
        remove_all(&mut entry, &popped);
    }
    entry.event(NotifyFlags::SET, "spop");
    say_removed(cx, key, &popped);
    show(cx, &popped);
    Ok(())
}

/// Says that members were removed.
fn say_removed(cx: &mut Ctx<'_>, key: &[u8], names: &MemberNames) {
    if !cx.is_heard() {
        return;
    }
    for names in names.chunks(NAMES_AT_ONCE) {
        let mut words: Vec<&[u8]> = vec![b"SREM", key];
        words.extend(names.iter().map(|name| &**name));
        cx.say(&words);
    }
}

fn pop_count(args: Args<'_>) -> Result<u64, Stop> {
    let count = parse_i64(arg(args, 2)?).and_then(|count| u64::try_from(count).ok());
    count.ok_or_else(|| "ERR value is out of range, must be positive".into())
}

/// Names that are independent of the set's later changes.
type MemberNames = Vec<Box<[u8]>>;

fn draw_names(
    entry: &EntryMut<'_>,
    count: usize,
) -> Result<MemberNames, flagstone_storage::store::Part> {
    let Some(set) = entry.typed::<Set>() else { return Ok(MemberNames::new()) };
    Ok(set.sample(count)?.into_iter().map(Into::into).collect())
}

fn all_names(entry: &EntryMut<'_>) -> Result<MemberNames, flagstone_storage::store::Part> {
    let Some(set) = entry.typed::<Set>() else { return Ok(MemberNames::new()) };
    set.require_all()?;
    Ok(set.members().into_iter().map(Into::into).collect())
}

fn show(cx: &mut Ctx<'_>, names: &MemberNames) {
    cx.out.set(names.len());
    names.iter().for_each(|name| cx.out.bulk(name));
}

/// Removes members, and the key with the last one.
fn remove_all(entry: &mut EntryMut<'_>, names: &MemberNames) {
    if let Some(set) = entry.typed_mut::<Set>() {
        for name in names {
            set.remove(name);
        }
    }
    entry.clear_if_empty();
}

/// Replaces the set by a new one of the few members that are not in `popped`.
fn keep_few(entry: &mut EntryMut<'_>, popped: &MemberNames, settings: &DataSettings) {
    let Some(set) = entry.typed::<Set>() else { return };
    let popped: HashSet<&[u8]> = popped.iter().map(|name| &**name).collect();
    let left = set.members().into_iter().filter(|name| !popped.contains(name));
    let encoding = set.encoding().min(SetEncoding::Listpack);
    let few = encoding::build(encoding, left, settings);
    entry.value = few.into_value();
}

/// `SRANDMEMBER key [count]`
fn srandmember(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    if args.len() > 3 {
        return Err(error::SYNTAX.into());
    }
    if args.len() == 2 {
        let drawn = match cx.store.typed::<Set>(cx.db, key)? {
            Some(set) => set.draw(1).or_load(cx.db, key)?.next(),
            None => None,
        };
        cx.out.bulk_or_null(drawn);
        return Ok(());
    }
    let count = draws::count_arg(args, 2)?;
    let wanted = draws::draw_count(count)?;
    let drawn = match cx.store.typed::<Set>(cx.db, key)? {
        None => Vec::new(),
        Some(set) if count < 0 => {
            let drawn = set.draw(wanted).or_load(cx.db, key)?;
            cx.out.array(drawn.len());
            draws::write_each(cx.out, drawn, |out, name| out.bulk(name));
            return Ok(());
        }
        Some(set) if wanted as u64 >= set.len() => {
            set.require_all().or_load(cx.db, key)?;
            set.members()
        }
        Some(set) => set.sample(wanted).or_load(cx.db, key)?,
    };
    cx.out.array(drawn.len());
    drawn.iter().for_each(|name| cx.out.bulk(name));
    Ok(())
}

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "spop",
        group: Group::Set,
        complexity: "O(N) where N is the number of members popped.",
        summary: "Removes members drawn at random and returns them.",
        arity: -2,
        flags: flag!(WRITE | FAST),
        keys: &[KeySpec::one(1, key!(RW | ACCESS | DELETE))],
        tips: &["nondeterministic_output"],
        run: Run::Keys(spop),
        ..Spec::NEW
    },
    Spec {
        name: "srandmember",
        group: Group::Set,
        complexity: "O(N) where N is the number of members returned.",
        summary: "Returns members drawn at random.",
        arity: -2,
        flags: flag!(READONLY),
        keys: READS,
        tips: &["nondeterministic_output"],
        run: Run::Keys(srandmember),
        ..Spec::NEW
    },
];
