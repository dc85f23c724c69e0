//! Reading one set: SCARD, SISMEMBER, SMISMEMBER, SMEMBERS.

use super::{LOOKS, READS, key_arg, tail};
use crate::{Ctx, Group, Names, Outcome, Run, Spec, arg, flag};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Set;
use flagstone_wire::resp::Args;

/// `SCARD key`
fn scard(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let set = cx.store.typed::<Set>(cx.db, key_arg(args)?)?;
    cx.out.count(set.map_or(0, Set::len) as usize);
    Ok(())
}

/// `SISMEMBER key member`
fn sismember(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    let is_member = match cx.store.typed::<Set>(cx.db, key)? {
        Some(set) => set.contains(arg(args, 2)?).or_load(cx.db, key)?,
        None => false,
    };
    cx.out.int(i64::from(is_member));
    Ok(())
}

/// `SMISMEMBER key member…`
fn smismember(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    let set = cx.store.typed::<Set>(cx.db, key)?;
    if let Some(set) = set {
        set.require(tail(args, 2)).or_load(cx.db, key)?;
    }
    cx.out.array(args.len() - 2);
    for name in tail(args, 2) {
        let is_member = match set {
            Some(set) => set.contains(name).or_load(cx.db, key)?,
            None => false,
        };
        cx.out.int(i64::from(is_member));
    }
    Ok(())
}

/// `SMEMBERS key`
fn smembers(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    let Some(set) = cx.store.typed::<Set>(cx.db, key)? else {
        cx.out.set(0);
        return Ok(());
    };
    if let Err(missing) = set.require_all() {
        // A reply that does not fit needs no members.
        if !cx.out.foresee_at_least(set.least_reply()) {
            return Ok(());
        }
        return Err(missing.of(cx.db, key).into());
    }
    let members = set.members();
    cx.out.set(members.len());
    members.iter().for_each(|name| cx.out.bulk(name));
    Ok(())
}

/// Common declaration of the commands that test membership or size.
const LOOK: Spec =
    Spec { group: Group::Set, flags: flag!(READONLY | FAST), keys: LOOKS, ..Spec::NEW };

/// Declarations of the commands that read one set.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "scard",
        summary: "Returns the number of members.",
        arity: 2,
        run: Run::Keys(scard),
        ..LOOK
    },
    Spec {
        name: "sismember",
        names: Some(Names::from(2, 1)),
        summary: "Tests a name for membership.",
        arity: 3,
        run: Run::Keys(sismember),
        ..LOOK
    },
    Spec {
        name: "smismember",
        names: Some(Names::from(2, 1)),
        since: "6.2.0",
        complexity: "O(N) where N is the number of members named.",
        summary: "Tests several names for membership.",
        arity: -3,
        keys: READS,
        run: Run::Keys(smismember),
        ..LOOK
    },
    Spec {
        name: "smembers",
        complexity: "O(N) where N is the number of members.",
        summary: "Returns all members.",
        arity: 2,
        flags: flag!(READONLY),
        keys: READS,
        tips: &["nondeterministic_output_order"],
        run: Run::Keys(smembers),
        ..LOOK
    },
];
