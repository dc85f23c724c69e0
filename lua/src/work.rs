//! Counts the work of a script, and checks regularly whether it may go on.
//!
//! The interpreter's hook counts instructions; native functions count their work with [`charge`],
//! as that many instructions. After [`LOOK_EVERY`] of them the run's [`Watch`] is asked whether it
//! may go on. If not, it is *ended*: by an error which nothing in the script can catch, as
//! everything that catches errors (`pcall`, `xpcall`, coroutines, `load`) raises it again.
//!
//! An instruction may take long on long strings and large tables: a comparison reads all bytes. So
//! the more memory a VM uses, the more an instruction weighs.

use std::cell::Cell;
use std::ffi::c_int;

use mlua::ffi;

use crate::raw::State;

/// Number of instructions, or their equivalent, between two checks of a run.
const LOOK_EVERY: u64 = 10_000;

/// Number of instructions between two calls of the hook. Each coroutine counts its own.
pub(crate) const HOOK_EVERY: c_int = 100;

/// Lower bound of [`HOOK_EVERY`] in a VM that uses much memory.
const HOOK_EVERY_MIN: c_int = 16;

/// Memory in KiB per unit of an instruction's weight.
const HEAVIER_PER_KIB: u64 = 16;

/// Memory in KiB from which on the hook is called more often.
const MUCH_KIB: u64 = 4096;

/// Number of bytes copied or compared in the time of an instruction.
const BYTES: usize = 64;

/// Duration of an instruction in nanoseconds.
const NANOSECONDS: u64 = 16;

/// Returns true if a run may go on; `instructions`: its work since the last call.
pub type Watch = fn(instructions: u64) -> bool;

const ENDED_TEXT: &str = "the script was ended";

thread_local! {
    static WATCH: Cell<Option<Watch>> = const { Cell::new(None) };
    /// Work since the last check.
    static DONE: Cell<u64> = const { Cell::new(0) };
    /// Weight of the work since the last check.
    static WEIGHT: Cell<u64> = const { Cell::new(0) };
    static ENDED: Cell<bool> = const { Cell::new(false) };
}

/// Watches the runs of this thread until it is dropped.
pub(crate) struct Watched(Option<Watch>);

impl Watched {
    pub(crate) fn begin(watch: Watch) -> Self {
        DONE.set(0);
        WEIGHT.set(0);
        ENDED.set(false);
        Self(WATCH.replace(Some(watch)))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        WATCH.set(self.0);
        ENDED.set(false);
    }
}

/// Returns true if the run has been ended: its error must be raised again.
pub(crate) fn is_ended() -> bool {
    ENDED.get()
}

/// Raises the end of the run again. Must be called where an error was caught, which is on top of
/// the stack.
pub(crate) fn rethrow_end(state: State) {
    if is_ended() {
        state.raise();
    }
}

/// Ends the run.
pub(crate) fn end(state: State) -> ! {
    ENDED.set(true);
    state.plain_error(ENDED_TEXT);
}

/// Charges work that is about to be done, and checks the run when it is time.
pub(crate) fn charge(state: State, instructions: u64) {
    DONE.set(DONE.get().saturating_add(instructions));
    weigh(state, instructions);
}

/// Like [`charge`], for work of which each instruction may take long in a VM that uses much memory.
pub(crate) fn charge_heavy(state: State, instructions: u64) {
    DONE.set(DONE.get().saturating_add(instructions));
    weigh(state, instructions * heaviness(state.used_kib()));
}

/// Returns the weight of an instruction in a VM that uses so much memory.
fn heaviness(kib: u64) -> u64 {
    1 + kib / HEAVIER_PER_KIB
}

/// Like [`charge`], for work on so many bytes.
pub(crate) fn charge_bytes(state: State, bytes: usize) {
    charge(state, 1 + (bytes / BYTES) as u64);
}

/// Charges time spent on work that is not the script's own.
pub(crate) fn charge_time(nanoseconds: u64) {
    WEIGHT.set(WEIGHT.get().saturating_add(nanoseconds / NANOSECONDS));
}

fn weigh(state: State, weight: u64) {
    let weight = WEIGHT.get().saturating_add(weight);
    WEIGHT.set(weight);
    if weight >= LOOK_EVERY {
        check_run(state);
    }
}

#[cold]
fn check_run(state: State) {
    WEIGHT.set(0);
    let done = DONE.replace(0);
    if ENDED.get() || !WATCH.get().is_none_or(|watch| watch(done)) {
        end(state);
    }
}

/// Sets the hook of a new VM; its coroutines get it from there.
pub(crate) fn set_hook(state: State, every: c_int) {
    // SAFETY: the state is valid, and the hook owns nothing.
    unsafe { ffi::lua_sethook(state.as_ptr(), Some(hook), ffi::LUA_MASKCOUNT, every) };
}

/// Called between instructions.
unsafe extern "C-unwind" fn hook(state: *mut mlua::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: Lua calls this with a valid state; there is nothing that is dropped.
    let (state, count) = unsafe { (State::new(state), ffi::lua_gethookcount(state)) };
    let kib = state.used_kib();
    let every = hook_interval(kib);
    if every != count {
        set_hook(state, every);
    }
    if ENDED.get() {
        end(state);
    }
    let done = u64::from(count.unsigned_abs());
    DONE.set(DONE.get() + done);
    weigh(state, done * heaviness(kib));
}

fn hook_interval(kib: u64) -> c_int {
    if kib <= MUCH_KIB {
        return HOOK_EVERY;
    }
    let every = u64::from(HOOK_EVERY.unsigned_abs()) * MUCH_KIB / kib;
    c_int::try_from(every).unwrap_or(HOOK_EVERY).max(HOOK_EVERY_MIN)
}
