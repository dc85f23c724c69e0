//! Commands on the connection itself.

mod client;
mod flags;
mod handshake;
mod tracking;

use crate::clients::ClientState;
use crate::commands::{Handler, Spec};
use crate::routing::{Call, CallOutcome, CallStop};
use crate::session::chosen_db;
use crate::unit::{Unit, UnitOutcome};
use flags::ANY_TIME;
use flagstone_commands::{CommandFlags, Ctx, Group, arg, error, flag};
use flagstone_wire::resp::{Args, Proto};

/// `PING [message]`
fn ping(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    if args.len() > 2 {
        return Err(error::arity("ping").into());
    }
    let message = args.get(1);
    if cx.session.is_subscriber() {
        cx.out.array(2);
        cx.out.bulk_str("pong");
        cx.out.bulk(message.unwrap_or_default());
    } else if let Some(message) = message {
        cx.out.bulk(message);
    } else {
        cx.out.simple("PONG");
    }
    Ok(())
}

/// `ECHO message`
fn echo(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    cx.out.bulk(arg(args, 1)?);
    Ok(())
}

/// `SELECT index`
fn select(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let db = chosen_db(args, &cx.worker.settings())?;
    cx.session.select(db);
    cx.out.ok();
    Ok(())
}

/// Selects a database for the rest of a script.
fn select_in_unit(cx: &mut Ctx<'_>, unit: &Unit<'_>, args: Args<'_>) -> UnitOutcome {
    cx.db = chosen_db(args, unit.settings)?;
    cx.out.ok();
    Ok(())
}

fn ping_in_unit(cx: &mut Ctx<'_>, _: &Unit<'_>, args: Args<'_>) -> UnitOutcome {
    match (args.len(), args.get(1)) {
        (1, _) => cx.out.simple("PONG"),
        (2, Some(message)) => cx.out.bulk(message),
        _ => return Err(error::arity("ping").into()),
    }
    Ok(())
}

fn echo_in_unit(cx: &mut Ctx<'_>, _: &Unit<'_>, args: Args<'_>) -> UnitOutcome {
    cx.out.bulk(arg(args, 1)?);
    Ok(())
}

/// `QUIT`
fn quit(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    // It stays among the clients until its replies are written: it may never read them.
    cx.session.client.set(ClientState::QUIT, true);
    cx.node.clients.note_quit(cx.session.client.id);
    cx.session.take_pushes(cx.out);
    cx.out.ok();
    Err(CallStop::Close)
}

/// `RESET`
fn reset(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let accounts = &cx.node.access.accounts;
    let authenticated = !accounts.needs_password();
    cx.session.reset(accounts.default_account().clone(), authenticated);
    if !authenticated {
        cx.node.clients.estrange(&cx.session.client, cx.node.clock.now_ms());
    }
    handshake::change_protocol(cx, Proto::Resp2);
    cx.out.simple("RESET");
    Ok(())
}

/// Flags of commands that end the connection's state, including a transaction.
const ENDS: CommandFlags =
    ANY_TIME.union(flag!(FAST | NO_AUTH | ALLOW_BUSY | SUBSCRIBER | UNQUEUED));

/// Declarations of the commands on connections.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "client",
        group: Group::Connection,
        since: "2.4.0",
        complexity: "Depends on subcommand.",
        summary: "Holds the commands on connections.",
        arity: -2,
        subcommands: client::SUBCOMMANDS,
        ..Spec::NEW
    },
    Spec {
        name: "ping",
        group: Group::Connection,
        summary: "Answers PONG, or the message.",
        arity: -1,
        flags: flag!(FAST | SUBSCRIBER),
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        run: Handler::Either { alone: ping, in_unit: ping_in_unit },
        ..Spec::NEW
    },
    Spec {
        name: "echo",
        group: Group::Connection,
        summary: "Answers the message.",
        arity: 2,
        flags: flag!(LOADING | STALE | FAST),
        run: Handler::Either { alone: echo, in_unit: echo_in_unit },
        ..Spec::NEW
    },
    Spec {
        name: "hello",
        group: Group::Connection,
        since: "6.0.0",
        summary: "Chooses the protocol version, and may authenticate and name the connection.",
        arity: -1,
        flags: ANY_TIME.union(flag!(FAST | NO_AUTH | ALLOW_BUSY)),
        run: Handler::Login { run: handshake::hello, account: handshake::hello_account },
        ..Spec::NEW
    },
    Spec {
        name: "auth",
        group: Group::Connection,
        complexity: "O(N) where N is the number of passwords defined for the user",
        summary: "Authenticates the connection by a password.",
        arity: -2,
        flags: ANY_TIME.union(flag!(FAST | NO_AUTH | ALLOW_BUSY)),
        run: Handler::Login { run: handshake::auth, account: handshake::auth_account },
        ..Spec::NEW
    },
    Spec {
        name: "select",
        group: Group::Connection,
        summary: "Chooses the database of the connection.",
        arity: 2,
        flags: flag!(LOADING | STALE | FAST | SELECTS),
        run: Handler::Either { alone: select, in_unit: select_in_unit },
        ..Spec::NEW
    },
    Spec {
        name: "quit",
        group: Group::Connection,
        summary: "Ends the connection.",
        arity: -1,
        flags: ENDS,
        run: Handler::Session(quit),
        ..Spec::NEW
    },
    Spec {
        name: "reset",
        group: Group::Connection,
        since: "6.2.0",
        summary: "Puts the connection back to how it was at its start.",
        arity: 1,
        flags: ENDS,
        run: Handler::Session(reset),
        ..Spec::NEW
    },
];
