//! Loads a library: runs its code, which registers its functions.

use super::metadata::is_name;
use crate::scripts::{ScriptFlags, error_table, log_line, put_constants, within, write_log};
use flagstone_lua::{self as lua, Watch};
use flagstone_storage::encoding::Function as Row;
use mlua::{Function, Lua, MultiValue, Table, Value};
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

/// Maximum time that the code of a library may run until its functions are registered.
const LIMIT: Duration = Duration::from_millis(500);

/// Maximum number of functions that a library may register.
const MAX_FUNCTIONS: usize = 10_000;

/// Error text when the time is over.
const TIMEOUT: &str = "ERR FUNCTION LOAD timeout";

/// Limits of the code of a library until its functions are registered.
#[derive(Clone, Copy, Debug)]
pub struct LoadLimits {
    pub time: Duration,
    /// Bytes of the names and descriptions of its functions.
    pub bytes: usize,
}

/// A function that the code of a library has registered.
#[derive(Debug)]
pub struct Registered {
    pub name: Vec<u8>,
    pub description: Option<Vec<u8>>,
    pub flags: ScriptFlags,
}

impl Registered {
    fn bytes(&self) -> usize {
        self.name.len() + self.description.as_ref().map_or(0, Vec::len)
    }
}

/// The functions that the code of a library has registered, in order.
#[derive(Debug)]
pub struct LoadedFunctions {
    pub registered: Vec<Registered>,
    /// Their callbacks, the first at index 1. They are in a table of Lua, as the binding has room for a
    /// few thousand values that are kept outside.
    pub callbacks: Table,
    bytes: usize,
}

impl LoadedFunctions {
    fn add(&mut self, (function, callback): (Registered, Function), most: usize) -> Added {
        if self.registered.len() >= MAX_FUNCTIONS {
            return Err("too many functions");
        }
        if function.bytes() > most.saturating_sub(self.bytes) {
            return Err("the names and descriptions of the functions take too much memory");
        }
        let kept = self.callbacks.raw_set(self.registered.len() + 1, callback);
        kept.map_err(|_| "not enough memory")?;
        self.bytes += function.bytes();
        self.registered.push(function);
        Ok(())
    }
}

/// Nothing, or the text of an error.
type Added = Result<(), &'static str>;

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
/// by running it in a new VM of up to `max_vm_bytes`; fails with the error text if it cannot be
/// loaded, or if their names and descriptions have more than `max_bytes`. Blocks the thread for up to
/// half a second.
pub fn inspect(body: &[u8], max_vm_bytes: usize, max_bytes: usize) -> Result<Vec<Row>, String> {
    let no_vm = |error| format!("ERR there is no VM for functions: {error}");
    let vm = lua::new_vm(max_vm_bytes).map_err(no_vm)?;
    lua::seal(&vm).map_err(no_vm)?;
    let limits = LoadLimits { time: LIMIT, bytes: max_bytes };
    let loaded = load(&vm, body, limits, true).map_err(LoadError::into_text)?;
    let mut rows: Vec<Row> = Vec::with_capacity(loaded.registered.len());
    let mut names = HashSet::new();
    for function in loaded.registered {
        if !is_name(&function.name) {
            return Err("ERR Function names can only contain letters, numbers, or underscores(_) \
                        and must be at least one character long"
                .into());
        }
        if !names.insert(function.name.to_ascii_lowercase()) {
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
/// functions that it registers. Its log lines are written if it `logs`.
pub fn load(
    vm: &Lua,
    body: &[u8],
    limits: LoadLimits,
    logs: bool,
) -> Result<LoadedFunctions, LoadError> {
    let run = |watch: Watch| run_code(vm, body, (logs, limits.bytes), watch);
    let (loaded, is_late) = within(limits.time, run);
    if is_late { Err(LoadError::Late) } else { loaded.map_err(LoadError::Failed) }
}

/// Returns the functions, or the error text.
fn run_code(
    vm: &Lua,
    body: &[u8],
    (logs, most): (bool, usize),
    watch: Watch,
) -> Result<LoadedFunctions, String> {
    let chunk = lua::compile(vm, "@user_function", body, watch).map_err(|error| {
        let text = match error {
            mlua::Error::SyntaxError { message, .. } => message,
            other => other.to_string(),
        };
        format!("ERR Error compiling function: {text}")
    })?;
    let loading = Loading::begin(vm, logs, most).map_err(failed)?;
    let ran = lua::begin_run(vm).and_then(|()| lua::call(vm, &chunk, (), watch));
    let loaded = loading.end();
    match ran {
        Ok(Ok(_)) => loaded.ok_or_else(|| failed("ERR the functions are gone")),
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
    loaded: Rc<RefCell<Option<LoadedFunctions>>>,
}

impl<'a> Loading<'a> {
    /// Begins to load functions with names and descriptions of at most so many bytes.
    fn begin(vm: &'a Lua, logs: bool, most: usize) -> mlua::Result<Self> {
        let callbacks = vm.create_table()?;
        let none = LoadedFunctions { registered: Vec::new(), callbacks, bytes: 0 };
        let loaded = Rc::new(RefCell::new(Some(none)));
        let api = vm.create_table()?;
        let kept = loaded.clone();
        let register = lua::raising(vm, move |vm, args| {
            let mut loaded = kept.borrow_mut();
            let added = match &mut *loaded {
                None => Err("server.register_function can only be called on FUNCTION LOAD command"),
                Some(all) => read_args(args).and_then(|function| all.add(function, most)),
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
        Ok(Self { vm, loaded })
    }

    /// Returns the registered functions, and ends the registration.
    fn end(self) -> Option<LoadedFunctions> {
        self.loaded.take()
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.loaded.take();
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
fn read_args(args: MultiValue) -> Result<(Registered, Function), &'static str> {
    let mut args = args.into_iter();
    match (args.next(), args.next(), args.next()) {
        (Some(named), None, _) => read_named(&named),
        (Some(name), Some(callback), None) => {
            let text = "first argument to server.register_function must be a string";
            let name = string(&name).ok_or(text)?;
            let Value::Function(callback) = callback else {
                return Err("second argument to server.register_function must be a function");
            };
            let flags = ScriptFlags::default();
            Ok((Registered { name, description: None, flags }, callback))
        }
        _ => Err("wrong number of arguments to server.register_function"),
    }
}

fn read_named(args: &Value) -> Result<(Registered, Function), &'static str> {
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
    Ok((Registered { name, description, flags }, callback))
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
