//! `redis.call`: a script calls a command.

use super::run::{Run, current};
use super::to_lua::{error_table, to_lua};
use crate::commands::registry::{self, Command};
use crate::commands::{Ctx, Stop, flag};
use crate::limits;
use crate::lua;
use crate::num::format_f64;
use crate::resp::{Args, Reply};
use mlua::{Lua, MultiValue, Value};

/// `redis.call` raises the error of a command, `redis.pcall` returns it.
pub(super) fn call(lua: &Lua, args: MultiValue, raises: bool) -> Result<MultiValue, Value> {
    let called = current(|run| run.call(lua, &args));
    let called = called.unwrap_or_else(|| Ok(Err(CallError::Arguments(NO_SCRIPT))));
    match called {
        Ok(Ok(value)) => Ok(MultiValue::from_iter([value])),
        Ok(Err(error)) => {
            let (text, is_counted) = match &error {
                CallError::Arguments(text) => (text.as_bytes(), false),
                CallError::Command(text) => (&**text, true),
            };
            let error = error_table(lua, text, is_counted).map_or(Value::Nil, Value::Table);
            if raises { Err(error) } else { Ok(MultiValue::from_iter([error])) }
        }
        Err(error) => Err(Value::Error(Box::new(error))),
    }
}

const NO_SCRIPT: &str = "ERR redis.call/pcall can only be called inside a script invocation";

/// Why a call has failed.
enum CallError {
    /// It is no call of a command.
    Arguments(&'static str),
    /// The command was refused, or has failed: that is counted.
    Command(Vec<u8>),
}

impl Run<'_, '_> {
    /// Calls a command: its reply, or its error. What ends the script is the outer error.
    fn call(&mut self, lua: &Lua, args: &MultiValue) -> mlua::Result<Result<Value, CallError>> {
        if let Err(text) = self.take_args(args) {
            return Ok(Err(CallError::Arguments(text)));
        }
        let (bytes, ranges) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.ranges));
        let args = Args::new(&bytes, &ranges);
        let result = match self.admit(args) {
            Ok(command) => {
                self.execute(lua, command, args).map(|result| result.map_err(CallError::Command))
            }
            Err(text) => Ok(Err(CallError::Command(text.into_bytes()))),
        };
        (self.bytes, self.ranges) = (bytes, ranges);
        result
    }

    /// The arguments as bytes.
    fn take_args(&mut self, args: &MultiValue) -> Result<(), &'static str> {
        self.bytes.clear();
        self.ranges.clear();
        if args.is_empty() {
            return Err("ERR Please specify at least one argument for this redis.call() call");
        }
        match lua::packed(args) {
            None => args.iter().try_for_each(|arg| self.take_arg(arg)),
            Some((table, count)) => (1..=count).try_for_each(|n| {
                let arg = table.raw_get(n).unwrap_or(Value::Nil);
                self.take_arg(&arg)
            }),
        }
    }

    fn take_arg(&mut self, arg: &Value) -> Result<(), &'static str> {
        let start = self.bytes.len() as u32;
        match arg {
            Value::String(text) => self.bytes.extend_from_slice(&text.as_bytes()),
            Value::Integer(n) => {
                self.bytes.extend_from_slice(itoa::Buffer::new().format(*n).as_bytes());
            }
            Value::Number(n) => self.bytes.extend_from_slice(format_f64(*n).as_bytes()),
            _ => return Err("ERR Command arguments must be strings or integers"),
        }
        // The same string may be there many times.
        if self.bytes.len() > self.unit.node.scripts.max_vm_bytes {
            return Err("ERR the arguments take more memory than a script may have");
        }
        self.ranges.push((start, self.bytes.len() as u32));
        Ok(())
    }

    /// The command, if the script may call it; else the text of the error.
    fn admit(&self, args: Args<'_>) -> Result<&'static Command, String> {
        let Some(command) = registry::resolve(args) else {
            let text = "ERR Unknown command called from script";
            self.unit.effects().refused(None, text);
            return Err(text.to_owned());
        };
        let spec = command.spec;
        let refusal = if !spec.arity_allows(args.len()) || !command.subcommands.is_empty() {
            "ERR Wrong number of args calling command from script"
        } else if spec.has(flag::NOSCRIPT) && (spec.unit || !self.unit.node.scripts.allow_all()) {
            "ERR This Redis command is not allowed from script"
        } else if self.read_only && (spec.has(flag::WRITE) || spec.has(flag::MAY_REPLICATE)) {
            "ERR Write commands are not allowed from read-only scripts."
        } else if let Some(text) = self.refusal(spec.flags) {
            text
        } else {
            return match command.too_long_key(args) {
                Some(text) => Err(text),
                None => Ok(command),
            };
        };
        self.unit.effects().refused(Some(command), refusal);
        Err(refusal.to_owned())
    }

    /// Why the node refuses what has these flags. Who has written goes on to the end.
    fn refusal(&self, flags: u32) -> Option<&'static str> {
        if self.wrote {
            return None;
        }
        let unit = self.unit;
        let refused = limits::refusal(&unit.node, self.cx.settings, flags & flag::WRITE);
        refused.or(self.no_memory.filter(|_| flags & flag::DENYOOM != 0))
    }

    fn execute(
        &mut self,
        lua: &Lua,
        command: &'static Command,
        args: Args<'_>,
    ) -> mlua::Result<Result<Value, Vec<u8>>> {
        if command.spec.has(flag::WRITE) {
            self.writes();
        }
        let unit = self.unit;
        if unit.node.monitors.any() && !command.spec.has(flag::ADMIN | flag::SKIP_MONITOR) {
            unit.effects().show(self.cx.db, true, args);
        }
        let mut reply = std::mem::replace(&mut self.reply, Reply::new(self.proto));
        reply.clear();
        reply.set_proto(self.proto);
        let cx = &mut *self.cx;
        let mut inner = Ctx {
            store: &mut *cx.store,
            out: &mut reply,
            db: cx.db,
            settings: cx.settings,
            again: false,
            unit: cx.unit,
        };
        let outcome = inner.run_part(unit, command, args);
        cx.db = inner.db;
        let result = match outcome {
            Ok(()) => Ok(to_lua(lua, reply.as_bytes())?),
            Err(Stop::Error(text)) => Err(text.into_owned().into_bytes()),
            Err(stop) => return Err(self.end(lua, stop)),
        };
        self.reply = reply;
        // A reply that is an error is raised, too.
        Ok(match result {
            Ok(Value::Table(table)) if self.reply.as_bytes().first() == Some(&b'-') => {
                Err(table.raw_get::<mlua::LuaString>("err")?.as_bytes().to_vec())
            }
            other => other,
        })
    }
}
