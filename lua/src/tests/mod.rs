//! Tests of the VM from its user's side.

mod endings;
mod limits;
mod replies;
mod same;
mod sandbox;

use mlua::Value;

use super::*;

const LIMIT: usize = 64 * 1024 * 1024;

/// Text for nil.
const NIL: &str = "(nil)";

fn vm() -> Lua {
    let lua = new_vm(LIMIT).unwrap();
    let redis = lua.create_table().unwrap();
    let call = raising(&lua, |_, args| {
        let error = args.into_iter().next().unwrap_or(Value::Nil);
        Err(error)
    });
    redis.set("call", call.unwrap()).unwrap();
    set_global(&lua, "server", &redis).unwrap();
    set_global(&lua, "redis", redis).unwrap();
    seal(&lua).unwrap();
    lua
}

/// Returns the result of a script, or its error with the location, as text of one line.
fn eval(lua: &Lua, source: impl AsRef<[u8]>) -> Result<String, String> {
    begin_run(lua).unwrap();
    set_global(lua, "KEYS", lua.create_table().unwrap()).unwrap();
    let function =
        compile(lua, "@user_script", source.as_ref(), |_| true).map_err(|error| match error {
            mlua::Error::SyntaxError { message, .. } => {
                format!("ERR Error compiling script (new function): {message}")
            }
            other => panic!("{other}"),
        })?;
    let latin = |text: &mlua::LuaString| text.as_bytes().iter().map(|&b| char::from(b)).collect();
    match call(lua, &function, (), |_| true).unwrap() {
        Ok(Value::String(text)) => Ok(latin(&text)),
        Ok(Value::Nil) => Ok(NIL.to_owned()),
        Ok(other) => Ok(other.to_string().unwrap()),
        Err(Value::Table(table)) => {
            let text: Option<mlua::LuaString> = table.raw_get("err").unwrap();
            let text: String = text.as_ref().map(latin).unwrap_or_default();
            let source: Option<String> = table.raw_get("source").unwrap();
            let line: Option<i64> = table.raw_get("line").unwrap();
            Err(match source.zip(line) {
                Some((source, line)) => format!("{text} at {source}:{line}"),
                None => text,
            })
        }
        Err(other) => Err(other.to_string().unwrap()),
    }
}
