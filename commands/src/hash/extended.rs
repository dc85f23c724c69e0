//! HGETDEL, HGETEX, HSETEX: values together with removal or expiry.

use super::expiry::{Applied, ExpiryCondition, FieldTimeForm, apply};
use super::{
    NOT_A_COUNT, READS_UPDATES, UPDATES, convert_for, convert_if_long, drop_if_empty,
    entry_with_fields, fields_from, hash_in, hash_or_new, key_arg, remove_expired, remove_field,
    say_deleted, say_fields, tail,
};
use crate::until_zero_byte;
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, is_word, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_wire::resp::Args;

/// `HGETDEL key FIELDS count field…`
fn hgetdel(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, due_ms) = (key_arg(args)?, cx.due_ms());
    let mut entry = cx.store.hash_mut(cx.db, key)?;
    let first = fields_from(args, 2, NOT_A_COUNT)?;
    if let Some(hash) = entry.as_ref().and_then(hash_in) {
        hash.require(tail(args, first)).or_load(cx.db, key)?;
    }
    cx.out.array(args.len() - first);
    let (mut gone, mut deleted, mut expired) = (Vec::new(), 0, 0);
    for name in tail(args, first) {
        let field = entry.as_mut().and_then(|entry| remove_field(entry, name));
        gone.extend(field.as_ref().map(|_| name));
        deleted += u64::from(field.is_some());
        let live = field.as_ref().filter(|field| !field.is_expired(due_ms));
        expired += u64::from(live.is_none() && field.is_some());
        cx.out.bulk_or_null(live.map(|field| &*field.value));
    }
    if let Some(entry) = entry.as_mut().filter(|_| deleted > 0) {
        drop_if_empty(entry);
        if expired > 0 {
            entry.event(NotifyFlags::HASH, "hexpired");
        }
        if deleted > expired {
            entry.event(NotifyFlags::HASH, "hdel");
        }
        entry.deletion_event();
        cx.store.stats.expired_fields += expired;
    }
    say_deleted(cx, key, &gone);
    Ok(())
}

/// Change of HGETEX to the expiry of the fields that it returns.
#[derive(Clone, Copy)]
enum ExpiryChange {
    Nothing,
    Persist,
    ExpireAt(u64),
}

/// `HGETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST] FIELDS count field…`
fn hgetex(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, now_ms, due_ms) = (key_arg(args)?, cx.now_ms(), cx.due_ms());
    let mut entry = cx.store.hash_mut(cx.db, key)?;
    let word = arg(args, 2)?;
    let (change, at) = match FieldTimeForm::of_word(word) {
        Some(form) => (ExpiryChange::ExpireAt(form.parse(arg(args, 3)?, now_ms, "hgetex")?), 4),
        None if is_word(word, "PERSIST") => (ExpiryChange::Persist, 3),
        None => (ExpiryChange::Nothing, 2),
    };
    let first = fields_from(args, at, NOT_A_COUNT)?;
    if let Some(hash) = entry.as_ref().and_then(hash_in) {
        hash.require(tail(args, first)).or_load(cx.db, key)?;
    }
    cx.out.array(args.len() - first);
    let Some(entry) = &mut entry else {
        tail(args, first).for_each(|_| cx.out.null());
        return Ok(());
    };
    let (mut expired, mut deleted, mut changed) = (0, 0, 0);
    let (mut gone, mut set) = (Vec::new(), Vec::new());
    for name in tail(args, first) {
        let field = hash_in(entry).and_then(|hash| hash.peek(name).ok().flatten());
        if field.is_some_and(|field| field.is_expired(due_ms)) {
            cx.out.null();
            remove_field(entry, name);
            gone.push(name);
            expired += 1;
            continue;
        }
        cx.out.bulk_or_null(field.map(|field| &*field.value));
        let expires = field.is_some_and(|field| field.expire_at_ms != 0);
        match change {
            ExpiryChange::ExpireAt(at_ms) => {
                let applied = apply(entry, name, at_ms, due_ms, ExpiryCondition::Always);
                deleted += u64::from(applied == Applied::Deleted);
                changed += u64::from(applied == Applied::Set);
                match applied {
                    Applied::Deleted => gone.push(name),
                    Applied::Set => set.push(name),
                    Applied::NoField | Applied::ConditionNotMet => {}
                }
            }
            ExpiryChange::Persist if expires => {
                set.push(name);
                changed += 1;
                entry.as_hash_mut().map(|hash| hash.set_expiry(name, 0));
            }
            ExpiryChange::Persist | ExpiryChange::Nothing => {}
        }
    }
    if expired > 0 {
        entry.event(NotifyFlags::HASH, "hexpired");
    }
    match change {
        ExpiryChange::Persist if changed > 0 => entry.event(NotifyFlags::HASH, "hpersist"),
        _ if changed > 0 => entry.event(NotifyFlags::HASH, "hexpire"),
        _ if deleted > 0 => entry.event(NotifyFlags::HASH, "hdel"),
        _ => {}
    }
    if expired + deleted > 0 {
        drop_if_empty(entry);
        entry.deletion_event();
    }
    cx.store.stats.expired_fields += expired + deleted;
    say_changes(cx, key, change, (&set, &gone));
    Ok(())
}

/// Says what HGETEX has done: the fields that it has changed, and those that are gone.
fn say_changes(
    cx: &mut Ctx<'_>,
    key: &[u8],
    change: ExpiryChange,
    (set, gone): (&[&[u8]], &[&[u8]]),
) {
    if !cx.is_heard() {
        return;
    }
    match change {
        ExpiryChange::ExpireAt(at_ms) => {
            say_fields(cx, &[b"HPEXPIREAT", key, at_ms.to_string().as_bytes()], set);
        }
        ExpiryChange::Persist => say_fields(cx, &[b"HPERSIST", key], set),
        ExpiryChange::Nothing => {}
    }
    say_deleted(cx, key, gone);
}

/// Expiry of the fields that HSETEX sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NewExpiry {
    Discard,
    Keep,
    At(u64),
}

/// The options of HSETEX.
struct HsetexOptions {
    /// Existence condition: all fields must exist (FXX) or none (FNX).
    must_exist: Option<bool>,
    expiry: NewExpiry,
    /// Position of the first field among the arguments.
    first: usize,
}

impl HsetexOptions {
    fn parse(args: Args<'_>, now_ms: u64) -> Result<Self, Stop> {
        let mut options = Self { must_exist: None, expiry: NewExpiry::Discard, first: 0 };
        let mut at = 2;
        while let Some(word) = args.get(at) {
            if is_word(word, "FIELDS") {
                options.first = pairs_from(args, at)?;
                return Ok(options);
            }
            let form = FieldTimeForm::of_word(word);
            if form.is_some() || is_word(word, "KEEPTTL") {
                if options.expiry != NewExpiry::Discard {
                    return Err("ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be \
                                specified"
                        .into());
                }
                options.expiry = NewExpiry::Keep;
                if let Some(form) = form {
                    at += 1;
                    let time = args.get(at).ok_or("ERR missing expire time")?;
                    options.expiry = NewExpiry::At(form.parse(time, now_ms, "hsetex")?);
                }
            } else if is_word(word, "FXX") || is_word(word, "FNX") {
                if options.must_exist.is_some() {
                    return Err("ERR Only one of FXX or FNX arguments can be specified".into());
                }
                options.must_exist = Some(is_word(word, "FXX"));
            } else {
                return Err([b"ERR unknown argument: ", until_zero_byte(word)].concat().into());
            }
            at += 1;
        }
        Err(error::arity("hsetex").into())
    }
}

/// Returns the position of the first pair of `FIELDS count field value…`, which stands at `at` and
/// extends to the end.
fn pairs_from(args: Args<'_>, at: usize) -> Result<usize, Stop> {
    if at + 3 >= args.len() {
        return Err(error::arity("hsetex").into());
    }
    let count = flagstone_wire::num::parse_i64(arg(args, at + 1)?)
        .and_then(|count| i32::try_from(count).ok())
        .and_then(|count| usize::try_from(count).ok())
        .filter(|&count| count > 0)
        .ok_or("ERR invalid number of fields")?;
    if args.len() - at - 2 != count * 2 {
        return Err(error::arity("hsetex").into());
    }
    Ok(at + 2)
}

/// `HSETEX key [FNX | FXX] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL] FIELDS count field value…`
fn hsetex(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, due_ms, settings) = (key_arg(args)?, cx.due_ms(), cx.settings);
    let options = HsetexOptions::parse(args, cx.now_ms())?;
    let names = || tail(args, options.first).step_by(2);
    if !condition_holds(cx, key, names, options.must_exist)? {
        cx.out.int(0);
        return remove_expired(cx, key, names(), None);
    }
    cx.out.int(1);
    if matches!(options.expiry, NewExpiry::At(at_ms) if at_ms <= due_ms) {
        return delete_fields(cx, key, names());
    }
    let mut entry = entry_with_fields(cx, key, names())?;
    let hash = hash_or_new(&mut entry)?;
    convert_for(hash, settings, tail(args, options.first));
    let mut words = tail(args, options.first);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        let kept = hash.get(name, due_ms).ok().flatten().map_or(0, |field| field.expire_at_ms);
        let expire_at_ms = match options.expiry {
            NewExpiry::Discard => 0,
            NewExpiry::Keep => kept,
            NewExpiry::At(at_ms) => at_ms,
        };
        hash.set(name, value, expire_at_ms);
    }
    convert_if_long(hash, settings);
    entry.event(NotifyFlags::HASH, "hset");
    if let NewExpiry::At(at_ms) = options.expiry {
        entry.event(NotifyFlags::HASH, "hexpire");
        if cx.is_heard() {
            let pairs: Vec<&[u8]> = tail(args, options.first).collect();
            let (at_ms, count) = (at_ms.to_string(), (pairs.len() / 2).to_string());
            let head =
                [&b"HSETEX"[..], key, b"PXAT", at_ms.as_bytes(), b"FIELDS", count.as_bytes()];
            cx.say(&[&head[..], &pairs].concat());
        }
    }
    Ok(())
}

/// Checks the existence condition (`Some(true)`: all fields must exist, `Some(false)`: none may).
/// Afterwards the fields are in memory.
fn condition_holds<'n, I: Iterator<Item = &'n [u8]>>(
    cx: &mut Ctx<'_>,
    key: &[u8],
    names: impl Fn() -> I,
    must_exist: Option<bool>,
) -> Result<bool, Stop> {
    let due_ms = cx.due_ms();
    let entry = cx.store.hash_mut(cx.db, key)?;
    let Some(hash) = entry.as_ref().and_then(hash_in) else {
        return Ok(must_exist != Some(true));
    };
    hash.require(names()).or_load(cx.db, key)?;
    let Some(must_exist) = must_exist else { return Ok(true) };
    Ok(names().all(|name| matches!(hash.get(name, due_ms), Ok(Some(_))) == must_exist))
}

/// Removes fields whose new expiry is in the past; the events are those of a set followed by a
/// deletion.
fn delete_fields<'n>(
    cx: &mut Ctx<'_>,
    key: &[u8],
    names: impl Iterator<Item = &'n [u8]>,
) -> Outcome {
    let Some(mut entry) = cx.store.hash_mut(cx.db, key)? else {
        cx.notify(NotifyFlags::NEW, "new", key);
        cx.notify(NotifyFlags::HASH, "hset", key);
        cx.notify(NotifyFlags::HASH, "hdel", key);
        cx.notify(NotifyFlags::GENERIC, "del", key);
        return Ok(());
    };
    let deleted: Vec<&[u8]> =
        names.filter(|name| remove_field(&mut entry, name).is_some()).collect();
    if !deleted.is_empty() {
        drop_if_empty(&mut entry);
    }
    entry.event(NotifyFlags::HASH, "hset");
    entry.removal_event(NotifyFlags::HASH, "hdel");
    cx.store.stats.expired_fields += deleted.len() as u64;
    say_deleted(cx, key, &deleted);
    Ok(())
}

/// Common declaration of the commands on values and expiries.
const EXTENDED: Spec = Spec {
    group: Group::Hash,
    since: "8.0.0",
    complexity: "O(N) where N is the number of fields named.",
    arity: -5,
    flags: flag!(WRITE | FAST),
    ..Spec::NEW
};

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "hgetdel",
        summary: "Returns the values of fields and removes them.",
        arguments: "key:key@0 fields:block`FIELDS`[numfields:integer field:string*]",
        keys: &[KeySpec::one(1, key!(RW | ACCESS | DELETE))],
        run: Run::Keys(hgetdel),
        ..EXTENDED
    },
    Spec {
        name: "hgetex",
        summary: "Returns the values of fields and sets or removes their expiry.",
        arguments: "key:key@0 expiration:oneof?[seconds:integer`EX` milliseconds:integer`PX` \
            unix-time-seconds:unix-time`EXAT` unix-time-milliseconds:unix-time`PXAT` \
            persist:pure-token`PERSIST`] fields:block`FIELDS`[numfields:integer \
            field:string*]",
        keys: READS_UPDATES,
        run: Run::Keys(hgetex),
        ..EXTENDED
    },
    Spec {
        name: "hsetex",
        summary: "Sets fields to values and sets their expiry.",
        arguments: "key:key@0 condition:oneof?[fnx:pure-token`FNX` fxx:pure-token`FXX`] \
            expiration:oneof?[seconds:integer`EX` milliseconds:integer`PX` \
            unix-time-seconds:unix-time`EXAT` unix-time-milliseconds:unix-time`PXAT` \
            keepttl:pure-token`KEEPTTL`] fields:block`FIELDS`[numfields:integer \
            data:block*[field:string value:string]]",
        arity: -6,
        flags: flag!(WRITE | DENYOOM | FAST),
        keys: UPDATES,
        run: Run::Keys(hsetex),
        ..EXTENDED
    },
];
