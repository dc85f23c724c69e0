//! The table `redis` of scripts, also called `server`.

use super::call::{TOO_LONG, call};
use super::run::current;
use crate::command::registry;
use crate::scripts::{error_table, log_line, number_of, put_constants, sha1_hex, text_of};
use flagstone_lua::{command_functions, raising, set_global};
use flagstone_wire::resp::{OwnedArgs, Proto};
use mlua::{Lua, MultiValue, Value};

/// Constants for `redis.set_repl`, which has no effect: there is no replication.
const REPLICATION: [(&str, i64); 5] =
    [("REPL_NONE", 0), ("REPL_AOF", 1), ("REPL_SLAVE", 2), ("REPL_REPLICA", 2), ("REPL_ALL", 3)];

type Results = Result<MultiValue, Value>;

/// Adds the table to a VM.
pub(super) fn install(lua: &Lua) -> mlua::Result<()> {
    let table = lua.create_table()?;
    let put = |name: &str, function: fn(&Lua, MultiValue) -> Results| -> mlua::Result<()> {
        table.raw_set(name, raising(lua, function)?)
    };
    let (raising_call, returning_call) = command_functions(lua, call)?;
    table.raw_set("call", raising_call)?;
    table.raw_set("pcall", returning_call)?;
    put("error_reply", error_reply)?;
    put("status_reply", status_reply)?;
    put("sha1hex", sha1hex)?;
    put("log", log)?;
    put("setresp", setresp)?;
    put("set_repl", set_repl)?;
    put("acl_check_cmd", acl_check_cmd)?;
    // There is no debugger.
    put("breakpoint", |_, _| one(Value::Boolean(false)))?;
    put("debug", |_, _| Ok(MultiValue::new()))?;
    put("replicate_commands", |_, _| one(Value::Boolean(true)))?;
    for (name, number) in REPLICATION {
        table.raw_set(name, number)?;
    }
    put_constants(lua, &table)?;
    set_global(lua, "server", table.clone())?;
    set_global(lua, "redis", table)
}

fn one(value: Value) -> Results {
    Ok(MultiValue::from_iter([value]))
}

/// Returns an error in the form that scripts receive: `{err = "CODE text"}`.
fn failure(lua: &Lua, text: &str) -> Value {
    error_table(lua, text.as_bytes()).map_or(Value::Nil, Value::Table)
}

fn raise(lua: &Lua, text: &str) -> Results {
    Err(failure(lua, text))
}

/// Returns the only argument, if it is a string.
fn only_string(args: &MultiValue) -> Option<&mlua::LuaString> {
    match (args.len(), args.front()) {
        (1, Some(Value::String(text))) => Some(text),
        _ => None,
    }
}

fn error_reply(lua: &Lua, args: MultiValue) -> Results {
    let Some(text) = only_string(&args) else {
        return one(failure(lua, "ERR wrong number or type of arguments"));
    };
    let text = text.as_bytes();
    let text = text.strip_prefix(b"-").unwrap_or(&text);
    let text = text.trim_ascii_end();
    // A text without a code gets the general one.
    let whole = if text.contains(&b' ') { text.to_vec() } else { [b"ERR ", text].concat() };
    error_table(lua, &whole).map_or(one(Value::Nil), |table| one(Value::Table(table)))
}

fn status_reply(lua: &Lua, args: MultiValue) -> Results {
    let Some(text) = only_string(&args) else {
        return one(failure(lua, "ERR wrong number or type of arguments"));
    };
    let table = lua.create_table().and_then(|table| {
        table.raw_set("ok", text.clone())?;
        Ok(table)
    });
    table.map_or(one(Value::Nil), |table| one(Value::Table(table)))
}

fn sha1hex(lua: &Lua, args: MultiValue) -> Results {
    if args.len() != 1 {
        return raise(lua, "ERR wrong number of arguments");
    }
    let hex = sha1_hex(&text_of(args.front()).unwrap_or_default());
    lua.create_string(hex).map_or(one(Value::Nil), |text| one(Value::String(text)))
}

fn log(lua: &Lua, args: MultiValue) -> Results {
    let (level, text) = log_line(&args).map_err(|text| failure(lua, text))?;
    current(|run| run.unit.effects().log(level, text));
    Ok(MultiValue::new())
}

fn setresp(lua: &Lua, args: MultiValue) -> Results {
    if args.len() != 1 {
        return raise(lua, "ERR redis.setresp() requires one argument.");
    }
    let proto = match number_of(args.front()) {
        Some(2) => Proto::Resp2,
        Some(3) => Proto::Resp3,
        _ => return raise(lua, "ERR RESP version must be 2 or 3."),
    };
    current(|run| run.proto = proto);
    Ok(MultiValue::new())
}

fn set_repl(lua: &Lua, args: MultiValue) -> Results {
    if args.len() != 1 {
        return raise(lua, "ERR redis.set_repl() requires one argument.");
    }
    if number_of(args.front()).unwrap_or(0) & !3 != 0 {
        return raise(
            lua,
            "ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.",
        );
    }
    Ok(MultiValue::new())
}

/// Copies the words of a command, of up to so many bytes: the same string may occur many times.
fn words_of(args: &MultiValue, most: usize) -> Result<OwnedArgs, &'static str> {
    let mut words = OwnedArgs::default();
    for arg in args {
        match arg {
            Value::String(text) => {
                let text = text.as_bytes();
                if text.len() > most.saturating_sub(words.memory()) {
                    return Err(TOO_LONG);
                }
                words.push(&text);
            }
            number => {
                let text = text_of(Some(number));
                let text = text.ok_or("ERR Command arguments must be strings or integers")?;
                words.push(&text);
            }
        }
        if words.memory() > most {
            return Err(TOO_LONG);
        }
    }
    Ok(words)
}

/// Returns true if the user of the script may run a command.
fn acl_check_cmd(lua: &Lua, args: MultiValue) -> Results {
    let most = current(|run| run.unit.node.code.scripts.max_words_bytes()).unwrap_or(usize::MAX);
    let words = match words_of(&args, most) {
        Ok(words) => words,
        Err(text) => return raise(lua, text),
    };
    if words.is_empty() {
        return raise(
            lua,
            "ERR Please specify at least one argument for this redis.acl_check_cmd() call",
        );
    }
    let Some(command) = registry::resolve(words.args()) else {
        return raise(lua, "ERR Invalid command passed to server.acl_check_cmd()");
    };
    let may_run = current(|run| run.unit.check(command, words.args()).is_ok());
    one(Value::Boolean(may_run.unwrap_or(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_command_are_copied_up_to_a_limit() {
        let lua = Lua::new();
        let word = Value::String(lua.create_string("x".repeat(1000)).unwrap());
        let most = 100_000;
        let words = |count| words_of(&std::iter::repeat_n(word.clone(), count).collect(), most);
        assert_eq!(words(50).map(|words| words.len()).unwrap(), 50);
        assert_eq!(words(100).err(), Some(TOO_LONG));
        assert_eq!(
            words_of(&[word, Value::Nil].into_iter().collect(), most).err().map(str::len),
            Some(49)
        );
        let numbers = std::iter::repeat_n(Value::Integer(1), most).collect();
        assert_eq!(words_of(&numbers, most).err(), Some(TOO_LONG));
    }
}
