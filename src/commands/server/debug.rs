//! DEBUG: commands for tests of clients and of the server itself.

use super::{config, debug_keys};
use crate::config::RewriteScope;
use crate::replication::primary;
use crate::routing::{Call, CallOutcome, Waiting};
use flagstone_commands::help::{help, syntax};
use flagstone_commands::{arg, is_word};
use flagstone_wire::resp::{Args, Reply};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The double that DEBUG PROTOCOL returns.
#[allow(clippy::approx_constant, reason = "it is not meant to be pi")]
const PROTOCOL_DOUBLE: f64 = 3.141;

/// Interval at which the journal's durable lsn is checked.
const POLL: Duration = Duration::from_millis(1);

/// `DEBUG subcommand …`
pub(super) fn debug<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(run(cx, args))
}

async fn run(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let name = arg(args, 1)?.to_ascii_lowercase();
    match (name.as_slice(), args.len()) {
        (b"help", 2) => show_help(cx.out),
        (b"sleep", 3) => sleep(cx, args).await?,
        (b"reload", _) => reload(cx, args).await?,
        (b"loadaof", _) => make_durable(cx).await?,
        (b"config-rewrite-force-all", 2) => config::rewrite_file(cx, RewriteScope::All)?,
        (b"set-active-expire", 3) => {
            let on = leading_int(arg(args, 2)?) != 0;
            cx.node.active_expire.store(on, Ordering::Relaxed);
            cx.out.ok();
        }
        (b"client-enforce-reply-list", 3) => {
            let on = leading_int(arg(args, 2)?) != 0;
            cx.node.replies_in_blocks.store(on, Ordering::Relaxed);
            cx.out.ok();
        }
        (b"set-disable-deny-scripts", 3) => {
            cx.node.code.scripts.set_allow_all(leading_int(arg(args, 2)?) != 0);
            cx.out.ok();
        }
        (b"error", 3) => cx.out.error(arg(args, 2)?),
        (b"protocol", 3) => protocol(cx.out, arg(args, 2)?)?,
        (b"log", 3) => {
            tracing::warn!("DEBUG LOG: {}", String::from_utf8_lossy(arg(args, 2)?));
            cx.out.ok();
        }
        (b"change-repl-id", 2) => {
            primary::end_stream(cx.node, &cx.worker.peers).await;
            cx.out.ok();
        }
        (b"jmap", 2) => cx.out.ok(),
        // Settings of internals that this server does not have.
        (
            b"quicklist-packed-threshold"
            | b"set-skip-checksum-validation"
            | b"aof-flush-sleep"
            | b"pause-cron"
            | b"dict-resizing"
            | b"pause-after-fork"
            | b"delay-rdb-client-free-second"
            | b"drop-cluster-packet-filter"
            | b"close-cluster-link-on-packet-drop"
            | b"disable-cluster-random-ping"
            | b"leak",
            3,
        )
        | (b"replybuffer", 4) => cx.out.ok(),
        (b"object", 3 | 4) => debug_keys::object(cx, args).await?,
        (b"listpack" | b"quicklist", 3 | 4) => debug_keys::shape(cx, args).await?,
        (b"populate", 3..=5) => debug_keys::populate(cx, args).await?,
        (b"digest", 2) => debug_keys::digest(cx).await?,
        (b"digest-value", _) => debug_keys::digest_value(cx, args).await?,
        (b"stringmatch-len", 4) => {
            let matched = flagstone_wire::glob::matches(arg(args, 3)?, arg(args, 2)?);
            cx.out.int(i64::from(matched));
        }
        _ => return Err(syntax("DEBUG", arg(args, 1)?).into()),
    }
    Ok(())
}

fn show_help(out: &mut Reply) {
    help(
        out,
        "DEBUG",
        &[
            (
                "CHANGE-REPL-ID",
                "Ends the stream for replicas: they get the data set, and another stream.",
            ),
            (
                "CLIENT-ENFORCE-REPLY-LIST <0|1>",
                "Counts each reply to a client that has never authenticated as 16 KiB.",
            ),
            ("CONFIG-REWRITE-FORCE-ALL", "Is CONFIG REWRITE with all directives."),
            ("DIGEST", "Answers a digest of all data."),
            ("DIGEST-VALUE <key> [<key> ...]", "Answers digests of these values."),
            ("ERROR <string>", "Answers an error with this text."),
            ("LOADAOF", "Waits until all writes so far are durable."),
            ("LOG <message>", "Writes a message into the server's log."),
            ("OBJECT <key> [FAST]", "Tells how a value is kept."),
            ("POPULATE <count> [<prefix>] [<size>]", "Creates keys."),
            ("PROTOCOL <type>", "Answers a value of this type."),
            ("RELOAD [option ...]", "Waits until all writes so far are durable."),
            ("SET-ACTIVE-EXPIRE <0|1>", "Switches the removal of unread expired keys."),
            (
                "SET-DISABLE-DENY-SCRIPTS <0|1>",
                "Lets scripts call commands that they may not call otherwise.",
            ),
            ("SLEEP <seconds>", "Waits, with decimals, before the connection goes on."),
            ("STRINGMATCH-LEN <string> <pattern>", "Answers whether a glob pattern matches."),
        ],
    );
}

/// `DEBUG SLEEP seconds`
async fn sleep(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let seconds = std::str::from_utf8(arg(args, 2)?).ok().and_then(|s| s.parse::<f64>().ok());
    let wait = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or_default();
    tokio::time::sleep(wait).await;
    cx.out.ok();
    Ok(())
}

/// `DEBUG RELOAD [MERGE] [NOFLUSH] [NOSAVE]`: the data stays in place; makes it durable.
async fn reload(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    for option in args.iter().skip(2) {
        if !["merge", "noflush", "nosave"].iter().any(|word| is_word(option, word)) {
            return Err(
                "ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.".into()
            );
        }
    }
    make_durable(cx).await
}

/// Replies once all writes so far are durable.
async fn make_durable(cx: &mut Call<'_>) -> CallOutcome {
    let end = cx.node.journal.end();
    cx.node.journal.request_sync(end);
    while cx.node.journal.durable() < end {
        if let Some(reason) = cx.node.journal.failed() {
            return Err(format!("ERR the journal has failed: {reason}").into());
        }
        tokio::time::sleep(POLL).await;
    }
    cx.out.ok();
    Ok(())
}

/// `DEBUG PROTOCOL type`
fn protocol(out: &mut Reply, kind: &[u8]) -> CallOutcome {
    match kind.to_ascii_lowercase().as_slice() {
        b"string" => out.bulk_str("Hello World"),
        b"integer" => out.int(12345),
        b"double" => out.double(PROTOCOL_DOUBLE),
        b"bignum" => out.big_number("1234567999999999999999999999999999999"),
        b"null" => out.null(),
        b"array" => {
            out.array(3);
            (0..3).for_each(|n| out.int(n));
        }
        b"set" => {
            out.set(3);
            (0..3).for_each(|n| out.int(n));
        }
        b"map" => {
            out.map(3);
            for n in 0..3 {
                out.int(n);
                out.bool(n == 1);
            }
        }
        b"attrib" => {
            if out.attribute(1) {
                out.bulk_str("key-popularity");
                out.array(2);
                out.bulk_str("key:123");
                out.int(90);
            }
            out.bulk_str("Some real reply following the attribute");
        }
        b"push" => {
            if !out.is_resp3() {
                return Err("ERR RESP2 is not supported by this command".into());
            }
            out.push(2);
            out.bulk_str("server-cpu-usage");
            out.int(42);
            out.bulk_str("Some real reply following the push reply");
        }
        b"true" => out.bool(true),
        b"false" => out.bool(false),
        b"verbatim" => out.verbatim(*b"txt", b"This is a verbatim\nstring"),
        _ => {
            return Err("ERR Wrong protocol type name. Please use one of the following: \
                string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false"
                .into());
        }
    }
    Ok(())
}

/// Returns the integer with which a text begins, as C's `atoi` parses it; 0 if there is none.
fn leading_int(text: &[u8]) -> i64 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    flagstone_wire::num::parse_i64(&text[..digits]).unwrap_or(0)
}
