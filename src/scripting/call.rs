//! `redis.call`: a script calls a command.

use super::run::{Run, current};
use super::to_lua::{error_table, to_lua};
use crate::commands::registry::{self, Command};
use crate::commands::{Ctx, Stop, flag};
use crate::num::format_f64;
use crate::resp::{Args, Reply};
use mlua::{Lua, MultiValue, Value};

/// `redis.call` raises the error of a command, `redis.pcall` returns it.
pub(super) fn call(lua: &Lua, args: MultiValue, raises: bool) -> Result<MultiValue, Value> {
    let called = current(|run| run.call(lua, &args));
    let called = called.unwrap_or_else(|| Ok(Err(NO_SCRIPT.into())));
    match called {
        Ok(Ok(value)) => Ok(MultiValue::from_iter([value])),
        Ok(Err(text)) => {
            let error = error_table(lua, &text, true).map_or(Value::Nil, Value::Table);
            if raises { Err(error) } else { Ok(MultiValue::from_iter([error])) }
        }
        Err(error) => Err(Value::Error(Box::new(error))),
    }
}

const NO_SCRIPT: &[u8] = b"ERR redis.call/pcall can only be called inside a script invocation";

impl Run<'_, '_> {
    /// Calls a command: its reply, or the text of its error. What ends the script is the outer
    /// error.
    fn call(&mut self, lua: &Lua, args: &MultiValue) -> mlua::Result<Result<Value, Vec<u8>>> {
        if let Err(text) = self.take_args(args) {
            return Ok(Err(text.into()));
        }
        let (bytes, ranges) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.ranges));
        let args = Args::new(&bytes, &ranges);
        let result = match self.admit(args) {
            Ok(command) => self.execute(lua, command, args),
            Err(text) => Ok(Err(text.into_bytes())),
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
        for arg in args {
            let start = self.bytes.len() as u32;
            match arg {
                Value::String(text) => self.bytes.extend_from_slice(&text.as_bytes()),
                Value::Integer(n) => {
                    self.bytes.extend_from_slice(itoa::Buffer::new().format(*n).as_bytes());
                }
                Value::Number(n) => self.bytes.extend_from_slice(format_f64(*n).as_bytes()),
                _ => return Err("ERR Command arguments must be strings or integers"),
            }
            self.ranges.push((start, self.bytes.len() as u32));
        }
        Ok(())
    }

    /// The command, if the script may call it; else the text of the error.
    fn admit(&self, args: Args<'_>) -> Result<&'static Command, String> {
        let command = registry::resolve(args)
            .ok_or_else(|| "ERR Unknown command called from script".to_owned())?;
        let spec = command.spec;
        let refusal = if !spec.arity_allows(args.len()) || !command.subcommands.is_empty() {
            "ERR Wrong number of args calling command from script"
        } else if spec.has(flag::NOSCRIPT) {
            "ERR This Redis command is not allowed from script"
        } else if self.read_only && (spec.has(flag::WRITE) || spec.has(flag::MAY_REPLICATE)) {
            "ERR Write commands are not allowed from read-only scripts."
        } else if spec.has(flag::DENYOOM)
            && !self.wrote
            && !self.allow_oom
            && self.unit.node.is_choked()
        {
            crate::node::CHOKED
        } else {
            return match command.too_long_key(args) {
                Some(text) => Err(text),
                None => Ok(command),
            };
        };
        self.unit.node.stats[self.unit.worker].refused(Some(command), refusal);
        Err(refusal.to_owned())
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
        let outcome = inner.run_part(self.unit, command, args);
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
