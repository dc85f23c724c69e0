//! CLIENT: lists, names, closes, pauses and unblocks connections.

use super::flags::ANY_TIME;
use super::handshake::{client_name, is_printable};
use super::tracking;
use crate::acl::Account;
use crate::clients::{Cancel, Client, ClientState};
use crate::command::Patience;
use crate::commands::{Handler, Spec};
use crate::node::{ClientPause, Node, PauseReason};
use crate::routing::{Call, CallOutcome, Waiting, at_rest};
use crate::session::ReplyMode;
use flagstone_commands::help::help;
use flagstone_commands::{ErrorText, Group, arg, error, flag, is_word};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::{Args, Reply};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;

/// How long CLIENT PAUSE waits for the commands that run.
const PAUSING: Duration = Duration::from_secs(5);

/// Error text for a pause that commands keep from beginning.
const NOT_AT_REST: &str = "ERR commands that began before do not end, such as those that wait for a store: nothing is paused";

/// Selects the connections that CLIENT LIST shows and CLIENT KILL closes.
#[derive(Default)]
struct ClientFilter<'a> {
    ids: Option<Vec<u64>>,
    /// Minimum age in seconds; 0 for any.
    max_age_s: u64,
    kind: Option<ClientKind>,
    addr: Option<&'a [u8]>,
    laddr: Option<&'a [u8]>,
    account: Option<Arc<Account>>,
    skip_me: bool,
}

/// Kinds of connections. The connection to a primary is not among them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientKind {
    Normal,
    Pubsub,
    Replica,
    Primary,
}

impl ClientKind {
    fn of(client: &Client) -> Self {
        if client.is(ClientState::REPLICA) {
            Self::Replica
        } else if client.is(ClientState::PUBSUB) {
            Self::Pubsub
        } else {
            Self::Normal
        }
    }

    fn named(name: &[u8]) -> Result<Self, ErrorText> {
        Ok(match name.to_ascii_lowercase().as_slice() {
            b"normal" => Self::Normal,
            b"pubsub" => Self::Pubsub,
            b"slave" | b"replica" => Self::Replica,
            b"master" | b"primary" => Self::Primary,
            _ => {
                let name = String::from_utf8_lossy(name);
                return Err(format!("ERR Unknown client type '{name}'").into());
            }
        })
    }
}

impl<'a> ClientFilter<'a> {
    /// Parses the options behind the subcommand.
    fn parse(node: &Node, args: Args<'a>, skip_me: bool) -> Result<Self, ErrorText> {
        let mut filter = Self { skip_me, ..Self::default() };
        let mut at = 2;
        while let Some(option) = args.get(at) {
            if is_word(option, "id") {
                at = filter.add_ids(args, at + 1)?;
                continue;
            }
            let value = args.get(at + 1).ok_or(error::SYNTAX)?;
            filter.set(node, option, value)?;
            at += 2;
        }
        Ok(filter)
    }

    /// Adds ids up to the first word that is no number, and returns its position.
    fn add_ids(&mut self, args: Args<'_>, mut at: usize) -> Result<usize, ErrorText> {
        let ids = self.ids.get_or_insert_default();
        while let Some(id) = args.get(at).and_then(parse_i64) {
            match u64::try_from(id) {
                Ok(id @ 1..) => ids.push(id),
                _ => return Err("ERR client-id should be greater than 0".into()),
            }
            at += 1;
        }
        Ok(at)
    }

    fn set(&mut self, node: &Node, option: &[u8], value: &'a [u8]) -> Result<(), ErrorText> {
        match option.to_ascii_lowercase().as_slice() {
            b"maxage" => {
                let seconds =
                    parse_i64(value).ok_or("ERR maxage is not an integer or out of range")?;
                self.max_age_s = u64::try_from(seconds).unwrap_or(0);
                if self.max_age_s == 0 {
                    return Err("ERR maxage should be greater than 0".into());
                }
            }
            b"type" => self.kind = Some(ClientKind::named(value)?),
            b"addr" => self.addr = Some(value),
            b"laddr" => self.laddr = Some(value),
            b"user" => {
                let unknown = || [b"ERR No such user '", value, b"'"].concat();
                self.account = Some(node.access.accounts.get(value).ok_or_else(unknown)?);
            }
            b"skipme" if is_word(value, "yes") => self.skip_me = true,
            b"skipme" if is_word(value, "no") => self.skip_me = false,
            _ => return Err(error::SYNTAX.into()),
        }
        Ok(())
    }

    fn matches(&self, client: &Client, me: u64, now_ms: u64) -> bool {
        let same =
            |wanted: Option<&[u8]>, text: String| wanted.is_none_or(|w| w == text.as_bytes());
        let age_s = now_ms.saturating_sub(client.created_ms) / 1000;
        let is_account = |wanted: &Arc<Account>| {
            client.account().is_some_and(|account| account.number == wanted.number)
        };
        same(self.addr, client.addr.to_string())
            && self.account.as_ref().is_none_or(is_account)
            && same(self.laddr, client.laddr.to_string())
            && self.kind.is_none_or(|kind| kind == ClientKind::of(client))
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&client.id))
            && !(self.skip_me && client.id == me)
            && age_s >= self.max_age_s
    }
}

/// `CLIENT LIST [filter …]`
fn list(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    if args.len() == 3 {
        return Err(error::SYNTAX.into());
    }
    let filter = ClientFilter::parse(cx.node, args, false)?;
    let now_ms = cx.node.clock.now_ms();
    let mut text = String::new();
    for client in cx.node.clients.all() {
        if !client.has_left() && filter.matches(&client, cx.session.client.id, now_ms) {
            client.describe(now_ms, client.id == cx.session.client.id, &mut text);
        }
    }
    cx.out.verbatim(*b"txt", text.as_bytes());
    Ok(())
}

/// `CLIENT INFO`
fn info(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let mut text = String::new();
    cx.session.client.describe(cx.node.clock.now_ms(), true, &mut text);
    cx.out.verbatim(*b"txt", text.as_bytes());
    Ok(())
}

/// `CLIENT KILL address`, or `CLIENT KILL filter …`
fn kill(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let by_address = args.len() == 3;
    let filter = if by_address {
        ClientFilter { addr: Some(arg(args, 2)?), ..ClientFilter::default() }
    } else {
        ClientFilter::parse(cx.node, args, true)?
    };
    let (me, now_ms) = (cx.session.client.id, cx.node.clock.now_ms());
    let mut killed = 0;
    for client in cx.node.clients.all() {
        if !filter.matches(&client, me, now_ms) {
            continue;
        }
        killed += 1;
        if client.id == me {
            cx.session.closing = true;
        } else {
            cx.node.clients.kill(&client);
        }
    }
    let replica = &cx.node.health.replica;
    let primary = replica.link().primary.as_ref().map(|it| format!("{}:{}", it.host, it.port));
    let is_named = match by_address {
        true => filter.addr.is_some() && filter.addr == primary.as_deref().map(str::as_bytes),
        false => filter.kind == Some(ClientKind::Primary),
    };
    if is_named && replica.is_up() {
        // The link is no client of this server.
        replica.kicked.notify_one();
        killed += 1;
    }
    match (by_address, killed) {
        (true, 0) => return Err("ERR No such client".into()),
        (true, _) => cx.out.ok(),
        (false, n) => cx.out.count(n),
    }
    Ok(())
}

/// `CLIENT ID`
fn id(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.out.int(cx.session.client.id.cast_signed());
    Ok(())
}

/// `CLIENT GETNAME`
fn getname(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    match cx.session.client.labels().name.as_str() {
        "" => cx.out.null(),
        name => cx.out.bulk_str(name),
    }
    Ok(())
}

/// `CLIENT SETNAME name`
fn setname(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    cx.session.client.labels().name = client_name(arg(args, 2)?)?;
    cx.out.ok();
    Ok(())
}

/// `CLIENT SETINFO <LIB-NAME | LIB-VER> text`
fn setinfo(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let (name, value) = (arg(args, 2)?, arg(args, 3)?);
    let shown = String::from_utf8_lossy(name);
    let is_name = is_word(name, "lib-name");
    if !is_name && !is_word(name, "lib-ver") {
        return Err(format!("ERR Unrecognized option '{shown}'").into());
    }
    if !is_printable(value) {
        let text = format!("ERR {shown} cannot contain spaces, newlines or special characters.");
        return Err(text.into());
    }
    let value = String::from_utf8_lossy(value).into_owned();
    let mut labels = cx.session.client.labels();
    *(if is_name { &mut labels.lib_name } else { &mut labels.lib_ver }) = value;
    drop(labels);
    cx.out.ok();
    Ok(())
}

/// Parses `ON` or `OFF` at argument 2.
fn on_off(args: Args<'_>) -> Result<bool, ErrorText> {
    let word = arg(args, 2)?;
    match (is_word(word, "on"), is_word(word, "off")) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err(error::SYNTAX.into()),
    }
}

/// `CLIENT NO-EVICT <ON | OFF>`
fn no_evict(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    cx.session.client.set(ClientState::NO_EVICT, on_off(args)?);
    cx.out.ok();
    Ok(())
}

/// `CLIENT NO-TOUCH <ON | OFF>`
fn no_touch(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let on = on_off(args)?;
    cx.session.no_touch = on;
    cx.session.client.set(ClientState::NO_TOUCH, on);
    cx.out.ok();
    Ok(())
}

/// `CLIENT IMPORT-SOURCE <ON | OFF>`
fn import_source(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let is_off = is_word(arg(args, 2)?, "off");
    if !is_off && !cx.node.imports.load(Ordering::Relaxed) {
        return Err("ERR Server is not in import mode".into());
    }
    if !is_off && !is_word(arg(args, 2)?, "on") {
        return Err(error::SYNTAX.into());
    }
    cx.session.client.set(ClientState::IMPORT, !is_off);
    cx.out.ok();
    Ok(())
}

/// `CLIENT CAPA option [option …]`
fn capa(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    if args.iter().skip(2).any(|option| is_word(option, "redirect")) {
        cx.session.client.set(ClientState::CAPA_REDIRECT, true);
    }
    cx.out.ok();
    Ok(())
}

/// `CLIENT REPLY <ON | OFF | SKIP>`
fn reply(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    if cx.session.client.is(ClientState::HTTP) {
        return Err("ERR CLIENT REPLY is not allowed over HTTP: each command is answered".into());
    }
    let word = arg(args, 2)?;
    if is_word(word, "on") {
        cx.session.reply_mode = ReplyMode::On;
        cx.out.ok();
    } else if is_word(word, "off") {
        cx.session.reply_mode = ReplyMode::Off;
    } else if is_word(word, "skip") {
        cx.session.skip_reply();
    } else {
        return Err(error::SYNTAX.into());
    }
    Ok(())
}

/// Returns the pause that is asked for: one that is in force is neither shortened nor loosened.
fn wanted_pause(node: &Node, args: Args<'_>) -> Result<ClientPause, ErrorText> {
    let writes_only = match args.get(3) {
        _ if args.len() > 4 => return Err(error::SYNTAX.into()),
        None => false,
        Some(mode) if is_word(mode, "write") => true,
        Some(mode) if is_word(mode, "all") => false,
        Some(_) => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into()),
    };
    let timeout =
        parse_i64(arg(args, 2)?).ok_or("ERR timeout is not an integer or out of range")?;
    let timeout = u64::try_from(timeout).map_err(|_| "ERR timeout is negative")?;
    let until_ms = node.clock.now_ms() + timeout;
    if i64::try_from(until_ms).is_err() {
        return Err("ERR timeout is out of range".into());
    }
    let held = node.pauses.of_clients();
    let held = held.unwrap_or(ClientPause { writes_only: true, ..ClientPause::default() });
    Ok(ClientPause {
        reason: PauseReason::Client,
        until_ms: until_ms.max(held.until_ms),
        writes_only: writes_only && held.writes_only,
    })
}

/// `CLIENT PAUSE timeout-ms [WRITE | ALL]`
fn pause<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let wanted = wanted_pause(cx.node, args)?;
        let before = cx.node.pauses.replace(wanted);
        // Nothing changes behind the reply: commands that were admitted before, scripts above all, end first.
        let rested = match timeout(PAUSING, at_rest(cx.worker, Patience::Short, async {})).await {
            Ok(rested) => rested.map_err(|error| error.text),
            Err(_) => Err(NOT_AT_REST.to_owned()),
        };
        if let Err(text) = rested {
            cx.node.pauses.take_back(wanted, before);
            return Err(text.into());
        }
        cx.out.ok();
        Ok(())
    })
}

/// `CLIENT UNPAUSE`
fn unpause(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.node.pauses.end();
    cx.out.ok();
    Ok(())
}

/// `CLIENT UNBLOCK client-id [TIMEOUT | ERROR]`
fn unblock(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let why = match args.get(3) {
        None => Cancel::TimedOut,
        Some(word) if is_word(word, "timeout") => Cancel::TimedOut,
        Some(word) if is_word(word, "error") => Cancel::Unblocked,
        Some(_) => return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".into()),
    };
    let id = parse_i64(arg(args, 2)?).ok_or(error::NOT_INTEGER)?;
    let client = u64::try_from(id).ok().and_then(|id| cx.node.clients.get(id));
    let unblocked = client.is_some_and(|client| client.unblock(why));
    cx.out.int(i64::from(unblocked));
    Ok(())
}

/// `CLIENT HELP`
fn show_help(out: &mut Reply) {
    help(
        out,
        "CLIENT",
        &[
            (
                "CACHING (YES|NO)",
                "Has the next command's keys tracked in OPTIN mode, or not in OPTOUT.",
            ),
            ("CAPA <option> [options...]", "Tells what the client can handle: REDIRECT."),
            ("GETREDIR", "Answers where invalidation messages go, or -1."),
            ("GETNAME", "Answers the connection's name."),
            ("ID", "Answers the connection's number."),
            ("INFO", "Describes the connection."),
            ("KILL <ip:port>", "Closes the connection from this address."),
            (
                "KILL <option> <value> [<option> <value> [...]]",
                "Closes connections by ID, TYPE, USER, ADDR, LADDR, MAXAGE; SKIPME spares this one.",
            ),
            ("LIST [options ...]", "Describes connections, chosen by the options that KILL has."),
            ("UNPAUSE", "Ends a pause."),
            ("PAUSE <timeout> [WRITE|ALL]", "Makes commands wait for some milliseconds."),
            ("REPLY (ON|OFF|SKIP)", "Chooses which replies the connection gets."),
            ("SETNAME <name>", "Names the connection."),
            ("SETINFO <option> <value>", "Sets LIB-NAME or LIB-VER."),
            ("UNBLOCK <clientid> [TIMEOUT|ERROR]", "Ends the wait of a blocked connection."),
            (
                "TRACKING (ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]]",
                "Has the client told when keys that it has read change; [OPTIN] [OPTOUT] [NOLOOP].",
            ),
            ("TRACKINGINFO", "Describes the tracking of keys."),
            ("NO-EVICT (ON|OFF)", "Keeps the connection when clients take too much memory."),
            ("NO-TOUCH (ON|OFF)", "Lets reads leave idle times alone."),
            ("IMPORT-SOURCE (ON|OFF)", "Marks the connection as the source of an import."),
        ],
    );
}

/// Declarations of the subcommands of CLIENT.
pub(super) const SUBCOMMANDS: &[Spec] = &[
    tracking::CACHING,
    tracking::TRACKING,
    Spec {
        name: "capa",
        group: Group::Connection,
        since: "8.0.0",
        summary: "Tells the server what the client is able to handle.",
        arity: -3,
        flags: ANY_TIME,
        run: Handler::Session(capa),
        ..Spec::NEW
    },
    Spec {
        name: "getname",
        group: Group::Connection,
        since: "2.6.9",
        summary: "Answers the connection's name.",
        arity: 2,
        flags: ANY_TIME,
        run: Handler::Session(getname),
        ..Spec::NEW
    },
    tracking::GETREDIR,
    Spec {
        name: "help",
        group: Group::Connection,
        since: "5.0.0",
        summary: "Tells the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show_help),
        ..Spec::NEW
    },
    Spec {
        name: "id",
        group: Group::Connection,
        since: "5.0.0",
        summary: "Answers the connection's number.",
        arity: 2,
        flags: ANY_TIME,
        run: Handler::Session(id),
        ..Spec::NEW
    },
    Spec {
        name: "import-source",
        group: Group::Connection,
        since: "8.1.0",
        summary: "Marks the connection as the source of an import.",
        arity: 3,
        flags: ANY_TIME,
        run: Handler::Session(import_source),
        ..Spec::NEW
    },
    Spec {
        name: "info",
        group: Group::Connection,
        since: "6.2.0",
        summary: "Describes the connection.",
        arity: 2,
        flags: ANY_TIME,
        tips: &["nondeterministic_output"],
        run: Handler::Session(info),
        ..Spec::NEW
    },
    Spec {
        name: "kill",
        group: Group::Connection,
        since: "2.4.0",
        complexity: "O(N) where N is the number of client connections",
        summary: "Closes connections.",
        arity: -3,
        flags: ANY_TIME.union(flag!(ADMIN)),
        run: Handler::Session(kill),
        ..Spec::NEW
    },
    Spec {
        name: "list",
        group: Group::Connection,
        since: "2.4.0",
        complexity: "O(N) where N is the number of client connections",
        summary: "Describes the connections.",
        arity: -2,
        flags: ANY_TIME.union(flag!(ADMIN)),
        tips: &["nondeterministic_output"],
        run: Handler::Session(list),
        ..Spec::NEW
    },
    Spec {
        name: "no-evict",
        group: Group::Connection,
        since: "7.0.0",
        summary: "Keeps the connection when clients take too much memory.",
        arity: 3,
        flags: ANY_TIME.union(flag!(ADMIN)),
        run: Handler::Session(no_evict),
        ..Spec::NEW
    },
    Spec {
        name: "no-touch",
        group: Group::Connection,
        since: "7.2.0",
        summary: "Lets reads of the connection leave the idle times of keys alone.",
        arity: 3,
        flags: ANY_TIME,
        run: Handler::Session(no_touch),
        ..Spec::NEW
    },
    Spec {
        name: "pause",
        group: Group::Connection,
        since: "3.0.0",
        summary: "Makes commands of all connections wait.",
        arity: -3,
        flags: ANY_TIME.union(flag!(ADMIN | AT_REST)),
        run: Handler::Wait(pause),
        ..Spec::NEW
    },
    Spec {
        name: "reply",
        group: Group::Connection,
        since: "3.2.0",
        summary: "Chooses which replies the connection gets.",
        arity: 3,
        flags: ANY_TIME,
        run: Handler::Session(reply),
        ..Spec::NEW
    },
    Spec {
        name: "setinfo",
        group: Group::Connection,
        since: "7.2.0",
        summary: "Describes the library that the client uses.",
        arity: 4,
        flags: ANY_TIME,
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        run: Handler::Session(setinfo),
        ..Spec::NEW
    },
    Spec {
        name: "setname",
        group: Group::Connection,
        since: "2.6.9",
        summary: "Names the connection.",
        arity: 3,
        flags: ANY_TIME,
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        run: Handler::Session(setname),
        ..Spec::NEW
    },
    tracking::TRACKINGINFO,
    Spec {
        name: "unblock",
        group: Group::Connection,
        since: "5.0.0",
        complexity: "O(log N) where N is the number of client connections",
        summary: "Ends the wait of a blocked connection.",
        arity: -3,
        flags: ANY_TIME.union(flag!(ADMIN)),
        run: Handler::Session(unblock),
        ..Spec::NEW
    },
    Spec {
        name: "unpause",
        group: Group::Connection,
        since: "6.2.0",
        complexity: "O(N) Where N is the number of paused clients",
        summary: "Ends the wait that PAUSE began.",
        arity: 2,
        flags: ANY_TIME.union(flag!(ADMIN | PAUSELESS)),
        run: Handler::Session(unpause),
        ..Spec::NEW
    },
];
