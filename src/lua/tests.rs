//! Tests of the VM as its user sees it.

use mlua::Value;

use super::*;

const LIMIT: usize = 64 * 1024 * 1024;

fn vm() -> Lua {
    let lua = new_vm(LIMIT).unwrap();
    seal(&lua).unwrap();
    lua
}

/// The result of a script, or its error, as text.
fn eval(lua: &Lua, source: &str) -> Result<String, String> {
    begin_run(lua).unwrap();
    let function =
        compile(lua, "@user_script", source.as_bytes()).map_err(|error| match error {
            mlua::Error::SyntaxError { message, .. } => message,
            other => panic!("{other}"),
        })?;
    match call(lua, &function, ()).unwrap() {
        Ok(value) => Ok(value.to_string().unwrap()),
        Err(Value::Table(table)) => Err(table.raw_get::<String>("err").unwrap()),
        Err(other) => Err(other.to_string().unwrap()),
    }
}

#[test]
fn basics() {
    let lua = vm();
    assert_eq!(eval(&lua, "return 1 + 1").unwrap(), "2");
    assert_eq!(
        eval(&lua, "return foo").unwrap_err(),
        "ERR user_script:1: Script attempted to access nonexistent global variable 'foo'"
    );
    assert_eq!(
        eval(&lua, "foo = 1").unwrap_err(),
        "ERR user_script:1: Attempt to modify a readonly table"
    );
    assert_eq!(
        eval(&lua, "return rawset(_G, 'a', 1)").unwrap_err(),
        "ERR Attempt to modify a readonly table"
    );
    assert_eq!(eval(&lua, "return string.format('%d', 3)").unwrap(), "3");
}
