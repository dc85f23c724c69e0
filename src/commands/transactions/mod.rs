//! MULTI, EXEC, DISCARD, WATCH and UNWATCH: several commands as one unit.

use crate::command::Command;
use crate::commands::{Handler, Spec};
use crate::node::limits;
use crate::routing::{Call, CallOutcome, Waiting};
use crate::transaction::{
    self, CommandsOrigin, QueueFacts, Queued, Transaction, queued, runs_in_unit,
};
use crate::unit::{Unit, UnitOutcome, UnitStop};
use crate::worker::begin_watch;
use flagstone_commands::{Ctx, ErrorText, Group, KeySpec, Misses, Stop, flag, key};
use flagstone_storage::Store;
use flagstone_wire::resp::Args;
use smallvec::SmallVec;

/// Number of missing entries after which a run of a transaction stops: about as many are loaded at
/// a time.
const MAX_MISSED: usize = 10_000;

/// Number of commands of a transaction whose keys are prefetched together, and of the keys of each.
const WARMED: usize = 16;
const WARMED_KEYS: usize = 8;

/// Level of an error that no script logs, among the lines of a unit.
const LOG_ERROR: usize = 4;

/// `MULTI`
fn multi(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let transaction = Transaction::new(cx.session.db, cx.session.watches.as_deref());
    cx.session.begin_transaction(transaction);
    cx.out.ok();
    Ok(())
}

/// `DISCARD`
fn discard(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    if !cx.session.discard() {
        return Err("ERR DISCARD without MULTI".into());
    }
    cx.out.ok();
    Ok(())
}

/// `WATCH key [key ...]`
fn watch<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let keys = args.iter().skip(1).map(Box::from).collect();
        let session = &mut *cx.session;
        begin_watch(cx.worker, &session.client, &mut session.watches, session.db, keys).await?;
        cx.out.ok();
        Ok(())
    })
}

/// `UNWATCH`
fn unwatch(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.session.watches = None;
    cx.out.ok();
    Ok(())
}

/// `UNWATCH` in a transaction: no key is watched any more.
fn unwatch_in_unit(cx: &mut Ctx<'_>, _: &Unit<'_>, _: Args<'_>) -> UnitOutcome {
    cx.out.ok();
    Ok(())
}

/// Returns true if no watched key has changed.
fn is_unchanged(cx: &mut Ctx<'_>, unit: &Unit<'_>, args: Args<'_>) -> Result<bool, Stop> {
    if transaction::watched(args).next().is_none() {
        return Ok(true);
    }
    // For a client that has disconnected, nothing runs any more.
    if unit.node.clients.get(unit.request.client).is_none_or(|client| client.is_dirty()) {
        return Ok(false);
    }
    let (mut misses, mut is_gone) = (Misses::default(), false);
    for watched in transaction::watched(args) {
        let found = cx.store.peek(watched.db, watched.key);
        let is_there = misses.note(found.map(|entry| entry.map(|_| ())))?.is_some();
        is_gone |= watched.existed && !is_there;
    }
    misses.check()?;
    Ok(!is_gone)
}

/// `EXEC`: the connection passes the queue as its arguments.
fn exec(cx: &mut Ctx<'_>, unit: &Unit<'_>, args: Args<'_>) -> UnitOutcome {
    let db = cx.db;
    let facts = QueueFacts::of(args);
    let (health, request) = (&unit.node.health, &unit.request);
    if let Some(text) = limits::refused_late(health, unit.settings, request, facts.flags) {
        return Err(text.into());
    }
    let ran = if is_unchanged(cx, unit, args)? {
        let origin = CommandsOrigin::of(args);
        let ran = run_queued(cx, unit, args, &facts, &origin);
        if let (Ok(()), CommandsOrigin::Stream(reached)) = (&ran, origin) {
            cx.store.set_source(reached);
        }
        ran
    } else {
        cx.out.null_array();
        unit.effects().is_aborted = true;
        Ok(())
    };
    // If the connection runs the remaining commands, it shows EXEC behind them.
    if unit.node.broadcast.monitors.any() && !facts.is_mixed {
        unit.effects().show(cx.db, false, args.slice(0, 1));
    }
    cx.db = db;
    ran
}

/// Handles the error of a command of another server: that of a stream is logged, as the command has
/// failed there, too, or the data is not that of the primary; that of a data set ends its loading.
fn fail_part(
    unit: &Unit<'_>,
    origin: &CommandsOrigin,
    command: &Command,
    text: &ErrorText,
) -> UnitOutcome {
    let text = String::from_utf8_lossy(text);
    match origin {
        CommandsOrigin::Client => {}
        CommandsOrigin::Stream(_) => {
            let name = command.full_name;
            let line = format!("the command {name} of the primary has failed here: {text}");
            unit.effects().log(LOG_ERROR, line);
        }
        CommandsOrigin::DataSet => {
            let reason = format!("ERR {}: {text}", command.full_name);
            return Err(UnitStop::Undone(reason.into_bytes().into()));
        }
    }
    Ok(())
}

/// Prefetches the keys of queued commands.
fn warm<'a>(store: &Store, commands: impl Iterator<Item = Queued<'a>>) {
    let keys = commands.flat_map(|Queued { command, args, db, at }| {
        let left = if at.is_some() { 0 } else { WARMED_KEYS };
        let hashed = command.usual_keys(args).take(left).map(|key| store.key_hash(key));
        at.into_iter().chain(hashed).map(move |at| (db, at))
    });
    // The processor waits for several keys at once if there is little to do between them.
    let keys: SmallVec<[_; 2 * WARMED]> = keys.collect();
    store.warm(keys.iter().copied());
}

fn run_queued(
    cx: &mut Ctx<'_>,
    unit: &Unit<'_>,
    args: Args<'_>,
    facts: &QueueFacts,
    origin: &CommandsOrigin,
) -> UnitOutcome {
    if facts.on_databases {
        unit.hold_whole(cx.store)?;
    }
    let shows = unit.node.broadcast.monitors.any();
    let parts = || queued(args).zip(0..).filter(|(queued, _)| runs_in_unit(queued.command));
    let mut logins = transaction::logins(args).peekable();
    unit.log_in(unit.request.account);
    // The connection puts the replies of a mixed queue together.
    if !facts.is_mixed {
        cx.out.array(facts.parts);
    }
    let mut missed = Vec::new();
    let mut ahead = parts().map(|(part, _)| part);
    for (n, (part, at)) in parts().enumerate() {
        if n % WARMED == 0 && facts.parts > 1 {
            warm(cx.store, ahead.by_ref().take(WARMED));
        }
        if !missed.is_empty() {
            // Of an attempt that is repeated nobody reads the replies: none is rendered.
            cx.out.discard_rest();
        }
        while let Some((_, account)) = logins.next_if(|(login, _)| *login < at) {
            unit.log_in(account);
        }
        cx.db = part.db;
        if let (Some(at), Some(key)) = (part.at, part.args.get(1)) {
            cx.store.hint(key, at);
        }
        // The user's rights may have changed since the command was queued.
        let admitted = unit.admit_queued(part.command, part.args);
        let is_admitted = admitted.is_ok();
        let ran = admitted.and_then(|()| unit.run_next_part(cx, part.command, part.args));
        if shows && is_admitted && !part.command.spec.has(flag!(ADMIN | SKIP_MONITOR)) {
            unit.effects().show(cx.db, false, part.args);
        }
        match ran {
            Ok(()) => {}
            // The unit runs again: only the misses of this attempt count.
            Err(UnitStop::Handler(Stop::Error(_))) if !missed.is_empty() => {}
            Err(UnitStop::Handler(Stop::Error(text))) => {
                fail_part(unit, origin, part.command, &text)?;
                cx.out.error(&*text);
            }
            // The whole unit is rolled back: the misses of later commands are loaded together with
            // this one.
            Err(UnitStop::Handler(Stop::Miss(needs))) if missed.len() < MAX_MISSED => {
                missed.extend(needs)
            }
            Err(_) if !missed.is_empty() => break,
            Err(stop) => return Err(stop),
        }
        if facts.is_mixed {
            cx.out.end_piece();
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(Stop::Miss(missed).into()) }
}

/// Base of the commands on transactions.
const CONTROL: Spec = Spec {
    group: Group::Transactions,
    since: "1.2.0",
    arity: 1,
    flags: flag!(NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | UNQUEUED),
    ..Spec::NEW
};

/// Declarations of the commands on transactions.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "multi",
        summary: "Begins a transaction.",
        flags: CONTROL.flags.union(flag!(NO_MULTI)),
        run: Handler::Session(multi),
        ..CONTROL
    },
    Spec {
        name: "watch",
        since: "2.2.0",
        complexity: "O(1) for every key",
        summary: "Keeps the next EXEC from running if one of the keys changes before.",
        arity: -2,
        flags: CONTROL.flags.union(flag!(NO_MULTI)),
        keys: &[KeySpec::to_end(1, 1, key!(RO))],
        run: Handler::Wait(watch),
        ..CONTROL
    },
    Spec {
        name: "unwatch",
        since: "2.2.0",
        summary: "Forgets what is watched.",
        flags: CONTROL.flags.difference(flag!(UNQUEUED)),
        run: Handler::Either { alone: unwatch, in_unit: unwatch_in_unit },
        ..CONTROL
    },
    Spec {
        name: "discard",
        since: "2.0.0",
        complexity: "O(N), when N is the number of queued commands",
        summary: "Gives a transaction up.",
        run: Handler::Session(discard),
        ..CONTROL
    },
    Spec {
        name: "exec",
        complexity: "Depends on commands in the transaction",
        summary: "Runs a transaction.",
        flags: flag!(NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG | UNQUEUED | EXEC),
        other_db: Some(transaction::keys),
        run: Handler::Unit(exec),
        ..CONTROL
    },
];
