//! Expiry of fields: HEXPIRE, HTTL, HPERSIST and their variants.

use super::expiry::{Applied, ExpiryCondition, FieldTimeForm, apply};
use super::{
    NOT_A_COUNT, READS, UPDATES, drop_if_empty, fields_from, hash_in, key_arg, say_deleted,
    say_fields, tail,
};
use crate::{Ctx, Group, Outcome, Run, Spec, arg, flag};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_wire::resp::Args;

/// Replies for a field that does not exist, and for one that does not expire.
const NO_FIELD: i64 = -2;
const NO_TTL: i64 = -1;

/// Runs `HEXPIRE key time [NX | XX | GT | LT] FIELDS count field…` for a time of any form.
fn expire(cx: &mut Ctx<'_>, args: Args<'_>, form: FieldTimeForm, command: &str) -> Outcome {
    let (key, due_ms) = (key_arg(args)?, cx.due_ms());
    let at_ms = form.parse(arg(args, 2)?, cx.now_ms(), command);
    let mut entry = cx.store.hash_mut(cx.db, key)?;
    let at_ms = at_ms?;
    let condition = ExpiryCondition::of_word(arg(args, 3)?);
    let at = if condition.is_some() { 4 } else { 3 };
    let condition = condition.unwrap_or(ExpiryCondition::Always);
    let first = fields_from(args, at, "ERR Parameter `numFields` should be greater than 0")?;
    if let Some(hash) = entry.as_ref().and_then(hash_in) {
        hash.require(tail(args, first)).or_load(cx.db, key)?;
    }
    cx.out.array(args.len() - first);
    let (mut set, mut deleted) = (Vec::new(), Vec::new());
    for name in tail(args, first) {
        let applied = match &mut entry {
            Some(entry) => apply(entry, name, at_ms, due_ms, condition),
            None => Applied::NoField,
        };
        match applied {
            Applied::Set => set.push(name),
            Applied::Deleted => deleted.push(name),
            Applied::NoField | Applied::ConditionNotMet => {}
        }
        cx.out.int(applied as i64);
    }
    if let Some(entry) = entry.as_mut().filter(|_| set.len() + deleted.len() > 0) {
        drop_if_empty(entry);
        let event = if deleted.is_empty() { "hexpire" } else { "hdel" };
        entry.removal_event(NotifyFlags::HASH, event);
        cx.store.stats.expired_fields += deleted.len() as u64;
    }
    if cx.is_heard() {
        say_fields(cx, &[b"HPEXPIREAT", key, at_ms.to_string().as_bytes()], &set);
        say_deleted(cx, key, &deleted);
    }
    Ok(())
}

/// `HEXPIRE key seconds [NX | XX | GT | LT] FIELDS count field…`
fn hexpire(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    expire(cx, args, FieldTimeForm::EX, "hexpire")
}

/// `HPEXPIRE key milliseconds [NX | XX | GT | LT] FIELDS count field…`
fn hpexpire(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    expire(cx, args, FieldTimeForm::PX, "hpexpire")
}

/// `HEXPIREAT key unix-time-seconds [NX | XX | GT | LT] FIELDS count field…`
fn hexpireat(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    expire(cx, args, FieldTimeForm::EXAT, "hexpireat")
}

/// `HPEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT] FIELDS count field…`
fn hpexpireat(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    expire(cx, args, FieldTimeForm::PXAT, "hpexpireat")
}

/// Runs `HTTL key FIELDS count field…` for a time of any form.
fn show(cx: &mut Ctx<'_>, args: Args<'_>, form: FieldTimeForm) -> Outcome {
    let (key, now_ms, due_ms) = (key_arg(args)?, cx.now_ms(), cx.due_ms());
    let hash = cx.store.hash(cx.db, key)?;
    let first = fields_from(args, 2, NOT_A_COUNT)?;
    if let Some(hash) = hash {
        hash.require(tail(args, first)).or_load(cx.db, key)?;
    }
    cx.out.array(args.len() - first);
    for name in tail(args, first) {
        let field = match hash {
            Some(hash) => hash.get(name, due_ms).or_load(cx.db, key)?,
            None => None,
        };
        cx.out.int(match field.map(|field| field.expire_at_ms) {
            None => NO_FIELD,
            Some(0) => NO_TTL,
            Some(at_ms) => form.show(at_ms, now_ms),
        });
    }
    Ok(())
}

/// `HTTL key FIELDS count field…`
fn httl(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, FieldTimeForm::EX)
}

/// `HPTTL key FIELDS count field…`
fn hpttl(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, FieldTimeForm::PX)
}

/// `HEXPIRETIME key FIELDS count field…`
fn hexpiretime(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, FieldTimeForm::EXAT)
}

/// `HPEXPIRETIME key FIELDS count field…`
fn hpexpiretime(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, FieldTimeForm::PXAT)
}

/// `HPERSIST key FIELDS count field…`
fn hpersist(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, due_ms) = (key_arg(args)?, cx.due_ms());
    let mut entry = cx.store.hash_mut(cx.db, key)?;
    let first = fields_from(args, 2, NOT_A_COUNT)?;
    if let Some(hash) = entry.as_ref().and_then(hash_in) {
        hash.require(tail(args, first)).or_load(cx.db, key)?;
    }
    cx.out.array(args.len() - first);
    let mut changed = false;
    for name in tail(args, first) {
        let hash = entry.as_ref().and_then(hash_in);
        let field = hash.and_then(|hash| hash.get(name, due_ms).ok().flatten());
        cx.out.int(match field.map(|field| field.expire_at_ms) {
            None => NO_FIELD,
            Some(0) => NO_TTL,
            Some(_) => {
                changed = true;
                let hash = entry.as_mut().and_then(|entry| entry.as_hash_mut());
                hash.map_or(NO_FIELD, |hash| i64::from(hash.set_expiry(name, 0)))
            }
        });
    }
    if let Some(entry) = entry.as_mut().filter(|_| changed) {
        entry.event(NotifyFlags::HASH, "hpersist");
    }
    Ok(())
}

/// Common declaration of the commands on the expiry of fields.
const TTL: Spec = Spec {
    group: Group::Hash,
    since: "7.4.0",
    complexity: "O(N) where N is the number of fields named.",
    arity: -5,
    flags: flag!(READONLY | FAST),
    keys: READS,
    ..Spec::NEW
};

/// Common declaration of the commands that set an expiry.
const EXPIRE: Spec = Spec { arity: -6, flags: flag!(WRITE | FAST), keys: UPDATES, ..TTL };

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "hexpire",
        summary: "Sets the expiry of fields in seconds from now.",
        arguments: "key:key@0 seconds:integer condition:oneof?[nx:pure-token`NX` xx:pure-token`XX` \
            gt:pure-token`GT` lt:pure-token`LT`] fields:block`FIELDS`[numfields:integer \
            field:string*]",
        run: Run::Keys(hexpire),
        ..EXPIRE
    },
    Spec {
        name: "hpexpire",
        summary: "Sets the expiry of fields in milliseconds from now.",
        arguments: "key:key@0 milliseconds:integer condition:oneof?[nx:pure-token`NX` \
            xx:pure-token`XX` gt:pure-token`GT` lt:pure-token`LT`] \
            fields:block`FIELDS`[numfields:integer field:string*]",
        run: Run::Keys(hpexpire),
        ..EXPIRE
    },
    Spec {
        name: "hexpireat",
        summary: "Sets the expiry of fields to a Unix time in seconds.",
        arguments: "key:key@0 unix-time-seconds:unix-time condition:oneof?[nx:pure-token`NX` \
            xx:pure-token`XX` gt:pure-token`GT` lt:pure-token`LT`] \
            fields:block`FIELDS`[numfields:integer field:string*]",
        run: Run::Keys(hexpireat),
        ..EXPIRE
    },
    Spec {
        name: "hpexpireat",
        summary: "Sets the expiry of fields to a Unix time in milliseconds.",
        arguments: "key:key@0 unix-time-milliseconds:unix-time condition:oneof?[nx:pure-token`NX` \
            xx:pure-token`XX` gt:pure-token`GT` lt:pure-token`LT`] \
            fields:block`FIELDS`[numfields:integer field:string*]",
        run: Run::Keys(hpexpireat),
        ..EXPIRE
    },
    Spec {
        name: "httl",
        summary: "Returns the remaining time to live of fields in seconds.",
        arguments: "key:key@0 fields:block`FIELDS`[numfields:integer field:string*]",
        tips: &["nondeterministic_output"],
        run: Run::Keys(httl),
        ..TTL
    },
    Spec {
        name: "hpttl",
        summary: "Returns the remaining time to live of fields in milliseconds.",
        arguments: "key:key@0 fields:block`FIELDS`[numfields:integer field:string*]",
        tips: &["nondeterministic_output"],
        run: Run::Keys(hpttl),
        ..TTL
    },
    Spec {
        name: "hexpiretime",
        summary: "Returns the Unix times in seconds at which fields expire.",
        arguments: "key:key@0 fields:block`FIELDS`[numfields:integer field:string*]",
        run: Run::Keys(hexpiretime),
        ..TTL
    },
    Spec {
        name: "hpexpiretime",
        summary: "Returns the Unix times in milliseconds at which fields expire.",
        arguments: "key:key@0 fields:block`FIELDS`[numfields:integer field:string*]",
        run: Run::Keys(hpexpiretime),
        ..TTL
    },
    Spec {
        name: "hpersist",
        summary: "Removes the expiry of fields.",
        arguments: "key:key@0 fields:block`FIELDS`[numfields:integer field:string*]",
        run: Run::Keys(hpersist),
        ..Spec { arity: -5, ..EXPIRE }
    },
];
