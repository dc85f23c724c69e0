//! `FCALL`: runs a function like a script.

use crate::commands::scripting::{NUMKEYS, check_flags, keys_and_args, show};
use crate::functions::{Found, Libraries, LoadError};
use crate::node::Node;
use crate::scripting::{InputForm, ScriptCall, run, with_vm};
use crate::scripts::{ScriptFlags, ScriptKind};
use crate::unit::{IN_PLACE, Unit, UnitOutcome, UnitStop};
use flagstone_commands::{Ctx, arg};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum time that a library may take to be loaded on a thread of its own. It was loaded within
/// less when it was added, but the machine may be busier now.
const LOAD_LIMIT: Duration = Duration::from_secs(5);

/// `FCALL function numkeys [key …] [arg …]`
pub(super) fn fcall(
    cx: &mut Ctx<'_>,
    unit: &Unit<'_>,
    args: Args<'_>,
    read_only: bool,
) -> UnitOutcome {
    show(cx, unit, args);
    let libraries = unit.node.code.functions.now();
    let found = libraries.function(arg(args, 1)?).ok_or("ERR Function not found")?;
    parse_i64(arg(args, NUMKEYS)?).ok_or("ERR Bad number of keys provided")?;
    let [keys, rest] = keys_and_args(args)?;
    let flags = ScriptFlags::from_bits_retain(found.function.flags as u32);
    check_flags(unit, flags, read_only)?;
    if !unit.is_detached() && found.is_slow.load(Ordering::Relaxed) {
        return Err(UnitStop::Detached);
    }
    let call = ScriptCall {
        kind: ScriptKind::Function,
        name: std::str::from_utf8(&found.function.name).unwrap_or_default(),
        flags,
        read_only,
        keys: &keys,
        args: &rest,
        command: args,
    };
    let outcome = run_function(cx, unit, &libraries, found, call);
    let is_slow = matches!(outcome, Err(UnitStop::Detached));
    if is_slow != found.is_slow.load(Ordering::Relaxed) && (is_slow || unit.was_quick()) {
        found.is_slow.store(is_slow, Ordering::Relaxed);
    }
    outcome
}

/// Returns the flags of the function that is to be called.
pub(super) fn flags(node: &Node, args: Args<'_>) -> Option<ScriptFlags> {
    let libraries = node.code.functions.now();
    Some(ScriptFlags::from_bits_retain(libraries.function(args.get(1)?)?.function.flags as u32))
}

fn run_function(
    cx: &mut Ctx<'_>,
    unit: &Unit<'_>,
    libraries: &Libraries,
    found: Found<'_>,
    call: ScriptCall<'_>,
) -> UnitOutcome {
    let loads_slowly = &found.library.loads_slowly;
    let limit = match (unit.is_detached(), loads_slowly.load(Ordering::Relaxed)) {
        (true, _) => LOAD_LIMIT,
        (false, false) => IN_PLACE,
        (false, true) => Duration::ZERO,
    };
    with_vm(&unit.node, unit.is_detached(), |vm| {
        let function = match vm.library_function(libraries, found, limit) {
            Ok(function) => function,
            Err(LoadError::Late) if !unit.is_detached() => {
                loads_slowly.store(true, Ordering::Relaxed);
                return Ok(Err(UnitStop::Detached));
            }
            Err(error) => return Err(error.into_text()),
        };
        Ok(run(cx, unit, vm, &function, call, InputForm::Arguments))
    })?
}
