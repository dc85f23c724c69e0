//! Several commands as one: MULTI, EXEC, DISCARD.

use super::{Call, Ctx, Group, Outcome, Run, Spec, Stop, flag};
use crate::resp::Args;
use crate::transaction::{self, Transaction, queued, runs_in_unit};

/// `MULTI`
fn multi(cx: &mut Call<'_>, _: Args<'_>) -> Outcome {
    if cx.session.transaction.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    cx.session.begin_transaction(Transaction::new(cx.session.db));
    cx.out.ok();
    Ok(())
}

/// `DISCARD`
fn discard(cx: &mut Call<'_>, _: Args<'_>) -> Outcome {
    if cx.session.end_transaction().is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    cx.out.ok();
    Ok(())
}

/// `EXEC`: the connection gives it what is queued as its arguments.
fn exec(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let Some(unit) = cx.unit else { return Err("ERR EXEC without MULTI".into()) };
    let parts = || queued(args).filter(|queued| runs_in_unit(queued.command));
    cx.out.array(parts().count());
    let db = cx.db;
    for part in parts() {
        cx.db = part.db;
        let ran = cx.run_part(unit, part.command, part.args);
        if let Err(stop) = ran {
            let Stop::Error(text) = stop else { return Err(stop) };
            cx.out.error(&*text);
        }
    }
    cx.db = db;
    Ok(())
}

/// What they have in common.
const CONTROL: Spec = Spec {
    group: Group::Transactions,
    since: "1.2.0",
    arity: 1,
    flags: flag::NOSCRIPT
        | flag::LOADING
        | flag::STALE
        | flag::FAST
        | flag::ALLOW_BUSY
        | flag::UNQUEUED,
    ..Spec::NEW
};

/// Transactions.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "multi",
        summary: "Begins a transaction.",
        flags: CONTROL.flags | flag::NO_MULTI,
        run: Run::Session(multi),
        ..CONTROL
    },
    Spec {
        name: "discard",
        since: "2.0.0",
        complexity: "O(N), when N is the number of queued commands",
        summary: "Gives a transaction up.",
        run: Run::Session(discard),
        ..CONTROL
    },
    Spec {
        name: "exec",
        complexity: "Depends on commands in the transaction",
        summary: "Runs a transaction.",
        flags: flag::NOSCRIPT
            | flag::LOADING
            | flag::STALE
            | flag::SKIP_SLOWLOG
            | flag::UNQUEUED
            | flag::EXEC,
        unit: true,
        other_db: Some(transaction::keys),
        run: Run::Keys(exec),
        ..CONTROL
    },
];
