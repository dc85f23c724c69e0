//! OBJECT: encoding and access statistics of a value.

use super::peek_key_without_event;
use crate::DataSettings;
use crate::help::help;
use crate::{Ctx, KeySpec, Outcome, Run, Spec, acl, arg, flag, key};
use flagstone_storage::Entry;
use flagstone_storage::value::{Str, Value};
use flagstone_wire::resp::{Args, Reply};

/// Size of the allocation in which Valkey embeds a short string with its key and expiry, in bytes.
const EMBEDDED_MAX: usize = 64;

/// Returns true if Valkey would keep a string of `len` bytes in one allocation with its key: the
/// object's header has 16 bytes, an expiry 8, and key and value have 3 and 4 bytes of overhead.
fn is_embedded(entry: &Entry, len: usize) -> bool {
    let expiry = if entry.expire_at_ms == 0 { 0 } else { 8 };
    16 + expiry + entry.key().len() + 3 + len + 4 <= EMBEDDED_MAX
}

/// Returns the encoding's name for OBJECT ENCODING.
fn encoding_of(entry: &Entry) -> &'static str {
    match &entry.value {
        Value::Str(s @ Str::Emb(_)) if !is_embedded(entry, s.len()) => "raw",
        value => value.encoding(),
    }
}

/// Returns true if the policy counts accesses (LFU) instead of recording their times.
pub(super) fn counts_accesses(settings: &DataSettings) -> bool {
    settings.counts_accesses.is_some()
}

/// `OBJECT ENCODING key`
fn encoding(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    match peek_key_without_event(cx, arg(args, 2)?, encoding_of)? {
        Some(name) => cx.out.bulk_str(name),
        None => cx.out.null(),
    }
    Ok(())
}

/// `OBJECT REFCOUNT key`
fn refcount(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    // Values are never shared: the count is always 1.
    match peek_key_without_event(cx, arg(args, 2)?, |_| ())? {
        Some(()) => cx.out.int(1),
        None => cx.out.null(),
    }
    Ok(())
}

/// `OBJECT IDLETIME key`
fn idletime(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let now_ms = cx.now_ms();
    match peek_key_without_event(cx, arg(args, 2)?, |entry| entry.idle_s(now_ms))? {
        None => cx.out.null(),
        Some(_) if counts_accesses(cx.settings) => {
            return Err("ERR An LFU maxmemory policy is selected, idle time not tracked. Please \
                        note that when switching between policies at runtime LRU and LFU data \
                        will take some time to adjust."
                .into());
        }
        Some(idle_s) => cx.out.int(i64::from(idle_s)),
    }
    Ok(())
}

/// `OBJECT FREQ key`
fn freq(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (now_ms, counting) = (cx.now_ms(), cx.settings.counts_accesses);
    let freq = |entry: &Entry| counting.map(|counting| entry.accesses(now_ms, counting));
    match peek_key_without_event(cx, arg(args, 2)?, freq)? {
        None => cx.out.null(),
        Some(None) => {
            return Err("ERR An LFU maxmemory policy is not selected, access frequency not \
                        tracked. Please note that when switching between policies at runtime LRU \
                        and LFU data will take some time to adjust."
                .into());
        }
        Some(Some(freq)) => cx.out.int(i64::from(freq)),
    }
    Ok(())
}

/// Subcommands of OBJECT with their help texts.
const HELP: &[(&str, &str)] = &[
    ("ENCODING <key>", "How the value of <key> is encoded."),
    ("FREQ <key>", "The logarithm of how often <key> was accessed lately."),
    ("IDLETIME <key>", "The seconds since <key> was last accessed."),
    ("REFCOUNT <key>", "How many refer to the value of <key>."),
];

/// `OBJECT HELP`
fn object_help(out: &mut Reply) {
    help(out, "OBJECT", HELP);
}

/// Common declaration of the subcommands on a key.
const ON_KEY: Spec = Spec {
    since: "2.2.3",
    arity: 3,
    flags: flag!(READONLY),
    keys: &[KeySpec::one(2, key!(RO))],
    acl: acl!(KEYSPACE),
    tips: &["nondeterministic_output"],
    ..Spec::NEW
};

const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "encoding",
        summary: "Returns the name of a value's internal encoding.",
        run: Run::Keys(encoding),
        ..ON_KEY
    },
    Spec {
        name: "freq",
        since: "4.0.0",
        summary: "Returns the logarithmic access counter of a key.",
        run: Run::Keys(freq),
        ..ON_KEY
    },
    Spec {
        name: "help",
        since: "6.2.0",
        summary: "Lists the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        acl: acl!(KEYSPACE),
        run: Run::Help(object_help),
        ..Spec::NEW
    },
    Spec {
        name: "idletime",
        summary: "Returns the seconds since a key was last accessed.",
        run: Run::Keys(idletime),
        ..ON_KEY
    },
    Spec {
        name: "refcount",
        summary: "Returns the reference count of a value.",
        run: Run::Keys(refcount),
        ..ON_KEY
    },
];

/// Declaration of OBJECT.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "object",
    since: "2.2.3",
    summary: "Commands on the internals of values.",
    complexity: "Depends on the subcommand",
    arity: -2,
    subcommands: SUBCOMMANDS,
    ..Spec::NEW
}];
