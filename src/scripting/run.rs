//! One run of a script: its context, and the conditions that end it.

use super::to_reply::{Limits, error_text, is_counted_error, place_of, write_value};
use super::vm::Vm;
use crate::node::limits;
use crate::scripts::{Control, ScriptFlags, ScriptKind};
use crate::unit::{IN_PLACE, Unit, UnitOutcome, UnitStop};
use flagstone_commands::{Ctx, ErrorText, flag};
use flagstone_lua::{self as lua, Inputs};
use flagstone_storage::slot::slot_of;
use flagstone_wire::resp::{OwnedArgs, Proto, Reply};
use mlua::{Function, Value};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

/// Number of instructions in one step that are allowed on a worker's thread.
const AT_ONCE_IN_PLACE: u64 = 200_000;

/// A script or function to run.
#[derive(Clone, Copy, Debug)]
pub struct ScriptCall<'a> {
    pub kind: ScriptKind,
    /// Hash of the script, or name of the function.
    pub name: &'a str,
    pub flags: ScriptFlags,
    /// True for EVAL_RO and the like.
    pub read_only: bool,
    pub keys: &'a [&'a [u8]],
    pub args: &'a [&'a [u8]],
    /// The command that runs it, for clients that ask for the running script.
    pub command: flagstone_wire::resp::Args<'a>,
}

/// Context of a run.
pub(super) struct Run<'a, 'c> {
    pub(super) cx: &'a mut Ctx<'c>,
    pub(super) unit: &'a Unit<'a>,
    pub(super) kind: ScriptKind,
    pub(super) read_only: bool,
    /// Error of commands that need memory, if they are refused.
    pub(super) no_memory: Option<&'static str>,
    /// Protocol of the replies that the script receives.
    pub(super) proto: Proto,
    /// In a cluster, the slot of the keys that it was given, and of those that it has named.
    pub(super) declared: Option<u16>,
    pub(super) slot: Cell<Option<u16>>,
    /// True if it may name keys of several slots.
    pub(super) may_cross_slots: bool,
    /// True if it has called a command that writes.
    pub(super) wrote: bool,
    /// Reason why it cannot go on: Lua code cannot catch that.
    pub(super) stop: Option<UnitStop>,
    /// Buffer for the replies of its commands.
    pub(super) reply: Reply,
    /// Text of the last error.
    pub(super) failure: Vec<u8>,
    /// Arguments of its commands.
    pub(super) args: OwnedArgs,
    control: Option<Arc<Control>>,
    instructions: u64,
}

thread_local! {
    /// The run of this thread, while Lua runs.
    static CURRENT: Cell<Option<NonNull<Run<'static, 'static>>>> = const { Cell::new(None) };
}

/// Makes `run` the current run of this thread while `f` runs. `f` accesses it only by [`current`].
fn enter<T>(run: &mut Run<'_, '_>, f: impl FnOnce() -> T) -> T {
    struct Leave(Option<NonNull<Run<'static, 'static>>>);
    impl Drop for Leave {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let pointer = NonNull::from(run).cast::<Run<'static, 'static>>();
    let _leave = Leave(CURRENT.replace(Some(pointer)));
    f()
}

/// Calls `f` with the run of this thread, for functions that Lua calls; returns `None` if no script
/// runs.
pub(super) fn current<T>(f: impl FnOnce(&mut Run<'_, '_>) -> T) -> Option<T> {
    struct Back(NonNull<Run<'static, 'static>>);
    impl Drop for Back {
        fn drop(&mut self) {
            CURRENT.set(Some(self.0));
        }
    }
    // While it is used, it is not available to other callers.
    let mut back = Back(CURRENT.take()?);
    // SAFETY: `enter` holds the run mutably as long as the pointer is set, and hands it to no other code;
    // it was taken out of the cell, so this is the only use. `f` takes it with any lifetimes, so it
    // can keep nothing of it.
    Some(f(unsafe { back.0.as_mut() }))
}

impl Run<'_, '_> {
    /// Returns true if the run may go on, after `instructions` since the last check. If not, it
    /// ends, even if the script catches errors.
    fn may_go_on(&mut self, instructions: u64) -> bool {
        if self.stop.is_none() {
            self.stop = self.look(instructions).err();
        }
        self.stop.is_none()
    }

    /// Checks how long it has been running, and if it has to end.
    fn look(&mut self, instructions: u64) -> UnitOutcome {
        self.instructions = self.instructions.saturating_add(instructions);
        let node = &self.unit.node;
        let settings = self.unit.settings;
        if settings.script_instruction_limit != 0
            && self.instructions > settings.script_instruction_limit
        {
            return Err(UnitStop::Undone("ERR the script was ended: it has run more instructions than script-instruction-limit allows".into()));
        }
        let elapsed = self.unit.began.elapsed();
        if !self.unit.is_detached() {
            let is_long = elapsed > IN_PLACE || instructions > AT_ONCE_IN_PLACE;
            return if is_long { Err(UnitStop::Detached) } else { Ok(()) };
        }
        let is_void = || self.unit.request.is_of_stream() && node.health.replica.is_outdated();
        if node.ending.is_ending() || is_void() {
            return Err(UnitStop::Closing);
        }
        let Some(control) = &self.control else { return Ok(()) };
        if control.is_killed() {
            return Err(killed(self.kind, &[]));
        }
        let threshold_ms = settings.busy_reply_threshold_ms;
        if threshold_ms > 0
            && elapsed.as_millis() >= u128::from(threshold_ms)
            && node.code.scripts.running.set_busy(control)
            && let Some(others) = node.code.scripts.running.tells(Instant::now())
        {
            tracing::warn!(
                name = control.name,
                others_since_the_last_line = others,
                "a script has been running for {} ms; SCRIPT KILL or FUNCTION KILL ends it, or, if it \
                has written, the end of the server",
                elapsed.as_millis()
            );
        }
        Ok(())
    }

    /// Writes the value that the script has returned.
    fn reply_with(&mut self, out: &mut Reply, value: &Value) -> Result<(), ErrorText> {
        if self.stop.is_some() {
            return Ok(());
        }
        let (unit, proto) = (self.unit, self.proto);
        let mut errors = |text: &[u8]| {
            let mut effects = unit.effects();
            effects.error_counted = true;
            if !text.is_empty() {
                effects.error(text);
            }
        };
        let mut watch = |values| self.may_go_on(values);
        let limits = Limits { max_bytes: unit.node.code.scripts.max_vm_bytes, watch: &mut watch };
        write_value(out, value, proto, limits, &mut errors)
    }

    /// Records that the script is about to write.
    pub(super) fn writes(&mut self) {
        if !self.wrote {
            self.wrote = true;
            if let Some(control) = &self.control {
                control.writes();
            }
        }
    }
}

/// Returns the stop of a script that was killed. `place`: where it was.
fn killed(kind: ScriptKind, place: &[u8]) -> UnitStop {
    let by = if kind == ScriptKind::Script { "SCRIPT" } else { "FUNCTION" };
    let text = format!("ERR Script killed by user with {by} KILL.");
    UnitStop::Undone([text.as_bytes(), place].concat().into())
}

/// Called while Lua runs: returns true if the run of this thread may go on.
fn watch(instructions: u64) -> bool {
    current(|run| run.may_go_on(instructions)).unwrap_or(true)
}

/// How a function receives keys and arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputForm {
    /// As the globals KEYS and ARGV.
    Globals,
    /// As its arguments.
    Arguments,
}

/// Runs a function of a VM, and writes its reply.
pub fn run(
    cx: &mut Ctx<'_>,
    unit: &Unit<'_>,
    vm: &mut Vm,
    function: &Function,
    call: ScriptCall<'_>,
    form: InputForm,
) -> UnitOutcome {
    let entered = unit.is_detached().then(|| {
        let command = call.command.iter().map(Box::from).collect();
        let control = Control::new(call.kind, call.name.to_owned(), command, unit.began);
        unit.node.code.scripts.running.add(control)
    });
    let db = cx.db;
    let mut out = std::mem::replace(cx.out, Reply::new(cx.out.proto()));
    let compatible = call.flags.contains(ScriptFlags::COMPATIBLE);
    let in_cluster = unit.settings.cluster_enabled;
    if in_cluster && !compatible && call.flags.contains(ScriptFlags::NO_CLUSTER) {
        *cx.out = out;
        let text = "ERR Can not run script on cluster, 'no-cluster' flag is set.";
        return Err(text.into());
    }
    let allows_oom = !compatible && call.flags.contains(ScriptFlags::ALLOW_OOM);
    let no_memory = match allows_oom {
        true => None,
        false => limits::refusal(&unit.node.health, unit.settings, flag!(DENYOOM)),
    };
    let declared = call.keys.first().map(|key| slot_of(key));
    let mut run = Run {
        unit,
        kind: call.kind,
        read_only: call.read_only || (!compatible && call.flags.contains(ScriptFlags::NO_WRITES)),
        no_memory,
        proto: Proto::Resp2,
        declared,
        slot: Cell::new(declared),
        may_cross_slots: compatible || call.flags.contains(ScriptFlags::ALLOW_CROSS_SLOT_KEYS),
        wrote: false,
        stop: None,
        reply: Reply::new(Proto::Resp2),
        failure: Vec::new(),
        args: OwnedArgs::default(),
        control: entered.as_ref().map(|entered| entered.control.clone()),
        instructions: 0,
        cx,
    };
    let inputs =
        Inputs { keys: call.keys, args: call.args, as_globals: form == InputForm::Globals };
    let called = enter(&mut run, || lua::run(&vm.lua, function, inputs, watch));
    let place = match &called {
        Ok((false, error)) => place_of(error, call.name),
        _ => Vec::new(),
    };
    let outcome = match called {
        Ok((true, value)) => run.reply_with(&mut out, &value).map_err(UnitStop::from),
        Ok((false, error)) => {
            unit.effects().error_counted = is_counted_error(&error);
            Err(error_text(&error, call.name).into())
        }
        Err(error) => {
            vm.spoil();
            Err(format!("ERR Error running script {}, {error}", call.name).into())
        }
    };
    let Run { stop, cx, .. } = run;
    // A script that was killed while it was about to end for another reason does not run again.
    let is_killed = entered.as_ref().is_some_and(|entered| entered.control.is_killed());
    let stop = stop.map(|stop| if is_killed { killed(call.kind, &place) } else { stop });
    drop(entered);
    cx.db = db;
    *cx.out = out;
    stop.map_or(outcome, Err)
}
