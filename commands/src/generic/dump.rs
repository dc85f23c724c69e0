//! DUMP and RESTORE: values as payloads in the format of Redis.

use super::object::counts_accesses;
use crate::DataSettings;
use crate::{
    Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, acl, arg, error, flag, int_arg, is_word, key,
    set, stream, zset,
};
use flagstone_rdb::{
    self as rdb, Allowance, HashField, Limits, NodeLimit, Object, RestoreError, SetForm,
    StreamNode, ZsetForm,
};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::{Hash, List, SetEncoding, Str, Stream, Typed, Value};
use flagstone_storage::words::RemovalCause;
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;

/// `DUMP key`
fn dump(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    match payload_of(cx, arg(args, 1)?)? {
        None => cx.out.null(),
        Some((payload, _)) => cx.out.bulk(&payload),
    }
    Ok(())
}

/// Returns the payload of a key's value, and when the key expires (ms since the Unix epoch; 0:
/// never); `None` if the key does not exist.
pub fn payload_of(cx: &mut Ctx<'_>, name: &[u8]) -> Result<Option<(Vec<u8>, u64)>, Stop> {
    payload(cx, name, false)
}

/// Like [`payload_of`], in types that Redis 7.0 knows.
pub fn old_payload_of(cx: &mut Ctx<'_>, name: &[u8]) -> Result<Option<(Vec<u8>, u64)>, Stop> {
    payload(cx, name, true)
}

fn payload(cx: &mut Ctx<'_>, name: &[u8], old_types: bool) -> Result<Option<(Vec<u8>, u64)>, Stop> {
    let due_ms = cx.due_ms();
    let compression = cx.settings.rdbcompression;
    let mut limits = Limits { compression, old_types, ..Limits::default() };
    let entry = cx.store.entry(cx.db, name)?;
    let expire_at_ms = entry.map_or(0, |entry| entry.expire_at_ms);
    let payload = match entry.map(|entry| &entry.value) {
        None | Some(Value::Absent) => return Ok(None),
        Some(Value::Str(s)) => rdb::dump(&Object::String(s.whole().or_load(cx.db, name)?), &limits),
        Some(Value::Hash(hash)) => {
            hash.require_all().or_load(cx.db, name)?;
            // The payload has the encoding of the stored hash, not that of a new one.
            let most = if hash.is_table() { 0 } else { usize::MAX };
            limits.hash_max_listpack_entries = most;
            limits.hash_max_listpack_value = most;
            rdb::dump(&Object::Hash(live_fields(hash, due_ms)), &limits)
        }
        Some(Value::Set(set)) => {
            set.require_all().or_load(cx.db, name)?;
            let form = match set.encoding() {
                SetEncoding::Intset => SetForm::Intset,
                SetEncoding::Listpack => SetForm::Listpack,
                SetEncoding::Table => SetForm::Table,
            };
            rdb::dump(&Object::Set(form, set.iter().collect()), &limits)
        }
        Some(Value::List(list)) => {
            let elements = list.range(0, list.len(), false).or_load(cx.db, name)?;
            limits.list_max_listpack_size = cx.settings.list_max_listpack_size;
            rdb::dump(&Object::List(elements.collect()), &limits)
        }
        Some(Value::Zset(zset)) => {
            zset.require_all().or_load(cx.db, name)?;
            let form = if zset.is_skiplist() { ZsetForm::Skiplist } else { ZsetForm::Listpack };
            rdb::dump(&Object::Zset(form, zset.iter().collect()), &limits)
        }
        Some(Value::Stream(stream)) => {
            let object = stream::restore::object(stream).or_load(cx.db, name)?;
            rdb::dump(&Object::Stream(Box::new(object)), &limits)
        }
    };
    Ok(Some((payload, expire_at_ms)))
}

/// Returns the fields that have not expired; if all have, returns all of them, because a hash
/// without fields has no payload.
fn live_fields(hash: &Hash, now_ms: u64) -> Vec<HashField<&[u8]>> {
    let is_live = |expire_at_ms: u64| expire_at_ms == 0 || expire_at_ms > now_ms;
    let any_live = hash.iter().any(|(_, field)| is_live(field.expire_at_ms));
    hash.iter()
        .filter(|(_, field)| !any_live || is_live(field.expire_at_ms))
        .map(|(name, field)| HashField {
            name,
            value: &*field.value,
            expire_at_ms: (field.expire_at_ms != 0).then_some(field.expire_at_ms),
        })
        .collect()
}

/// The options of RESTORE.
#[derive(Clone, Copy, Debug, Default)]
struct RestoreOptions {
    replace: bool,
    /// True if the time to live is a Unix time (ABSTTL).
    absolute: bool,
    idle_s: Option<i64>,
    freq: Option<u8>,
}

impl RestoreOptions {
    fn parse(args: Args<'_>) -> Result<Self, Stop> {
        let mut options = Self::default();
        let mut at = 4;
        while let Some(option) = args.get(at) {
            let value = args.get(at + 1);
            match value {
                _ if is_word(option, "replace") => options.replace = true,
                _ if is_word(option, "absttl") => options.absolute = true,
                Some(value) if is_word(option, "idletime") && options.freq.is_none() => {
                    let idle_s = parse_i64(value).ok_or(error::NOT_INTEGER)?;
                    if idle_s < 0 {
                        return Err("ERR Invalid IDLETIME value, must be >= 0".into());
                    }
                    options.idle_s = Some(idle_s);
                    at += 1;
                }
                Some(value) if is_word(option, "freq") && options.idle_s.is_none() => {
                    let freq = parse_i64(value).ok_or(error::NOT_INTEGER)?;
                    let invalid = "ERR Invalid FREQ value, must be >= 0 and <= 255";
                    options.freq = Some(u8::try_from(freq).map_err(|_| invalid)?);
                    at += 1;
                }
                _ => return Err(error::SYNTAX.into()),
            }
            at += 1;
        }
        Ok(options)
    }
}

/// `RESTORE key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`
fn restore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let name = arg(args, 1)?;
    let options = RestoreOptions::parse(args)?;
    let exists = cx.store.peek(cx.db, name)?.is_some();
    if exists && !options.replace {
        return Err("BUSYKEY Target key name already exists.".into());
    }
    let ttl = int_arg(args, 2)?;
    if ttl < 0 {
        return Err("ERR Invalid TTL value, must be >= 0".into());
    }
    let now_ms = cx.now_ms();
    let (value, payload) = restored(cx, arg(args, 3)?)?;
    let expire_at_ms = match (ttl.unsigned_abs(), options.absolute) {
        (0, _) => 0,
        (at, true) => at,
        (ms, false) => now_ms + ms,
    };
    cx.out.ok();
    if expire_at_ms != 0 && (expire_at_ms <= cx.due_ms() || expire_at_ms > i64::MAX as u64)
        || value.is_absent()
    {
        if cx.delete(name)? {
            cx.say_removal(name, RemovalCause::Command);
        }
        return Ok(());
    }
    if let Some(payload) = payload {
        // In types that Redis 7.0 knows, which refuses those of the client's payload, and when it expires.
        let at_ms = expire_at_ms.to_string();
        let mut words: Vec<&[u8]> = args.iter().collect();
        (words[0], words[3]) = (b"RESTORE", &payload);
        if expire_at_ms != 0 && !options.absolute {
            words[2] = at_ms.as_bytes();
            words.push(b"ABSTTL");
        }
        cx.say(&words);
    }
    let mut entry = cx.store.entry_mut(cx.db, name)?;
    entry.value = value;
    entry.expire_at_ms = expire_at_ms;
    match (options.idle_s, options.freq) {
        (Some(idle_s), _) if !counts_accesses(cx.settings) => {
            entry.set_idle_s(now_ms, u32::try_from(idle_s).unwrap_or(u32::MAX));
        }
        (_, Some(freq)) if counts_accesses(cx.settings) => entry.set_accesses(freq),
        _ => {}
    }
    cx.notify(NotifyFlags::NEW, "new", name);
    cx.notify(NotifyFlags::GENERIC, "restore", name);
    Ok(())
}

/// Returns the value in a payload, unless it takes too much memory, and the payload that replicas get.
fn restored(cx: &Ctx<'_>, payload: &[u8]) -> Result<(Value, Option<Vec<u8>>), Stop> {
    let newer = cx.settings.rdb_newer_versions;
    let allowance = Allowance { more: cx.longest_made(), string: cx.longest_string() };
    let mut nodes = Stream::new();
    // The nodes of a stream take many times as much while they are not packed.
    let pack = |node: StreamNode| stream::restore::push_node(&mut nodes, &node);
    let object = rdb::restore_packing(payload, newer, allowance, pack);
    let mut object = object.map_err(|refusal| match refusal {
        RestoreError::TooLarge => Stop::from(error::TOO_MUCH_MADE),
        other => other.to_string().into(),
    })?;
    let due_ms = cx.due_ms();
    if let Object::Hash(fields) = &mut object {
        // Replicas must not get them either: they would show them until this server says more.
        fields.retain(|field| field.expire_at_ms.is_none_or(|at| at > due_ms));
    }
    let compression = cx.settings.rdbcompression;
    let limits = Limits { compression, old_types: true, ..Limits::default() };
    let is_heard = cx.is_heard();
    if let Object::Stream(object) = &object {
        let stream = stream::restore::restored(nodes, object);
        // It is in memory as a whole.
        let object = stream::restore::object(&stream).ok().filter(|_| is_heard);
        let said = object.map(|object| rdb::dump(&Object::Stream(Box::new(object)), &limits));
        return Ok((stream.into_value(), said));
    }
    let said = is_heard.then(|| rdb::dump(&object, &limits));
    Ok((value_of(object, cx.settings), said))
}

/// Returns the value of an object that is no stream; absent for a hash without fields.
fn value_of(object: Object, settings: &DataSettings) -> Value {
    match object {
        Object::String(bytes) => Value::Str(Str::new(&bytes)),
        Object::Hash(fields) => hash_of(fields, settings),
        Object::Set(form, members) => set::restored(form, &members, settings).into_value(),
        Object::List(elements) => list_of(elements.iter(), settings),
        Object::Zset(form, members) => zset::restored(form, &members, settings).into_value(),
        Object::Stream(_) => Value::Absent,
    }
}

fn hash_of(fields: Vec<HashField>, settings: &DataSettings) -> Value {
    let max_len = settings.hash_max_listpack_value;
    let mut hash = Hash::new();
    let mut fits = fields.len() <= settings.hash_max_listpack_entries;
    for field in fields {
        fits &= field.name.len() <= max_len && field.value.len() <= max_len;
        hash.set(&field.name, &field.value, field.expire_at_ms.unwrap_or(0));
    }
    if !fits {
        hash.make_table();
    }
    if hash.is_empty() { Value::Absent } else { Value::Hash(Box::new(hash)) }
}

/// Returns a list of these elements.
pub(super) fn list_of(
    elements: impl Iterator<Item = impl AsRef<[u8]>>,
    settings: &DataSettings,
) -> Value {
    let limit = NodeLimit::new(settings.list_max_listpack_size);
    let mut list = List::new();
    elements.for_each(|element| list.push(element.as_ref(), false));
    let fits = list.listpack_bytes() <= limit.bytes as u64 && list.len() <= limit.count as u64;
    list.set_quicklist(!fits);
    Value::List(Box::new(list))
}

/// Declarations of DUMP and RESTORE.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "dump",
        since: "2.6.0",
        summary: "Returns the value of a key as a payload for RESTORE.",
        complexity: "O(N) in the size of the value",
        arity: 2,
        flags: flag!(READONLY),
        keys: &[KeySpec::one(1, key!(RO | ACCESS))],
        acl: acl!(KEYSPACE),
        tips: &["nondeterministic_output"],
        run: Run::Keys(dump),
        ..Spec::NEW
    },
    Spec {
        name: "restore",
        since: "2.6.0",
        summary: "Sets a key to the value in a payload of DUMP.",
        complexity: "O(N) in the size of the value",
        arity: -4,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(OW | UPDATE))],
        acl: acl!(KEYSPACE | DANGEROUS),
        run: Run::Keys(restore),
        ..Spec::NEW
    },
    Spec {
        name: "restore-asking",
        group: Group::Server,
        since: "3.0.0",
        summary: "RESTORE, as one node of a cluster sends it to another.",
        complexity: "O(N) in the size of the value",
        arity: -4,
        flags: flag!(WRITE | DENYOOM | ASKING),
        keys: &[KeySpec::one(1, key!(OW | UPDATE))],
        acl: acl!(KEYSPACE | DANGEROUS),
        run: Run::Keys(restore),
        ..Spec::NEW
    },
];
