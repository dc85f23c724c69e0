//! Subcommands of DEBUG that examine keys. They run ordinary commands and parse the replies, so
//! they work whichever worker owns a key.

use crate::command::{OwnedCommand, Request, RoundError, registry};
use crate::routing;
use crate::routing::{Call, CallOutcome};
use crate::worker::{Cursor, Worker};
use flagstone_commands::{ErrorText, arg, error, is_word};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::{Args, OwnedArgs};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

/// Bytes of a DUMP payload besides the value: the type, the version, and the checksum.
const DUMP_FRAME: usize = 11;

/// Length of a digest in bytes.
const DIGEST: usize = 20;

/// Number of keys in a page while all keys are iterated over.
const PAGE: usize = 1000;

/// Runs a command, and returns its reply in RESP2.
///
/// # Errors
/// If the command fails.
async fn run(cx: &Call<'_>, db: u32, words: &[&[u8]]) -> Result<Vec<u8>, ErrorText> {
    run_seeing(cx, db, words, false).await
}

/// Like [`run`]. `expired`: expired keys count as existing.
async fn run_seeing(
    cx: &Call<'_>,
    db: u32,
    words: &[&[u8]],
    expired: bool,
) -> Result<Vec<u8>, ErrorText> {
    let command = words.first().and_then(|name| registry::lookup(name));
    let command = match words.get(1).zip(command) {
        Some((sub, container)) if !container.subcommands.is_empty() => container.subcommand(sub),
        _ => command,
    };
    let command = command.ok_or("ERR DEBUG needs a command that this server does not have")?;
    let args: OwnedArgs = words.iter().collect();
    let request = Request { sees_expired: expired, ..Request::of_nobody(db) };
    let owned = OwnedCommand::new(command, args, request);
    let answer = routing::run_across(cx.worker, owned).await;
    let reply = answer.reply.into_bytes();
    if answer.outcome.is_error() { Err(line(&reply, b'-').to_owned().into()) } else { Ok(reply) }
}

/// Returns the bytes of a bulk string; `None` for null.
fn bulk(reply: &[u8]) -> Option<&[u8]> {
    let rest = reply.strip_prefix(b"$")?;
    let line = rest.iter().position(|&byte| byte == b'\r')?;
    let len = usize::try_from(parse_i64(&rest[..line])?).ok()?;
    rest.get(line + 2..line + 2 + len)
}

/// Returns the line of a simple string, an integer or an error; empty if the reply is of another type.
fn line(reply: &[u8], prefix: u8) -> &str {
    let line = reply.strip_prefix(&[prefix]).unwrap_or_default();
    std::str::from_utf8(line.trim_ascii_end()).unwrap_or_default()
}

async fn encoding(cx: &Call<'_>, key: &[u8]) -> Result<Option<String>, ErrorText> {
    let reply = run_seeing(cx, cx.session.db, &[b"object", b"encoding", key], true).await?;
    Ok(bulk(&reply).map(|name| String::from_utf8_lossy(name).into_owned()))
}

/// `DEBUG OBJECT key [FAST]`
pub(super) async fn object(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let (db, key) = (cx.session.db, arg(args, 2)?);
    let encoding = encoding(cx, key).await?.ok_or(error::NO_SUCH_KEY)?;
    let fast = args.get(3).is_some_and(|word| is_word(word, "fast"));
    let mut line = format!("Value at:0x0 refcount:1 encoding:{encoding}");
    if !fast {
        let dump = run_seeing(cx, db, &[b"dump", key], true).await?;
        let len = bulk(&dump).map_or(0, |payload| payload.len().saturating_sub(DUMP_FRAME));
        line.push_str(&format!(" serializedlength:{len}"));
    }
    let idle = run(cx, db, &[b"object", b"idletime", key]).await?;
    let idle_s = idle.strip_prefix(b":").and_then(|n| parse_i64(n.trim_ascii_end())).unwrap_or(0);
    let lru = (cx.node.clock.now_ms() / 1000).cast_signed() - idle_s;
    line.push_str(&format!(" lru:{} lru_seconds_idle:{idle_s}", lru & 0xff_ffff));
    cx.out.simple(&line);
    Ok(())
}

/// `DEBUG LISTPACK key` and `DEBUG QUICKLIST key`: prints nothing, but fails if the key has another
/// encoding.
pub(super) async fn shape(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let wanted = String::from_utf8_lossy(arg(args, 1)?).to_lowercase();
    let encoding = encoding(cx, arg(args, 2)?).await?.ok_or(error::NO_SUCH_KEY)?;
    if encoding != wanted {
        return Err(format!("ERR Not a {wanted} encoded object.").into());
    }
    let (first, rest) = wanted.split_at(1);
    let title = first.to_uppercase() + rest;
    cx.out.simple(&format!("{title} structure printed on stdout"));
    Ok(())
}

/// `DEBUG POPULATE count [prefix] [size]`
pub(super) async fn populate(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let number = |text: &[u8]| {
        parse_i64(text)
            .and_then(|n| usize::try_from(n).ok())
            .ok_or("ERR value is out of range, must be positive")
    };
    let count = number(arg(args, 2)?)?;
    let prefix = args.get(3).unwrap_or(b"key");
    let size = args.get(4).map_or(Ok(0), number)?;
    for n in 0..count {
        let mut key = prefix.to_vec();
        key.extend_from_slice(format!(":{n}").as_bytes());
        let mut value = format!("value:{n}").into_bytes();
        if size > 0 {
            value.resize(size, 0);
        }
        run(cx, cx.session.db, &[b"set", &key, &value, b"nx"]).await?;
    }
    cx.out.ok();
    Ok(())
}

/// A digest that does not depend on the order in which parts are added.
#[derive(Clone, Copy, Default)]
struct Digest([u8; DIGEST]);

impl Digest {
    fn add(&mut self, part: impl Hash) {
        for (n, bytes) in self.0.chunks_mut(8).enumerate() {
            let mut hasher = DefaultHasher::new();
            (n, &part).hash(&mut hasher);
            for (byte, other) in bytes.iter_mut().zip(hasher.finish().to_le_bytes()) {
                *byte ^= other;
            }
        }
    }

    fn text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns the digest of a key's value; zero if the key does not exist.
async fn digest_of(cx: &Call<'_>, db: u32, key: &[u8]) -> Result<Digest, ErrorText> {
    let mut digest = Digest::default();
    let kind = run(cx, db, &[b"type", key]).await?;
    match line(&kind, b'+') {
        "none" => return Ok(digest),
        "string" => digest.add(run(cx, db, &[b"get", key]).await?),
        "hash" => {
            let reply = run(cx, db, &[b"hgetall", key]).await?;
            let fields = bulks(&reply);
            for pair in fields.chunks(2) {
                digest.add(pair);
            }
        }
        "set" => {
            let reply = run(cx, db, &[b"smembers", key]).await?;
            bulks(&reply).into_iter().for_each(|name| digest.add(name));
        }
        "list" => digest.add(run(cx, db, &[b"lrange", key, b"0", b"-1"]).await?),
        _ => digest.add(run(cx, db, &[b"dump", key]).await?),
    }
    let expiry = run(cx, db, &[b"pexpiretime", key]).await?;
    if line(&expiry, b':') != "-1" {
        digest.add("expires");
    }
    Ok(digest)
}

/// Returns the elements of an array of bulk strings.
fn bulks(reply: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    let mut rest = reply;
    while let Some(at) = rest.iter().position(|&byte| byte == b'$') {
        let Some(element) = bulk(&rest[at..]) else { break };
        out.push(element);
        let header = rest[at..].iter().position(|&byte| byte == b'\n').unwrap_or(0);
        rest = rest.get(at + header + 1 + element.len()..).unwrap_or_default();
    }
    out
}

/// `DEBUG DIGEST-VALUE key [key …]`
pub(super) async fn digest_value(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    cx.out.array(args.len() - 2);
    for key in args.iter().skip(2) {
        let digest = digest_of(cx, cx.session.db, key).await?;
        cx.out.simple(&digest.text());
    }
    Ok(())
}

/// `DEBUG DIGEST`: replies with the digest of all keys of all databases.
pub(super) async fn digest(cx: &mut Call<'_>) -> CallOutcome {
    let mut all = Digest::default();
    for db in 0..cx.worker.settings().databases {
        let found = cx.worker.peers.on_all(false, move |worker| keys_of(worker, db)).await;
        for keys in found.map_err(|_| "ERR a worker is gone")? {
            for key in keys? {
                let value = digest_of(cx, db, &key).await?;
                if value.0 != Digest::default().0 {
                    all.add((db, &*key, value.0));
                }
            }
        }
    }
    cx.out.simple(&all.text());
    Ok(())
}

/// Returns all keys of a database on a worker.
async fn keys_of(worker: Rc<Worker>, db: u32) -> Result<Vec<Box<[u8]>>, RoundError> {
    let mut keys = Vec::new();
    let (node, mut next) = (&worker.node, Some(Cursor::START));
    while let Some(from) = next {
        if node.worker_of(from.slot) != worker.id {
            next = Cursor::behind(&node.layout.slots_of(node.layout.shard_of(from.slot)));
            continue;
        }
        let (page, slots) = worker.scan(db, from, PAGE).await?;
        keys.extend(page.keys.into_iter().map(|found| found.key));
        next = page.next.or_else(|| Cursor::behind(&slots));
    }
    Ok(keys)
}
