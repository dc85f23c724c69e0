//! EVAL, EVALSHA and SCRIPT: commands on scripts.

mod manage;

pub(in crate::commands) use manage::answer_kill;

use crate::commands::{Handler, Spec};
use crate::node::{Node, limits};
use crate::scripting::{InputForm, ScriptCall, Uncompiled, run, with_vm};
use crate::scripts::{Script, ScriptFlags, ScriptKind, parse_sha, parse_shebang, sha1};
use crate::unit::{Unit, UnitOutcome, UnitStop};
use flagstone_commands::{CommandFlags, Ctx, ErrorText, Group, KeySpec, arg, error, flag, key};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Position of the number of keys.
pub(super) const NUMKEYS: usize = 2;

/// Number of digits of a script's hash.
const SHA_DIGITS: usize = 40;

pub(super) const NO_SCRIPT: &str = "NOSCRIPT No matching script.";

const TOO_MANY_SCRIPTS: &str = "OOM there are too many scripts: SCRIPT FLUSH forgets them";

/// `EVAL script numkeys [key …] [arg …]`
fn eval(cx: &mut Ctx<'_>, unit: &Unit<'_>, args: Args<'_>, read_only: bool) -> UnitOutcome {
    show(cx, unit, args);
    let inputs = keys_and_args(args)?;
    let body = arg(args, 1)?;
    let script = match unit.node.code.scripts.get(sha1(body)) {
        Some(script) => script,
        None => add(&unit.node, body, false, unit.is_detached())?,
    };
    run_script(cx, unit, &script, read_only, &inputs, args)
}

/// `EVALSHA sha1 numkeys [key …] [arg …]`
fn evalsha(cx: &mut Ctx<'_>, unit: &Unit<'_>, args: Args<'_>, read_only: bool) -> UnitOutcome {
    show(cx, unit, args);
    // A text that cannot be a hash is refused before the keys are parsed.
    if arg(args, 1)?.len() != SHA_DIGITS {
        return Err(NO_SCRIPT.into());
    }
    let inputs = keys_and_args(args)?;
    let found = parse_sha(arg(args, 1)?).and_then(|sha| unit.node.code.scripts.get(sha));
    let script = found.ok_or(NO_SCRIPT)?;
    run_script(cx, unit, &script, read_only, &inputs, args)
}

/// Shows the command of a script or function to monitors, whatever its result, before the commands
/// that it calls.
pub(super) fn show(cx: &Ctx<'_>, unit: &Unit<'_>, command: Args<'_>) {
    if unit.node.broadcast.monitors.any() {
        unit.effects().show(cx.db, false, command);
    }
}

/// Returns the keys and the arguments of a script or function.
pub(super) fn keys_and_args(args: Args<'_>) -> Result<[Vec<&[u8]>; 2], ErrorText> {
    let count = parse_i64(arg(args, NUMKEYS)?).ok_or(error::NOT_INTEGER)?;
    let rest = args.len() - NUMKEYS - 1;
    if count > rest as i64 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    let count = usize::try_from(count).map_err(|_| "ERR Number of keys can't be negative")?;
    let mut all = args.skip(NUMKEYS + 1).iter();
    Ok([all.by_ref().take(count).collect(), all.collect()])
}

/// Compiles a script and adds it to those that the node knows. One that is too long for a worker's
/// thread is compiled on a thread of its own.
fn add(
    node: &Arc<Node>,
    body: &[u8],
    loaded: bool,
    is_detached: bool,
) -> Result<Arc<Script>, Uncompiled> {
    let (flags, start) = parse_shebang(body)?;
    let script = Arc::new(Script::new(body, flags, start));
    with_vm(node, is_detached, |vm| Ok(vm.function(node, &script, is_detached)))??;
    if !node.code.scripts.add(&script, loaded) {
        return Err(Uncompiled::Failed(TOO_MANY_SCRIPTS.into()));
    }
    Ok(script)
}

/// Checks that a script with these flags may run.
pub(super) fn check_flags(
    unit: &Unit<'_>,
    flags: ScriptFlags,
    read_only: bool,
) -> Result<(), ErrorText> {
    if flags.contains(ScriptFlags::COMPATIBLE) || unit.request.is_of_stream() {
        return Ok(());
    }
    if read_only && !flags.contains(ScriptFlags::NO_WRITES) {
        return Err("ERR Can not execute a script with write flag using *_ro command.".into());
    }
    // The refusal may have begun after the script was admitted.
    let needs = flags.command_flags(CommandFlags::empty());
    if let Some(text) = limits::refusal(&unit.node.health, unit.settings, needs & flag!(WRITE)) {
        return Err(text.into());
    }
    if limits::refusal(&unit.node.health, unit.settings, needs & flag!(DENYOOM)).is_some() {
        return Err(
            "OOM allow-oom flag is not set on the script, can not run it when used memory > \
            'maxmemory'"
                .into(),
        );
    }
    Ok(())
}

/// Returns the flags of the script in the arguments of EVAL.
fn flags_of_text(_: &Node, args: Args<'_>) -> Option<ScriptFlags> {
    parse_shebang(args.get(1)?).ok().map(|(flags, _)| flags)
}

/// Returns the flags of the script that EVALSHA names.
fn flags_of_sha(node: &Node, args: Args<'_>) -> Option<ScriptFlags> {
    Some(node.code.scripts.get(parse_sha(args.get(1)?)?)?.flags)
}

fn run_script(
    cx: &mut Ctx<'_>,
    unit: &Unit<'_>,
    script: &Script,
    read_only: bool,
    [keys, rest]: &[Vec<&[u8]>; 2],
    command: Args<'_>,
) -> UnitOutcome {
    check_flags(unit, script.flags, read_only)?;
    if !unit.is_detached() && script.is_slow.load(Ordering::Relaxed) {
        return Err(UnitStop::Detached);
    }
    let call = ScriptCall {
        kind: ScriptKind::Script,
        name: &script.name,
        flags: script.flags,
        read_only,
        keys,
        args: rest,
        command,
    };
    let outcome = with_vm(&unit.node, unit.is_detached(), |vm| {
        let function = vm.function(&unit.node, script, unit.is_detached());
        Ok(function
            .map_err(UnitStop::from)
            .and_then(|function| run(cx, unit, vm, &function, call, InputForm::Globals)))
    })?;
    let is_slow = matches!(outcome, Err(UnitStop::Detached));
    if is_slow != script.is_slow.load(Ordering::Relaxed) && (is_slow || unit.was_quick()) {
        script.is_slow.store(is_slow, Ordering::Relaxed);
    }
    outcome
}

/// Base of the commands that run scripts.
pub(super) const EVALUATES: Spec = Spec {
    group: Group::Scripting,
    since: "2.6.0",
    complexity: "Depends on the script that is executed.",
    arity: -3,
    flags: flag!(NOSCRIPT | SKIP_MONITOR | MAY_REPLICATE | NO_MANDATORY_KEYS | STALE),
    keys: &[KeySpec::numkeys(NUMKEYS, key!(RW | ACCESS | UPDATE))],
    ..Spec::NEW
};

pub(super) const READ_ONLY: Spec = Spec {
    since: "7.0.0",
    flags: EVALUATES.flags.difference(flag!(MAY_REPLICATE)).union(flag!(READONLY)),
    keys: &[KeySpec::numkeys(NUMKEYS, key!(RO | ACCESS))],
    ..EVALUATES
};

/// Declarations of the commands on scripts.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "eval",
        summary: "Runs a Lua script.",
        run: Handler::Script {
            run: |cx, unit, args| eval(cx, unit, args, false),
            flags: flags_of_text,
        },
        ..EVALUATES
    },
    Spec {
        name: "evalsha",
        summary: "Runs a Lua script by the SHA-1 of its text.",
        run: Handler::Script {
            run: |cx, unit, args| evalsha(cx, unit, args, false),
            flags: flags_of_sha,
        },
        ..EVALUATES
    },
    Spec {
        name: "eval_ro",
        summary: "Runs a Lua script that does not write.",
        run: Handler::Script {
            run: |cx, unit, args| eval(cx, unit, args, true),
            flags: flags_of_text,
        },
        ..READ_ONLY
    },
    Spec {
        name: "evalsha_ro",
        summary: "Runs a Lua script that does not write by the SHA-1 of its text.",
        run: Handler::Script {
            run: |cx, unit, args| evalsha(cx, unit, args, true),
            flags: flags_of_sha,
        },
        ..READ_ONLY
    },
    Spec {
        name: "script",
        group: Group::Scripting,
        since: "2.6.0",
        complexity: "Depends on subcommand.",
        summary: "Holds the commands on scripts.",
        arity: -2,
        subcommands: manage::SUBCOMMANDS,
        ..Spec::NEW
    },
];
