//! Setting a string: SET, SETNX, SETEX, PSETEX and GETSET.

use super::bulk;
use crate::expiry::{ExpiryOption, TimeForm};
use crate::{
    Ctx, Group, KeyFlags, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, is_word, key,
};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Value;
use flagstone_storage::words::RemovalCause;
use flagstone_wire::resp::Args;

/// Condition for SET to store the value.
#[derive(Clone, Copy, Debug, Default)]
enum SetCondition<'a> {
    #[default]
    Always,
    /// NX: the key does not exist.
    Missing,
    /// XX: the key exists.
    Exists,
    /// IFEQ: the key holds this string.
    Equals(&'a [u8]),
}

impl SetCondition<'_> {
    fn holds(self, cx: &mut Ctx<'_>, name: &[u8]) -> Result<bool, Stop> {
        if matches!(self, Self::Always) {
            return Ok(true);
        }
        let value = cx.store.peek(cx.db, name)?.map(|entry| &entry.value);
        match (self, value) {
            (Self::Always, _) | (Self::Missing, None) | (Self::Exists, Some(_)) => Ok(true),
            (Self::Missing, Some(_)) | (Self::Exists | Self::Equals(_), None) => Ok(false),
            (Self::Equals(wanted), Some(Value::Str(s))) => {
                Ok(s.len() == wanted.len() && *s.whole().or_load(cx.db, name)? == *wanted)
            }
            (Self::Equals(_), Some(_)) => Err(error::WRONG_TYPE.into()),
        }
    }
}

/// The options of SET.
#[derive(Clone, Copy, Debug, Default)]
struct SetOptions<'a> {
    condition: SetCondition<'a>,
    /// True with GET: the reply is the previous value.
    get: bool,
    expiry: ExpiryOption<'a>,
}

impl<'a> SetOptions<'a> {
    /// Parses the options behind the value.
    fn parse(args: Args<'a>) -> Result<Self, Stop> {
        let mut options = Self::default();
        let mut at = 3;
        while let Some(word) = args.get(at) {
            let next = args.get(at + 1);
            at += options.take(word, next).ok_or(error::SYNTAX)?;
        }
        Ok(options)
    }

    /// Returns true if the effect or the reply depends on the old value of the key.
    fn needs_key(&self) -> bool {
        let is_plain = matches!(self.condition, SetCondition::Always) && !self.get;
        !is_plain || self.expiry == ExpiryOption::Word
    }

    /// Parses one option; returns the number of its arguments, `None` if it is unknown or
    /// contradicts another.
    fn take(&mut self, word: &[u8], next: Option<&'a [u8]>) -> Option<usize> {
        use SetCondition::{Always, Equals, Exists, Missing};
        if is_word(word, "nx") && matches!(self.condition, Always | Missing) {
            self.condition = Missing;
        } else if is_word(word, "xx") && matches!(self.condition, Always | Exists) {
            self.condition = Exists;
        } else if is_word(word, "ifeq") && matches!(self.condition, Always) {
            self.condition = Equals(next?);
            return Some(2);
        } else if is_word(word, "get") {
            self.get = true;
        } else {
            return self.expiry.take("keepttl", word, next);
        }
        Some(1)
    }
}

/// Sets a key according to the options, with GET replies with the previous value; returns true if
/// the key was set.
fn store(
    cx: &mut Ctx<'_>,
    name: &[u8],
    value: &[u8],
    options: &SetOptions<'_>,
    command: &str,
) -> Result<bool, Stop> {
    let now_ms = cx.now_ms();
    let expire_at_ms = options.expiry.time_ms(now_ms, command)?;
    if options.get {
        match cx.store.string(cx.db, name)? {
            Some(s) => bulk(cx.out, s).or_load(cx.db, name)?,
            None => cx.out.null(),
        }
    }
    if !options.condition.holds(cx, name)? {
        return Ok(false);
    }
    if expire_at_ms.is_some_and(|at| at <= cx.due_ms()) {
        // The key would expire at once.
        if cx.store.peek(cx.db, name)?.is_some() && cx.store.remove(cx.db, name)? {
            cx.store.stats.expired += 1;
            cx.notify(NotifyFlags::EXPIRED, "expired", name);
            cx.say_removal(name, RemovalCause::Expired);
        }
        return Ok(true);
    }
    let mut entry = if options.needs_key() {
        let mut entry = cx.store.entry_mut(cx.db, name)?;
        entry.set_string(value);
        if options.expiry != ExpiryOption::Word {
            entry.expire_at_ms = expire_at_ms.unwrap_or(0);
        }
        entry
    } else {
        cx.store.replace(cx.db, name, value, expire_at_ms.unwrap_or(0))?
    };
    entry.event(NotifyFlags::STRING, "set");
    if expire_at_ms.is_some() {
        entry.event(NotifyFlags::GENERIC, "expire");
    }
    // A time of this form is said in the words of the client.
    let is_exact = matches!(options.expiry, ExpiryOption::Time(TimeForm::MillisAt, _));
    if let Some(at_ms) = expire_at_ms.filter(|_| !is_exact && cx.is_heard()) {
        cx.say(&[b"SET", name, value, b"PXAT", at_ms.to_string().as_bytes()]);
    }
    Ok(true)
}

/// Says a SET without GET: nobody waits for a replica's reply.
fn say_without_get(cx: &mut Ctx<'_>, args: Args<'_>) {
    let mut words: Vec<&[u8]> = Vec::with_capacity(args.len());
    for (at, word) in args.iter().enumerate() {
        let is_value = at < 3 || at > 3 && args.get(at - 1).is_some_and(|w| is_word(w, "ifeq"));
        if is_value || !is_word(word, "get") {
            words.push(word);
        }
    }
    words[0] = b"SET";
    cx.say(&words);
}

/// `SET key value [NX | XX | IFEQ comparison-value] [GET] [EX seconds | PX milliseconds |
/// EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]`
fn set(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let options = SetOptions::parse(args)?;
    let done = store(cx, arg(args, 1)?, arg(args, 2)?, &options, "set")?;
    if done && options.get && cx.is_heard() && !matches!(options.expiry, ExpiryOption::Time(..)) {
        say_without_get(cx, args);
    }
    match (options.get, done) {
        (true, _) => {}
        (false, true) => cx.out.ok(),
        (false, false) => cx.out.null(),
    }
    Ok(())
}

/// `SETNX key value`
fn setnx(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let options = SetOptions { condition: SetCondition::Missing, ..SetOptions::default() };
    let done = store(cx, arg(args, 1)?, arg(args, 2)?, &options, "setnx")?;
    cx.out.int(i64::from(done));
    Ok(())
}

/// `SETEX key seconds value`
fn setex(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    set_expiring(cx, args, TimeForm::Seconds, "setex")
}

/// `PSETEX key milliseconds value`
fn psetex(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    set_expiring(cx, args, TimeForm::Millis, "psetex")
}

fn set_expiring(cx: &mut Ctx<'_>, args: Args<'_>, form: TimeForm, command: &str) -> Outcome {
    let expiry = ExpiryOption::Time(form, arg(args, 2)?);
    let options = SetOptions { expiry, ..SetOptions::default() };
    store(cx, arg(args, 1)?, arg(args, 3)?, &options, command)?;
    cx.out.ok();
    Ok(())
}

/// `GETSET key value`
fn getset(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let options = SetOptions { get: true, ..SetOptions::default() };
    store(cx, arg(args, 1)?, arg(args, 2)?, &options, "getset")?;
    cx.say(&[b"SET", arg(args, 1)?, arg(args, 2)?]);
    Ok(())
}

/// Returns SET's access to its key: with GET, it reads it.
fn set_access(args: Args<'_>) -> KeyFlags {
    let reads = args.iter().skip(3).any(|word| is_word(word, "get"));
    if reads { key!(RW | ACCESS | UPDATE) } else { key!(OW | UPDATE) }
}

/// Declarations of the commands that set a string.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "set",
        group: Group::String,
        summary: "Sets a key to a string, replacing a value of any type.",
        arity: -3,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(RW | ACCESS | UPDATE | VARIABLE_FLAGS))],
        key_access: Some(set_access),
        run: Run::Keys(set),
        ..Spec::NEW
    },
    Spec {
        name: "setnx",
        group: Group::String,
        summary: "Sets a key to a string if the key does not exist.",
        arity: 3,
        flags: flag!(WRITE | DENYOOM | FAST),
        keys: &[KeySpec::one(1, key!(OW | INSERT))],
        run: Run::Keys(setnx),
        ..Spec::NEW
    },
    Spec {
        name: "setex",
        group: Group::String,
        since: "2.0.0",
        summary: "Sets a key to a string with an expiry in seconds from now.",
        arity: 4,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(OW | UPDATE))],
        run: Run::Keys(setex),
        ..Spec::NEW
    },
    Spec {
        name: "psetex",
        group: Group::String,
        since: "2.6.0",
        summary: "Sets a key to a string with an expiry in milliseconds from now.",
        arity: 4,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(OW | UPDATE))],
        run: Run::Keys(psetex),
        ..Spec::NEW
    },
    Spec {
        name: "getset",
        group: Group::String,
        summary: "Sets a key to a string and returns the previous one.",
        arity: 3,
        flags: flag!(WRITE | DENYOOM | FAST),
        keys: &[KeySpec::one(1, key!(RW | ACCESS | UPDATE))],
        run: Run::Keys(getset),
        ..Spec::NEW
    },
];
