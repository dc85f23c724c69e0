//! Loads a library: runs its code, which registers its functions.

use super::metadata::is_name;
use crate::scripts::{ScriptFlags, error_table, log_line, put_constants, within, write_log};
use flagstone_lua::{self as lua, Watch};
use flagstone_storage::encoding::Function as Row;
use mlua::{Function, Lua, MultiValue, Table, Value};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Maximum time that the code of a library may run until its functions are registered.
const LIMIT: Duration = Duration::from_millis(500);

/// Maximum number of functions that a library may register.
const MAX_FUNCTIONS: usize = 10_000;

/// Error text when the time is over.
const TIMEOUT: &str = "ERR FUNCTION LOAD timeout";

/// A function that the code of a library has registered.
#[derive(Debug)]
pub struct Registered {
    pub name: Vec<u8>,
    pub description: Option<Vec<u8>>,
    pub flags: ScriptFlags,
    pub callback: Function,
}

/// Reason why a library cannot be loaded.
#[derive(Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The code has run too long.
    Late,
    /// The code has failed, with this error text.
    Failed(String),
}

impl LoadError {
    /// Returns the error text.
    pub fn into_text(self) -> String {
        match self {
            Self::Late => failed(TIMEOUT),
            Self::Failed(text) => text,
        }
    }
}

/// Returns the functions that the code of a library (from the end of its first line on) registers,
/// by running it in a new VM of up to `max_bytes`; fails with the error text if it cannot be
/// loaded. Blocks the thread for up to half a second.
pub fn inspect(body: &[u8], max_bytes: usize) -> Result<Vec<Row>, String> {
    let no_vm = |error| format!("ERR there is no VM for functions: {error}");
    let vm = lua::new_vm(max_bytes).map_err(no_vm)?;
    lua::seal(&vm).map_err(no_vm)?;
    let registered = load(&vm, body, LIMIT, true).map_err(LoadError::into_text)?;
    let mut rows: Vec<Row> = Vec::with_capacity(registered.len());
    for function in registered {
        if !is_name(&function.name) {
            return Err("ERR Function names can only contain letters, numbers, or underscores(_) \
                        and must be at least one character long"
                .into());
        }
        if rows.iter().any(|row| row.name.eq_ignore_ascii_case(&function.name)) {
            return Err("ERR Function already exists in the library".into());
        }
        rows.push(Row {
            name: function.name.into(),
            description: function.description.map(Into::into),
            flags: function.flags.bits().into(),
        });
    }
    if rows.is_empty() { Err("ERR No functions registered".into()) } else { Ok(rows) }
}

/// Runs the code of a library (from the end of its first line on) in a sealed VM, and returns the
/// functions that it registers, in order. Its log lines are written if it `logs`.
pub fn load(
    vm: &Lua,
    body: &[u8],
    limit: Duration,
    logs: bool,
) -> Result<Vec<Registered>, LoadError> {
    let (loaded, is_late) = within(limit, |watch| run_code(vm, body, logs, watch));
    if is_late { Err(LoadError::Late) } else { loaded.map_err(LoadError::Failed) }
}

/// Returns the functions, or the error text.
fn run_code(vm: &Lua, body: &[u8], logs: bool, watch: Watch) -> Result<Vec<Registered>, String> {
    let chunk = lua::compile(vm, "@user_function", body, watch).map_err(|error| {
        let text = match error {
            mlua::Error::SyntaxError { message, .. } => message,
            other => other.to_string(),
        };
        format!("ERR Error compiling function: {text}")
    })?;
    let loading = Loading::begin(vm, logs).map_err(failed)?;
    let ran = lua::begin_run(vm).and_then(|()| lua::call(vm, &chunk, (), watch));
    let registered = loading.end();
    match ran {
        Ok(Ok(_)) => Ok(registered),
        Ok(Err(raised)) => Err(failed(text_of(&raised))),
        Err(error) => Err(failed(error)),
    }
}

fn failed(text: impl std::fmt::Display) -> String {
    format!("ERR Error registering functions: {text}")
}

/// Returns the text of an error that the code has raised.
fn text_of(raised: &Value) -> String {
    let text = match raised {
        Value::Table(table) => table.raw_get::<mlua::LuaString>("err").ok(),
        Value::String(text) => return format!("ERR {}", text.to_string_lossy()),
        _ => None,
    };
    text.map_or_else(|| "ERR unknown error".into(), |text| text.to_string_lossy())
}

/// A library that is being loaded: the globals are those of libraries, and registered functions are
/// collected.
struct Loading<'a> {
    vm: &'a Lua,
    registered: Rc<RefCell<Option<Vec<Registered>>>>,
}

impl<'a> Loading<'a> {
    fn begin(vm: &'a Lua, logs: bool) -> mlua::Result<Self> {
        let registered = Rc::new(RefCell::new(Some(Vec::new())));
        let api = vm.create_table()?;
        let kept = registered.clone();
        let register = lua::raising(vm, move |vm, args| {
            let mut registered = kept.borrow_mut();
            let added = match &mut *registered {
                None => Err("server.register_function can only be called on FUNCTION LOAD command"),
                Some(all) if all.len() >= MAX_FUNCTIONS => Err("too many functions"),
                Some(all) => read_args(args).map(|function| all.push(function)),
            };
            added.map(|()| MultiValue::new()).map_err(|text| raised(vm, text))
        })?;
        let log = lua::raising(vm, move |vm, args| {
            let (level, text) = log_line(&args).map_err(|text| raised(vm, text))?;
            if logs {
                write_log(level, &text);
            }
            Ok(MultiValue::new())
        })?;
        api.raw_set("register_function", register)?;
        api.raw_set("log", log)?;
        put_constants(vm, &api)?;
        let api = lua::read_only(vm, &api, true)?;
        let globals = vm.create_table()?;
        globals.raw_set("redis", &api)?;
        globals.raw_set("server", &api)?;
        let globals = lua::read_only(vm, &globals, true)?;
        lua::restrict_globals(vm, Some(&globals))?;
        Ok(Self { vm, registered })
    }

    /// Returns the registered functions, and ends the registration.
    fn end(self) -> Vec<Registered> {
        self.registered.take().unwrap_or_default()
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.registered.take();
        if let Err(error) = lua::restrict_globals(self.vm, None) {
            tracing::error!(%error, "a VM of functions is of no use any more");
        }
    }
}

/// Returns an error in the form in which scripts raise it.
fn raised(vm: &Lua, text: &str) -> Value {
    let text = if text.starts_with("ERR ") { text.to_owned() } else { format!("ERR {text}") };
    error_table(vm, text.as_bytes()).map_or(Value::Nil, Value::Table)
}

/// Parses the arguments of `register_function`.
fn read_args(args: MultiValue) -> Result<Registered, &'static str> {
    let mut args = args.into_iter();
    match (args.next(), args.next(), args.next()) {
        (Some(named), None, _) => read_named(&named),
        (Some(name), Some(callback), None) => {
            let text = "first argument to server.register_function must be a string";
            let name = string(&name).ok_or(text)?;
            let Value::Function(callback) = callback else {
                return Err("second argument to server.register_function must be a function");
            };
            Ok(Registered { name, description: None, flags: ScriptFlags::default(), callback })
        }
        _ => Err("wrong number of arguments to server.register_function"),
    }
}

fn read_named(args: &Value) -> Result<Registered, &'static str> {
    let Value::Table(args) = args else {
        return Err("calling server.register_function with a single argument is only applicable \
                    to Lua table (representing named arguments).");
    };
    let (mut name, mut description, mut flags, mut callback) =
        (None, None, ScriptFlags::default(), None);
    for pair in args.pairs::<Value, Value>() {
        const KEY: &str = "named argument key given to server.register_function is not a string";
        let (key, value) = pair.map_err(|_| KEY)?;
        let key = string(&key).ok_or(KEY)?;
        match &*key.to_ascii_lowercase() {
            b"function_name" => {
                name = Some(string(&value).ok_or(
                    "function_name argument given to server.register_function must be a string",
                )?);
            }
            b"description" => {
                description = Some(string(&value).ok_or(
                    "description argument given to server.register_function must be a string",
                )?);
            }
            b"callback" => match value {
                Value::Function(function) => callback = Some(function),
                _ => {
                    return Err("callback argument given to server.register_function must be a \
                                function");
                }
            },
            b"flags" => match value {
                Value::Table(names) => flags = read_flags(&names).ok_or("unknown flag given")?,
                _ => {
                    return Err("flags argument to server.register_function must be a table \
                                representing function flags");
                }
            },
            _ => return Err("unknown argument given to server.register_function"),
        }
    }
    let name = name.ok_or("server.register_function must get a function name argument")?;
    let callback = callback.ok_or("server.register_function must get a callback argument")?;
    Ok(Registered { name, description, flags, callback })
}

fn read_flags(names: &Table) -> Option<ScriptFlags> {
    let mut flags = ScriptFlags::default();
    for at in 1.. {
        match names.raw_get::<Value>(at).ok()? {
            Value::Nil => break,
            name => flags |= ScriptFlags::named(&string(&name)?.to_ascii_lowercase())?,
        }
    }
    Some(flags)
}

/// Returns a string, or a number as text.
fn string(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(_) | Value::Number(_) => value.to_string().ok().map(String::into_bytes),
        _ => None,
    }
}
