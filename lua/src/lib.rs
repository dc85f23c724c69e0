//! The Lua 5.1 that scripts run in: libraries, sandbox, limits. It knows nothing of stores,
//! commands or workers; `redis.call` and the like are put in by the user of a VM.
//!
//! [`new_vm`], then [`set_global`] for the user's functions, then [`seal`]. For each run
//! [`begin_run`], [`set_global`] for the run's values (KEYS), `call`.
//!
//! Rules of the libraries:
//!
//! - A function whose time grows with its arguments charges it before or while it works. One that
//!   catches errors raises the end of a run again (`work::rethrow_end`).
//! - An error leaves a C function by `longjmp`. A frame that holds a `raw::State` owns nothing that
//!   has to be dropped; values that must last are in `Vm`.
//! - No script gets a protected table itself. A function of `base.rs` that gives or takes a table
//!   without metamethods uses `sandbox::push_unshielded` or `refuse_shield`.

mod base;
mod bit;
mod calls;
mod cjson;
mod cmsgpack;
mod commands;
mod coroutines;
mod generator;
mod json_settings;
mod libraries;
mod patterns;
mod random;
mod raw;
mod sandbox;
mod strings;
mod structs;
mod tables;
#[cfg(test)]
mod tests;
mod vm;
mod work;

use std::ffi::CString;

use mlua::{Function, IntoLua, IntoLuaMulti, Lua, LuaOptions, MultiValue, StdLib, Table, Value};

pub use calls::Inputs;
pub use commands::{CallArg, CallArgs, Called, Caller};
use raw::State;
use vm::Shared;
pub use work::Watch;
use work::Watched;

/// Returns a VM with the libraries of scripts, and no `redis` table yet. It uses up to
/// `memory_limit` bytes; exceeding that raises the error "not enough memory".
pub fn new_vm(memory_limit: usize) -> mlua::Result<Lua> {
    let std = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::OS;
    let lua = Lua::new_with(std, LuaOptions::new())?;
    let mut shared = Shared::new(memory_limit);
    let vm = shared.vm();
    // SAFETY: the closure owns nothing that is dropped; `vm` lives as long as the Lua state.
    let runner: Function = unsafe {
        lua.exec_raw((), |state| {
            let state = State::new(state);
            libraries::install(state, vm);
            work::set_hook(state, work::HOOK_EVERY);
            state.push_function(calls::RUN, 0);
        })
    }?;
    shared.set_runner(runner);
    lua.set_app_data(shared);
    lua.set_memory_limit(memory_limit)?;
    Ok(lua)
}

/// Makes the globals, and every table reachable from them, read-only for scripts. From then on,
/// reading a global that does not exist is an error. Called once.
pub fn seal(lua: &Lua) -> mlua::Result<()> {
    // SAFETY: the closure owns nothing.
    unsafe { lua.exec_raw((), |state| sandbox::seal(State::new(state))) }
}

/// Returns a read-only view of a table, as [`seal`] makes them, for tables that scripts get later.
/// Reading a missing key of `strict` tables is an error, as with globals.
pub fn read_only(lua: &Lua, table: &Table, strict: bool) -> mlua::Result<Table> {
    // SAFETY: the closure owns nothing.
    unsafe {
        lua.exec_raw(table, move |state| {
            let state = State::new(state);
            if strict {
                sandbox::make_strict(state, 1);
            }
            sandbox::shield(state, 1);
            state.replace(1);
        })
    }
}

/// Sets a global, sealed or not. The value is not made read-only.
pub fn set_global(lua: &Lua, name: &str, value: impl IntoLua) -> mlua::Result<()> {
    // SAFETY: the closure owns nothing.
    unsafe { lua.exec_raw((name, value), |state| sandbox::set_global(State::new(state))) }
}

/// With `Some`, looks names of globals up only in that table (while a library is loaded); with
/// `None`, in the real globals again. The VM must be sealed.
pub fn restrict_globals(lua: &Lua, only: Option<&Table>) -> mlua::Result<()> {
    // SAFETY: the closure owns nothing.
    unsafe { lua.exec_raw(only, |state| sandbox::restrict_globals(State::new(state))) }
}

/// Compiles a script: source text only. The chunk name is in Lua's form (`@user_script`). A syntax
/// error's message is in [`mlua::Error::SyntaxError`]; so is that of the run's end, if the watch
/// has ended it.
pub fn compile(lua: &Lua, name: &str, source: &[u8], watch: Watch) -> mlua::Result<Function> {
    let _watched = Watched::begin(watch);
    let name = CString::new(name).map_err(mlua::Error::external)?;
    let chunk = name.as_c_str();
    // SAFETY: the closure owns nothing; it borrows name and source, which outlive it.
    let (function, message): (Option<Function>, Option<mlua::LuaString>) = unsafe {
        lua.exec_raw((), |state| {
            let state = State::new(state);
            if base::load_text(state, source, chunk) {
                state.push_nil();
            } else {
                state.push_nil();
                state.insert(-2);
            }
        })
    }?;
    function.ok_or_else(|| mlua::Error::SyntaxError {
        message: message.map(|text| text.to_string_lossy()).unwrap_or_default(),
        incomplete_input: false,
    })
}

/// Begins a run. Must be called before each run, in the frame that calls the script or above it, on
/// its thread: it resets everything that an earlier script may have set (collector, settings of
/// cjson), and the native stack is measured from here.
pub fn begin_run(lua: &Lua) -> mlua::Result<()> {
    let used = lua.used_memory();
    let shared = lua.app_data_ref::<Shared>().ok_or_else(no_vm)?;
    shared.begin_run();
    let limit = shared.memory_limit();
    drop(shared);
    // The collector does not know the limit: it would let the garbage grow to the size of the used
    // memory.
    if used > limit / 2 { lua.gc_collect() } else { Ok(()) }
}

/// Seeds `math.random`. Scripts may do so too; it goes on from run to run.
pub fn seed_random(lua: &Lua, seed: i32) -> mlua::Result<()> {
    lua.app_data_ref::<Shared>().ok_or_else(no_vm)?.seed(seed);
    Ok(())
}

/// Calls a function, and returns its first result, or the error it raised. An error that is no
/// table is converted to one, `{err = "ERR …"}`, with the fields `source` and `line`; only when
/// there is no memory, or no stack left to handle an error, it is a string.
pub fn call(
    lua: &Lua,
    function: &Function,
    args: impl IntoLuaMulti,
    watch: Watch,
) -> mlua::Result<Result<Value, Value>> {
    let runner = lua.app_data_ref::<Shared>().ok_or_else(no_vm)?.runner()?;
    let mut all = args.into_lua_multi(lua)?;
    all.push_front(Value::Function(function.clone()));
    let _watched = Watched::begin(watch);
    let (done, value): (bool, Value) = runner.call(all)?;
    Ok(if done { Ok(value) } else { Err(value) })
}

/// Begins a run and calls a function. Returns true if it ended normally, and its first result or
/// the error it raised (see [`call`]).
///
/// # Errors
/// If there is no memory for the inputs. The VM may have some of them yet: it must not be used any more.
pub fn run(
    lua: &Lua,
    function: &Function,
    inputs: Inputs<'_>,
    watch: Watch,
) -> mlua::Result<(bool, Value)> {
    begin_run(lua)?;
    let _watched = Watched::begin(watch);
    // SAFETY: the closure owns nothing that is dropped.
    let ran = unsafe {
        lua.exec_raw(function, |state| {
            let state = State::new(state);
            calls::run_with(state, inputs);
        })
    };
    if ran.is_err() && inputs.as_globals {
        // There was no memory for all of them, and there may be none to remove them.
        lua.gc_collect()?;
        calls::INPUTS.into_iter().try_for_each(|name| set_global(lua, name, Value::Nil))?;
    }
    ran
}

/// Returns two functions that call commands: one raises their errors, the other returns them.
pub fn command_functions(lua: &Lua, caller: Caller) -> mlua::Result<(Function, Function)> {
    // SAFETY: the closure owns nothing.
    unsafe { lua.exec_raw((), |state| commands::push_functions(State::new(state), caller)) }
}

/// Returns a function for scripts that may raise any Lua value: `Err(value)` is raised as it is.
/// (An error of a plain [`Lua::create_function`] reaches scripts as userdata.)
pub fn raising<F>(lua: &Lua, function: F) -> mlua::Result<Function>
where
    F: Fn(&Lua, MultiValue) -> Result<MultiValue, Value> + 'static,
{
    let inner = lua.create_function(move |lua, args| {
        Ok(match function(lua, args) {
            Ok(mut results) => {
                results.push_front(Value::Boolean(true));
                results
            }
            Err(value) => MultiValue::from_iter([Value::Boolean(false), value]),
        })
    })?;
    // SAFETY: the closure owns nothing.
    unsafe { lua.exec_raw(inner, |state| State::new(state).push_function(calls::RAISING, 1)) }
}

/// Charges this thread's run with time that it has waited for other work.
pub fn charge_time(nanoseconds: u64) {
    work::charge_time(nanoseconds);
}

fn no_vm() -> mlua::Error {
    mlua::Error::runtime("not a VM for scripts")
}
