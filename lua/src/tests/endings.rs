//! A script is checked regularly while it runs, and ended when the watch says so.

use super::*;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Time after which a script is ended.
const RUN: Duration = Duration::from_millis(30);

/// Maximum time until it has ended. A script that is not ended takes minutes, or for ever.
const LATE: Duration = Duration::from_secs(10);

thread_local! {
    static END: Cell<Option<Instant>> = const { Cell::new(None) };
    static DONE: Cell<u64> = const { Cell::new(0) };
}

fn watch(instructions: u64) -> bool {
    DONE.set(DONE.get() + instructions);
    END.get().is_none_or(|end| Instant::now() < end)
}

/// Ends a script after a while, and returns the error it raises, and how long it ran.
fn ended(lua: &Lua, source: &str) -> (String, Duration) {
    let began = Instant::now();
    END.set(Some(began + RUN));
    begin_run(lua).unwrap();
    let function = match compile(lua, "@user_script", source.as_bytes(), watch) {
        Ok(function) => function,
        Err(error) => return (error.to_string(), began.elapsed()),
    };
    let text = match call(lua, &function, (), watch).unwrap() {
        Ok(value) => format!("returned {value:?}"),
        Err(Value::Table(table)) => table.raw_get("err").unwrap(),
        Err(other) => other.to_string().unwrap(),
    };
    (text, began.elapsed())
}

fn assert_all_end(scripts: &[&str]) {
    let lua = vm();
    for script in scripts {
        // No script has less memory because of the one before.
        lua.gc_collect().unwrap();
        let (text, took) = ended(&lua, script);
        let start = &script[..script.len().min(200)];
        let is_ended = ["the script was ended", "error in error handling"];
        let is_ended = is_ended.iter().any(|end| text.contains(end));
        assert!(is_ended && took >= RUN, "{start}: {text} after {took:?}");
        assert!(took < LATE, "{start}: {took:?}");
        END.set(None);
        assert_eq!(eval(&lua, "return 'fine'").unwrap(), "fine");
    }
}

#[test]
fn nothing_in_lua_catches_the_end() {
    assert_all_end(&[
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "xpcall(function() while true do end end, function() while true do end end)",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "while true do xpcall(error, function() local function f() return f() end return f() end) end",
        "xpcall(function() while true do end end, coroutine.wrap(function() while true do end end))",
        "while true do coroutine.wrap(function() while true do end end)() end",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "while true do pcall(coroutine.wrap(function() while true do pcall(coroutine.wrap(function() while true do end end)) end end)) end",
        "local function f() while true do pcall(coroutine.wrap(f)) end end f()",
        "local function f() for i = 1, 30 do pcall(coroutine.wrap(f)) end end f()",
        "local function f() for i = 1, 30 do coroutine.resume(coroutine.create(f)) end end f()",
        "local c = coroutine.wrap(function() while true do pcall(coroutine.yield) end end) while true do pcall(c) end",
        "while true do load(function() while true do end end) end",
        "while true do pcall(load, function() return ' ' end) end",
        "while true do pcall(string.gsub, 'a', 'a', function() while true do end end) end",
        "while true do pcall(table.sort, {1, 2, 3}, function() while true do end end) end",
        "local t = setmetatable({}, {__index = function() while true do end end}) while true do pcall(function() return t.x end) end",
        "error(setmetatable({}, {__tostring = function() while true do end end, __index = function() while true do end end}), (function() while true do end end)())",
    ]);
}

#[test]
fn native_work_is_ended_in_the_middle() {
    assert_all_end(&[
        "return string.find(string.rep('a', 30000), string.rep('a*', 30) .. 'b')",
        "return string.match(string.rep('a', 300), string.rep('a?', 300) .. 'b')",
        "return string.gsub(string.rep('a', 30000), string.rep('a-', 30) .. 'b', '')",
        "for x in string.gmatch(string.rep('a', 30000), string.rep('.-', 30) .. 'b') do end",
        "return string.find(string.rep('(', 200000), '%b()')",
        "return string.find(string.rep('a', 1000000), '[' .. string.rep('b', 1000000) .. ']')",
        "return string.find(string.rep('a', 1000000), '%f[' .. string.rep('b', 1000000) .. ']')",
        "return string.find(string.rep('a', 400000), '(.-)%1b')",
        "local s = string.rep('x', 1000000) local a, b, t = s .. 'a', s .. 'b', {} for i = 1, 100000 do t[i] = i % 2 == 0 and a or b end table.sort(t)",
        "local t = {} for i = 1, 500000 do t[i] = i end for i = 1, 1000 do table.sort(t, nil) end",
        "local t = {} for i = 1, 100000 do t[i] = {i} end while true do cjson.encode(t) end",
        "cjson.encode_sparse_array(true, 0) while true do pcall(cjson.encode, {[2^31 - 1] = 1}) end",
        "local s = '[' .. string.rep('1,', 1000000) .. '1]' while true do cjson.decode(s) end",
        "local t = {} for i = 1, 100000 do t[i] = {i} end while true do cmsgpack.pack(t) end",
        "local t = {} for i = 1, 100000 do t[i] = i end local s = cmsgpack.pack(t) while true do cmsgpack.unpack(s) end",
    ]);
}

#[test]
fn a_table_with_gaps_that_seems_long_is_not_walked_to_its_end() {
    // All of it is in the hash part, so Lua finds a length of 2^28.
    let items: Vec<_> = (0..=28).map(|n| format!("[{}] = 1", 1_u32 << n)).collect();
    let items = format!("local t = {{{}}} assert(#t == 2^28)", items.join(", "));
    let walks = [
        "table.insert(t, 1, 1)",
        "table.remove(t, 1)",
        "table.foreachi(t, math.randomseed)",
        "while true do table.foreach(t, math.randomseed) end",
        "while true do table.maxn(t) end",
    ];
    let scripts = walks.map(|walk| format!("{items} {walk}"));
    assert_all_end(&scripts.each_ref().map(String::as_str));
}

#[test]
fn loops_of_long_calls_and_instructions_are_ended() {
    assert_all_end(&[
        "local s = string.rep('x', 15000000) while true do local t = s .. 'y' end",
        "local s = string.rep('x', 8000000) local a, b = s .. 'a', s .. 'b' while true do local c = a < b end",
        "local s = string.rep('1', 15000000) while true do local n = tonumber(s) end",
        "local s = string.rep('x', 15000000) while true do s:upper() end",
        "while true do string.rep('x', 15000000) end",
        "while true do pcall(string.rep, 'x', 1e9) end",
        "local t = {} for i = 1, 1000000 do t[i] = 'x' end while true do table.concat(t) end",
        "local t = {} for i = 1, 100000 do t[i] = string.rep('x', 1000) end while true do pcall(table.concat, t) end",
        "local t = {} for i = 1, 1000000 do t[i] = i end while true do table.insert(t, 1, 0) table.remove(t, 1) end",
        "while true do table.insert({}, -999999, 1) end",
        "local t = {} for i = 1, 1000000 do t[i] = {} end while true do collectgarbage() end",
        "while true do loadstring(string.rep('x = 1 ', 1000000)) end",
        "loadstring('while 1 do ' .. string.rep('do break end ', 500000) .. 'end')",
        "while true do unpack({}, 1, 7000) end",
        "while true do struct.size(string.rep('b', 10000000)) end",
    ]);
}

#[test]
fn a_text_that_takes_long_to_compile_is_given_up() {
    let lua = vm();
    let source = format!("while 1 do {} end", "do break end ".repeat(1_000_000));
    let (text, took) = ended(&lua, &source);
    assert!(text.contains("the script was ended") && took < LATE, "{text} after {took:?}");
}

#[test]
fn native_work_counts_as_instructions() {
    let lua = vm();
    END.set(None);
    for script in [
        "return string.find(string.rep('a', 1000), '.-.-b')",
        "local t = {} for i = 1, 7000 do t[i] = i end for i = 1, 100 do cjson.encode(t) end",
        "string.rep('x', 10000000)",
    ] {
        DONE.set(0);
        begin_run(&lua).unwrap();
        let function = compile(&lua, "@user_script", script.as_bytes(), watch).unwrap();
        call(&lua, &function, (), watch).unwrap().unwrap();
        assert!(DONE.get() > 400_000, "{script}: {}", DONE.get());
    }
}
