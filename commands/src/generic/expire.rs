//! EXPIRE, TTL, PERSIST and their variants: the expiry of keys.

use super::peek_key;
use crate::{
    Ctx, ErrorText, KeySpec, Outcome, Run, Spec, Stop, acl, arg, error, flag, int_arg, is_word,
    key, until_zero_byte,
};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::words::RemovalCause;
use flagstone_wire::resp::Args;

/// The options of EXPIRE and its variants: a condition on the current expiry.
#[derive(Clone, Copy, Debug, Default)]
struct ExpireOptions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl ExpireOptions {
    /// Parses the options; returns `None` after it has written an error for an invalid one.
    fn parse(args: Args<'_>) -> Result<Self, ErrorText> {
        let mut condition = Self::default();
        for option in args.iter().skip(3) {
            let chosen = [
                ("nx", &mut condition.nx),
                ("xx", &mut condition.xx),
                ("gt", &mut condition.gt),
                ("lt", &mut condition.lt),
            ]
            .into_iter()
            .find(|(word, _)| is_word(option, word));
            match chosen {
                Some((_, chosen)) => *chosen = true,
                None => {
                    return Err([b"ERR Unsupported option ", until_zero_byte(option)]
                        .concat()
                        .into());
                }
            }
        }
        let Self { nx, xx, gt, lt } = condition;
        if nx && (xx || gt || lt) {
            return Err(
                "ERR NX and XX, GT or LT options at the same time are not compatible".into()
            );
        }
        if gt && lt {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(condition)
    }

    /// Returns true if a key that expires at `current` (0: never) may be set to expire at `at`.
    fn allows(self, current: u64, at: i64) -> bool {
        let current = (current != 0).then_some(current);
        let current_ms = |c: u64| i64::try_from(c).unwrap_or(i64::MAX);
        !(self.nx && current.is_some()
            || self.xx && current.is_none()
            || self.gt && current.is_none_or(|c| at <= current_ms(c))
            || self.lt && current.is_some_and(|c| at >= current_ms(c)))
    }
}

/// Unit and origin of the time in a command's arguments.
#[derive(Clone, Copy)]
struct ExpireTime {
    /// Name of the command.
    name: &'static str,
    ms: bool,
    /// True if the time counts from the Unix epoch rather than from now.
    absolute: bool,
}

const EXPIRE: ExpireTime = ExpireTime { name: "expire", ms: false, absolute: false };
const PEXPIRE: ExpireTime = ExpireTime { name: "pexpire", ms: true, absolute: false };
const EXPIREAT: ExpireTime = ExpireTime { name: "expireat", ms: false, absolute: true };
const PEXPIREAT: ExpireTime = ExpireTime { name: "pexpireat", ms: true, absolute: true };

impl ExpireTime {
    /// Converts a time to ms since the Unix epoch.
    fn at_ms(self, time: i64, now_ms: u64) -> Result<i64, Stop> {
        let ms = if self.ms { Some(time) } else { time.checked_mul(1000) };
        let base = if self.absolute { 0 } else { now_ms.cast_signed() };
        let at = ms.and_then(|ms| ms.checked_add(base));
        at.ok_or_else(|| error::invalid_expire(self.name).into())
    }
}

fn set_expiry(cx: &mut Ctx<'_>, args: Args<'_>, unit: ExpireTime) -> Outcome {
    let condition = ExpireOptions::parse(args)?;
    let at = unit.at_ms(int_arg(args, 2)?, cx.now_ms())?;
    let due_ms = cx.due_ms();
    let name = arg(args, 1)?;
    let current = cx.store.peek(cx.db, name)?.map(|entry| entry.expire_at_ms);
    if !current.is_some_and(|current| condition.allows(current, at)) {
        cx.out.int(0);
        return Ok(());
    }
    let mut entry = cx.store.entry_mut(cx.db, name)?;
    match u64::try_from(at).ok().filter(|&at| at > due_ms) {
        Some(at) => {
            entry.expire_at_ms = at;
            entry.event(NotifyFlags::GENERIC, "expire");
            // PEXPIREAT is said in the words of the client.
            if !(unit.ms && unit.absolute) && cx.is_heard() {
                say_expiry(cx, args, at);
            }
        }
        None => {
            entry.clear();
            entry.event(NotifyFlags::EXPIRED, "expired");
            cx.store.stats.expired += 1;
            cx.say_removal(name, RemovalCause::Expired);
        }
    }
    cx.out.int(1);
    Ok(())
}

/// Says an expiry with an absolute time, and the same options.
fn say_expiry(cx: &mut Ctx<'_>, args: Args<'_>, at_ms: u64) {
    let at_ms = at_ms.to_string();
    let mut words: Vec<&[u8]> = args.iter().collect();
    words[0] = b"PEXPIREAT";
    words[2] = at_ms.as_bytes();
    cx.say(&words);
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`
fn expire(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    set_expiry(cx, args, EXPIRE)
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`
fn pexpire(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    set_expiry(cx, args, PEXPIRE)
}

/// `EXPIREAT key unix-time-seconds [NX | XX | GT | LT]`
fn expireat(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    set_expiry(cx, args, EXPIREAT)
}

/// `PEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT]`
fn pexpireat(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    set_expiry(cx, args, PEXPIREAT)
}

/// Replies -2 for no key, -1 for no expiry, else the result of `show` for the expiry and the
/// current time.
fn show_expiry(cx: &mut Ctx<'_>, args: Args<'_>, show: fn(u64, u64) -> u64) -> Outcome {
    let found = peek_key(cx, arg(args, 1)?, |entry| entry.expire_at_ms)?;
    let now_ms = cx.now_ms();
    cx.out.int(match found {
        None => -2,
        Some(0) => -1,
        Some(at) => show(at, now_ms).cast_signed(),
    });
    Ok(())
}

/// Rounds milliseconds to the nearest second.
fn seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

/// `TTL key`
fn ttl(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show_expiry(cx, args, |at, now| seconds(at.saturating_sub(now)))
}

/// `PTTL key`
fn pttl(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show_expiry(cx, args, u64::saturating_sub)
}

/// `EXPIRETIME key`
fn expiretime(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show_expiry(cx, args, |at, _| seconds(at))
}

/// `PEXPIRETIME key`
fn pexpiretime(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show_expiry(cx, args, |at, _| at)
}

/// `PERSIST key`
fn persist(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let name = arg(args, 1)?;
    let expires = cx.store.peek(cx.db, name)?.is_some_and(|entry| entry.expire_at_ms != 0);
    if expires {
        let mut entry = cx.store.entry_mut(cx.db, name)?;
        entry.expire_at_ms = 0;
        entry.event(NotifyFlags::GENERIC, "persist");
    }
    cx.out.int(i64::from(expires));
    Ok(())
}

/// Common declaration of the commands that set an expiry.
const SETS: Spec = Spec {
    arity: -3,
    flags: flag!(WRITE | FAST),
    keys: &[KeySpec::one(1, key!(RW | UPDATE))],
    acl: acl!(KEYSPACE),
    ..Spec::NEW
};

/// Common declaration of the commands that return an expiry.
const SHOWS: Spec = Spec {
    arity: 2,
    flags: flag!(READONLY | FAST),
    keys: &[KeySpec::one(1, key!(RO | ACCESS))],
    acl: acl!(KEYSPACE),
    ..Spec::NEW
};

/// Declarations of the commands on the expiry of keys.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "expire",
        summary: "Sets the expiry of a key in seconds from now.",
        run: Run::Keys(expire),
        ..SETS
    },
    Spec {
        name: "pexpire",
        since: "2.6.0",
        summary: "Sets the expiry of a key in milliseconds from now.",
        run: Run::Keys(pexpire),
        ..SETS
    },
    Spec {
        name: "expireat",
        since: "1.2.0",
        summary: "Sets the expiry of a key to a Unix time in seconds.",
        run: Run::Keys(expireat),
        ..SETS
    },
    Spec {
        name: "pexpireat",
        since: "2.6.0",
        summary: "Sets the expiry of a key to a Unix time in milliseconds.",
        run: Run::Keys(pexpireat),
        ..SETS
    },
    Spec {
        name: "ttl",
        summary: "Returns the seconds until a key expires.",
        tips: &["nondeterministic_output"],
        run: Run::Keys(ttl),
        ..SHOWS
    },
    Spec {
        name: "pttl",
        since: "2.6.0",
        summary: "Returns the milliseconds until a key expires.",
        tips: &["nondeterministic_output"],
        run: Run::Keys(pttl),
        ..SHOWS
    },
    Spec {
        name: "expiretime",
        since: "7.0.0",
        summary: "Returns the Unix time in seconds at which a key expires.",
        run: Run::Keys(expiretime),
        ..SHOWS
    },
    Spec {
        name: "pexpiretime",
        since: "7.0.0",
        summary: "Returns the Unix time in milliseconds at which a key expires.",
        run: Run::Keys(pexpiretime),
        ..SHOWS
    },
    Spec {
        name: "persist",
        since: "2.2.0",
        summary: "Removes the expiry of a key.",
        arity: 2,
        run: Run::Keys(persist),
        ..SETS
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_made_absolute() {
        assert_eq!(EXPIRE.at_ms(2, 500).unwrap(), 2500);
        assert_eq!(EXPIREAT.at_ms(2, 500).unwrap(), 2000);
        assert_eq!(PEXPIRE.at_ms(-2, 500).unwrap(), 498);
        assert_eq!(PEXPIREAT.at_ms(i64::MAX, 500).unwrap(), i64::MAX);
        assert!(EXPIRE.at_ms(i64::MAX / 1000 + 1, 0).is_err());
        assert!(PEXPIRE.at_ms(i64::MAX, 1).is_err());
        assert_eq!(seconds(1499), 1);
        assert_eq!(seconds(1500), 2);
    }

    #[test]
    fn no_expiry_counts_as_the_latest() {
        let [nx, xx, gt, lt] = [
            ExpireOptions { nx: true, ..ExpireOptions::default() },
            ExpireOptions { xx: true, ..ExpireOptions::default() },
            ExpireOptions { gt: true, ..ExpireOptions::default() },
            ExpireOptions { lt: true, ..ExpireOptions::default() },
        ];
        assert!(nx.allows(0, 10) && !nx.allows(5, 10));
        assert!(xx.allows(5, 10) && !xx.allows(0, 10));
        assert!(gt.allows(5, 10) && !gt.allows(10, 10) && !gt.allows(0, 10));
        assert!(lt.allows(20, 10) && !lt.allows(10, 10) && lt.allows(0, 10));
    }
}
