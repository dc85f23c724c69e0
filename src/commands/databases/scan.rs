//! SCAN, KEYS and RANDOMKEY: iterate over the keys of a database.

use crate::commands::{Handler, Spec};
use crate::routing::{CallStop, Databases, Waiting};
use crate::worker::{Cursor, ScanKey};
use flagstone_commands::scan::parse_cursor;
use flagstone_commands::{ErrorText, acl, arg, error, flag, is_word, until_zero_byte};
use flagstone_storage::slot::SLOTS;
use flagstone_wire::glob;
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;

/// Number of keys that SCAN examines without COUNT.
const DEFAULT_COUNT: usize = 10;

/// Number of keys that KEYS requests from a worker at once.
const KEYS_PAGE: usize = 1024;

/// Number of keys from which on SCAN answers, however large COUNT is, and bytes of their names.
const FOUND_KEYS: usize = 64 << 10;
const FOUND_BYTES: usize = 1 << 20;

/// Number of keys among which RANDOMKEY chooses.
const RANDOM_PAGE: usize = 64;

/// Types that SCAN accepts.
const TYPES: [&str; 6] = ["string", "list", "set", "zset", "hash", "stream"];

/// Selects keys by name and type.
#[derive(Clone, Copy, Debug, Default)]
struct KeyFilter<'a> {
    pattern: Option<&'a [u8]>,
    type_name: Option<&'static str>,
}

impl KeyFilter<'_> {
    fn takes(&self, key: &ScanKey) -> bool {
        self.type_name.is_none_or(|name| name == key.type_name)
            && self.pattern.is_none_or(|pattern| glob::matches(pattern, &key.key))
    }
}

/// Keeps the matching keys that exist; matching keys that have expired are removed.
async fn keep(
    dbs: &Databases<'_>,
    keys: &mut Vec<ScanKey>,
    filter: KeyFilter<'_>,
) -> Result<(), ErrorText> {
    keys.retain(|key| filter.takes(key));
    let due_ms = dbs.due_ms();
    let is_expired = |key: &mut ScanKey| key.expire_at_ms != 0 && key.expire_at_ms <= due_ms;
    let expired: Vec<ScanKey> = keys.extract_if(.., is_expired).collect();
    dbs.remove_expired(expired.into_iter().map(|key| key.key).collect()).await
}

/// Parses the options of SCAN.
fn scan_options<'a>(args: Args<'a>) -> Result<(KeyFilter<'a>, usize), ErrorText> {
    let (mut filter, mut count) = (KeyFilter::default(), DEFAULT_COUNT);
    let mut at = 2;
    while let Some(option) = args.get(at) {
        match args.get(at + 1) {
            Some(value) if is_word(option, "count") => {
                let wanted = parse_i64(value).ok_or(error::NOT_INTEGER)?;
                count = usize::try_from(wanted).ok().filter(|&n| n > 0).ok_or(error::SYNTAX)?;
            }
            Some(value) if is_word(option, "match") => {
                filter.pattern = (value != b"*").then_some(value);
            }
            Some(value) if is_word(option, "type") => {
                filter.type_name = TYPES.into_iter().find(|name| is_word(value, name));
                if filter.type_name.is_none() {
                    let name = until_zero_byte(value);
                    return Err([b"ERR unknown type name '", name, b"'"].concat().into());
                }
            }
            _ if is_word(option, "novalues") => {
                return Err("ERR NOVALUES option can only be used in HSCAN".into());
            }
            _ if is_word(option, "noscores") => {
                return Err("ERR NOSCORES option can only be used in ZSCAN".into());
            }
            _ => return Err(error::SYNTAX.into()),
        }
        at += 2;
    }
    Ok((filter, count))
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`
fn scan<'a>(dbs: &'a mut Databases<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let number = parse_cursor(arg(args, 1)?)?;
        let (filter, count) = scan_options(args)?;
        let layout = &dbs.worker.node.layout;
        let mut next = Cursor::from_number(number, layout);
        let mut left = count;
        let mut found = Vec::new();
        let mut bytes = 0;
        while let Some(from) = next.filter(|_| left > 0) {
            let (mut keys, on) = dbs.page(from, left.min(KEYS_PAGE)).await?;
            left = left.saturating_sub(keys.len());
            keep(dbs, &mut keys, filter).await?;
            bytes += keys.iter().map(|key| key.key.len()).sum::<usize>();
            found.append(&mut keys);
            if found.len() >= FOUND_KEYS || bytes >= FOUND_BYTES {
                left = 0;
            }
            next = on;
        }
        dbs.out.array(2);
        dbs.out.bulk_str(&next.map_or(0, |next| next.number(layout)).to_string());
        write_keys(dbs, &found);
        Ok(())
    })
}

fn write_keys(dbs: &mut Databases<'_>, keys: &[ScanKey]) {
    dbs.out.array(keys.len());
    for key in keys {
        dbs.out.bulk(&key.key);
    }
}

/// `KEYS pattern`
fn keys<'a>(dbs: &'a mut Databases<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let pattern = arg(args, 1)?;
        let filter = KeyFilter { pattern: (pattern != b"*").then_some(pattern), type_name: None };
        let due_ms = dbs.due_ms();
        let mark = dbs.out.begin_array();
        let mut count = 0;
        let mut next = Some(Cursor::START);
        while let Some(from) = next {
            let (keys, on) = dbs.page(from, KEYS_PAGE).await?;
            let is_live = |key: &&ScanKey| key.expire_at_ms == 0 || key.expire_at_ms > due_ms;
            for key in keys.iter().filter(is_live).filter(|key| filter.takes(key)) {
                dbs.out.bulk(&key.key);
                count += 1;
            }
            next = on;
        }
        dbs.out.end(mark, count);
        Ok(())
    })
}

/// `RANDOMKEY`
fn randomkey<'a>(dbs: &'a mut Databases<'_>, _args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let key = match random_key(dbs).await? {
            None if dbs.worker.node.keeps_expired() => expired_key(dbs).await?,
            key => key,
        };
        match key {
            Some(key) => dbs.out.bulk(&key),
            None => dbs.out.null(),
        }
        Ok(())
    })
}

/// Returns a random key, of a page that begins at a random cursor. Keys of a slot have random
/// positions in it, but slots have very different numbers of keys; so first a random cursor in the
/// keyspace chooses the slot, then a random position in this slot the page.
async fn random_key(dbs: &Databases<'_>) -> Result<Option<Box<[u8]>>, CallStop> {
    let anywhere = |slot| Cursor { slot, hash48: rand::random_range(0..1u64 << 48) };
    let near = anywhere(rand::random_range(0..SLOTS));
    let Some(first) = live_keys_from(dbs, near, 1).await?.pop() else { return Ok(None) };
    let slot = flagstone_storage::slot::slot_of(&first.key);
    let mut keys = live_keys_from(dbs, anywhere(slot), RANDOM_PAGE).await?;
    if keys.is_empty() {
        return Ok(None);
    }
    Ok(Some(keys.swap_remove(rand::random_range(0..keys.len())).key))
}

/// Returns a key of a database whose keys have all expired. While such keys stay (on a replica, in a
/// pause, in the import mode), DBSIZE counts them.
async fn expired_key(dbs: &Databases<'_>) -> Result<Option<Box<[u8]>>, CallStop> {
    let mut next = Some(Cursor::START);
    while let Some(at) = next {
        let (mut keys, on) = dbs.page(at, 1).await?;
        if let Some(key) = keys.pop() {
            return Ok(Some(key.key));
        }
        next = on;
    }
    Ok(None)
}

/// Returns at most `limit` keys that exist, from a cursor on, continuing at the start behind the
/// end.
async fn live_keys_from(
    dbs: &Databases<'_>,
    from: Cursor,
    limit: usize,
) -> Result<Vec<ScanKey>, CallStop> {
    let mut found = Vec::new();
    let mut places = vec![from];
    if from != Cursor::START {
        places.push(Cursor::START);
    }
    for place in places {
        let mut next = Some(place);
        while let Some(at) = next.filter(|_| found.len() < limit) {
            let (mut keys, on) = dbs.page(at, limit).await?;
            keep(dbs, &mut keys, KeyFilter::default()).await?;
            found.append(&mut keys);
            next = on;
        }
    }
    found.truncate(limit);
    // Keys behind the start may have been found already.
    let mut seen = std::collections::HashSet::new();
    found.retain(|key| seen.insert(key.key.clone()));
    Ok(found)
}

/// Declarations of the commands that iterate over a database.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "keys",
        summary: "Lists the keys that match a pattern.",
        complexity: "O(N) in the number of keys of the database",
        arity: 2,
        flags: flag!(READONLY | ALL_SHARDS),
        acl: acl!(KEYSPACE | DANGEROUS),
        tips: &["request_policy:all_shards", "nondeterministic_output_order"],
        run: Handler::Databases(keys),
        ..Spec::NEW
    },
    Spec {
        name: "scan",
        since: "2.8.0",
        summary: "Walks over the keys, some at every call.",
        complexity: "O(1) for every call, O(N) in the number of keys for the whole walk",
        arity: -2,
        flags: flag!(READONLY | ALL_SHARDS),
        acl: acl!(KEYSPACE),
        tips: &["nondeterministic_output", "request_policy:special", "response_policy:special"],
        run: Handler::Databases(scan),
        ..Spec::NEW
    },
    Spec {
        name: "randomkey",
        summary: "Returns a key by chance.",
        arity: 1,
        flags: flag!(READONLY | ALL_SHARDS),
        acl: acl!(KEYSPACE),
        tips: &["request_policy:all_shards", "response_policy:special", "nondeterministic_output"],
        run: Handler::Databases(randomkey),
        ..Spec::NEW
    },
];
