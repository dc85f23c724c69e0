//! Arguments that are never shown: passwords.

use crate::config;
use flagstone_wire::resp::Args;
use smallvec::SmallVec;

/// Text in place of a secret.
pub const HIDDEN: &[u8] = b"(redacted)";

/// Returns the positions of secrets among the arguments; some may be beyond their end.
pub fn positions(args: Args<'_>) -> SmallVec<[usize; 4]> {
    let is = |at: usize, word: &str| {
        args.get(at).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
    };
    let behind = |first: usize, word: &'static str, count: usize| {
        (first..args.len()).filter(move |&at| is(at, word)).flat_map(move |at| at + 1..=at + count)
    };
    let mut secret = SmallVec::new();
    if is(0, "auth") {
        secret.extend(1..args.len());
    } else if is(0, "acl") && (is(1, "setuser") || is(1, "getuser") || is(1, "deluser")) {
        secret.extend(2..args.len());
    } else if is(0, "hello") {
        secret.extend(behind(2, "auth", 2));
    } else if is(0, "migrate") {
        secret.extend(behind(6, "auth", 1));
        secret.extend(behind(6, "auth2", 2));
    } else if is(0, "config") && is(1, "set") {
        let name = |at: usize| String::from_utf8_lossy(args.get(at).unwrap_or_default());
        secret.extend((3..args.len()).step_by(2).filter(|&at| config::is_secret(&name(at - 1))));
    }
    secret
}
