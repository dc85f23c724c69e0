//! The reply of a command as a Lua value.

use mlua::{Lua, Table, Value};

/// The value of a rendered reply; `None`: it is not one.
pub(super) fn to_lua(lua: &Lua, reply: &[u8]) -> mlua::Result<Value> {
    Parser { lua, rest: reply }.value()
}

/// An error as scripts get it: `{err = "CODE text"}`; one that is not to be counted again, as the
/// command has been.
pub fn error_table(lua: &Lua, text: &[u8], counted: bool) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("err", lua.create_string(text)?)?;
    if counted {
        table.raw_set("ignore_error_stats_update", true)?;
    }
    Ok(table)
}

struct Parser<'a> {
    lua: &'a Lua,
    rest: &'a [u8],
}

impl<'a> Parser<'a> {
    fn take(&mut self, len: usize) -> mlua::Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(broken)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The rest of a line.
    fn line(&mut self) -> mlua::Result<&'a [u8]> {
        let end = memchr::memchr(b'\r', self.rest).ok_or_else(broken)?;
        let line = self.take(end)?;
        self.take(2)?;
        Ok(line)
    }

    fn number(&mut self) -> mlua::Result<i64> {
        let line = self.line()?;
        std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or_else(broken)
    }

    fn bulk(&mut self, len: usize) -> mlua::Result<&'a [u8]> {
        let bytes = self.take(len)?;
        self.take(2)?;
        Ok(bytes)
    }

    fn value(&mut self) -> mlua::Result<Value> {
        let lua = self.lua;
        let kind = self.take(1)?[0];
        Ok(match kind {
            b':' => Value::Number(self.number()? as f64),
            b'$' => match usize::try_from(self.number()?) {
                Ok(len) => Value::String(lua.create_string(self.bulk(len)?)?),
                Err(_) => Value::Boolean(false),
            },
            b'+' => self.tagged("ok")?,
            b'-' => Value::Table(error_table(lua, self.line()?, true)?),
            b'*' | b'>' => match usize::try_from(self.number()?) {
                Ok(len) => self.array(len)?,
                Err(_) => Value::Boolean(false),
            },
            b'%' => self.map()?,
            b'~' => self.set()?,
            b'_' => {
                self.line()?;
                Value::Nil
            }
            b'#' => Value::Boolean(self.line()? == b"t"),
            b',' => self.double()?,
            b'(' => self.tagged("big_number")?,
            b'=' => self.verbatim()?,
            b'|' => {
                // Scripts do not see attributes.
                for _ in 0..2 * self.number()? {
                    self.value()?;
                }
                self.value()?
            }
            _ => return Err(broken()),
        })
    }

    /// A line in a table, under a name that says what it is.
    fn tagged(&mut self, name: &str) -> mlua::Result<Value> {
        let table = self.lua.create_table()?;
        table.raw_set(name, self.lua.create_string(self.line()?)?)?;
        Ok(Value::Table(table))
    }

    fn array(&mut self, len: usize) -> mlua::Result<Value> {
        let table = self.lua.create_table_with_capacity(len, 0)?;
        for n in 1..=len {
            let value = self.value()?;
            table.raw_set(n, value)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self) -> mlua::Result<Value> {
        let len = usize::try_from(self.number()?).map_err(|_| broken())?;
        let map = self.lua.create_table_with_capacity(0, len)?;
        for _ in 0..len {
            let key = self.value()?;
            let value = self.value()?;
            map.raw_set(key, value)?;
        }
        self.wrapped("map", map)
    }

    fn set(&mut self) -> mlua::Result<Value> {
        let len = usize::try_from(self.number()?).map_err(|_| broken())?;
        let set = self.lua.create_table_with_capacity(0, len)?;
        for _ in 0..len {
            let member = self.value()?;
            set.raw_set(member, true)?;
        }
        self.wrapped("set", set)
    }

    fn double(&mut self) -> mlua::Result<Value> {
        let text = std::str::from_utf8(self.line()?).map_err(|_| broken())?;
        let table = self.lua.create_table()?;
        table.raw_set("double", text.parse::<f64>().map_err(|_| broken())?)?;
        Ok(Value::Table(table))
    }

    fn verbatim(&mut self) -> mlua::Result<Value> {
        let len = usize::try_from(self.number()?).map_err(|_| broken())?;
        let text = self.bulk(len)?;
        let (format, string) = text.split_at_checked(4).ok_or_else(broken)?;
        let table = self.lua.create_table()?;
        table.raw_set("string", self.lua.create_string(string)?)?;
        table.raw_set("format", self.lua.create_string(&format[..3])?)?;
        self.wrapped("verbatim_string", table)
    }

    fn wrapped(&mut self, name: &str, inner: Table) -> mlua::Result<Value> {
        let table = self.lua.create_table()?;
        table.raw_set(name, inner)?;
        Ok(Value::Table(table))
    }
}

fn broken() -> mlua::Error {
    mlua::Error::runtime("the reply cannot be read")
}
