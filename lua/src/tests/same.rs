//! Replaced functions behave like Lua's own.

use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const CASES: usize = 5_000;

/// Bytes of patterns and texts.
const PATTERN: &[u8] = b"ab1 %%%[]^$**+--??().,fbdws0\0\x0bzx";
const TEXT: &[u8] = b"aab1 .,()[]%\0\n\xe4";

/// Calls a function of `string` in every way, and returns the results as text.
const CALLS: &str = r#"
    local text, pattern, init, times = ...
    local function shown(...)
        local all = {}
        for i = 1, select('#', ...) do
            local value = select(i, ...)
            all[i] = type(value) .. ':' .. tostring(value)
        end
        return table.concat(all, ';')
    end
    local function each()
        local all = {}
        for a, b in string.gmatch(text, pattern) do
            all[#all + 1] = shown(a, b)
            if #all > 50 then break end
        end
        return table.concat(all, '|')
    end
    return shown(pcall(string.find, text, pattern)) .. '\n'
        .. shown(pcall(string.find, text, pattern, init)) .. '\n'
        .. shown(pcall(string.find, text, pattern, init, true)) .. '\n'
        .. shown(pcall(string.match, text, pattern, init)) .. '\n'
        .. shown(pcall(each)) .. '\n'
        .. shown(pcall(string.gsub, text, pattern, '<%0%1%%>')) .. '\n'
        .. shown(pcall(string.gsub, text, pattern, '%2', times)) .. '\n'
        .. shown(pcall(string.gsub, text, pattern, 7)) .. '\n'
        .. shown(pcall(string.gsub, text, pattern, {a = 'A', [1] = 'one', b = false})) .. '\n'
        .. shown(pcall(string.gsub, text, pattern, function(a, b) return b end)) .. '\n'
        .. shown(pcall(string.gsub, text, pattern, function() return {} end))
"#;

fn some(rng: &mut StdRng, from: &[u8], most: usize) -> Vec<u8> {
    (0..rng.random_range(0..=most)).map(|_| from[rng.random_range(0..from.len())]).collect()
}

#[test]
fn patterns_match_as_those_of_lua_do() {
    let (ours, theirs) = (vm(), Lua::new());
    let [our, their] = [&ours, &theirs].map(|lua| lua.load(CALLS).into_function().unwrap());
    let mut rng = StdRng::seed_from_u64(5);
    for _ in 0..CASES {
        let (text, pattern) = (some(&mut rng, TEXT, 12), some(&mut rng, PATTERN, 9));
        let (init, times) = (rng.random_range(-14..15), rng.random_range(-1..4));
        let args = |lua: &Lua| {
            let [text, pattern] = [&text, &pattern].map(|text| lua.create_string(text).unwrap());
            (text, pattern, init, times)
        };
        let our: mlua::LuaString = our.call(args(&ours)).unwrap();
        let their: mlua::LuaString = their.call(args(&theirs)).unwrap();
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        assert_eq!(
            shown(&our.as_bytes()),
            shown(&their.as_bytes()),
            "{:?} in {:?} from {init}, {times} times",
            shown(&pattern),
            shown(&text)
        );
    }
}

/// Sorts a table by one of several orders, some of which are invalid.
const SORT: &str = r#"
    local count, order, seed = ...
    local t = {}
    for i = 1, count do
        seed = (seed * 1103515245 + 12345) % 2147483648
        t[i] = math.floor(seed / 65536) % 20
        if order == 4 then t[i] = 's' .. t[i] end
        if order == 5 and i == 3 then t[i] = 'x' end
    end
    local orders = {
        false,
        function(a, b) return a > b end,
        function(a, b) return a <= b end,
        false,
        false,
        function() return true end,
        function(a, b) return (a * 7) % 5 < (b * 3) % 5 end,
    }
    local ok, text = pcall(table.sort, t, orders[order] or nil)
    for i = 1, #t do t[i] = tostring(t[i]) end
    return tostring(ok) .. tostring(text) .. table.concat(t, ' ')
"#;

#[test]
fn tables_are_sorted_as_lua_does() {
    let (ours, theirs) = (vm(), Lua::new());
    let [our, their] = [&ours, &theirs].map(|lua| lua.load(SORT).into_function().unwrap());
    for seed in 0..1000 {
        let args = (seed % 43, seed % 7 + 1, seed);
        let (our, their): (String, String) = (our.call(args).unwrap(), their.call(args).unwrap());
        assert_eq!(our, their, "{args:?}");
    }
}

/// Errors in coroutines and handlers.
#[test]
fn errors_are_those_of_lua() {
    let theirs = Lua::new();
    let lua = vm();
    for script in [
        "return tostring(select(2, pcall(coroutine.wrap(function() error('x') end))))",
        "return tostring(select(2, pcall(coroutine.wrap(function() error({}) end)))):sub(1, 5)",
        "local f = coroutine.wrap(function(a) local b = coroutine.yield(a + 1) return b * 2 end) return f(1) .. ' ' .. f(4)",
        "local f = coroutine.wrap(function() end) f() return select(2, pcall(f))",
        "local c = coroutine.create(function(a, b) return a, coroutine.yield(b) end) local _, x = coroutine.resume(c, 1, 2) local _, y, z = coroutine.resume(c, 3) return x .. y .. z .. coroutine.status(c)",
        "return tostring(select(2, coroutine.resume(coroutine.create(function() error('y') end))))",
        "return select(2, pcall(coroutine.wrap, 1))",
        "return select(2, pcall(coroutine.resume, 1))",
        "return select(2, xpcall(function() error('x') end, function(e) return e .. '!' end))",
        "return select(2, xpcall(function() local x = nil + 1 end, function(e) return e .. '!' end))",
        "return tostring(select(2, xpcall(function() error('x') end, function(e) error('y') end)))",
        "return tostring(select(2, xpcall(function() error('x') end, 5)))",
        "return tostring(select(2, xpcall(function() error('x') end, string.upper)))",
        "return tostring((xpcall(function() return 1 end, error)))",
        "return select('#', xpcall(function() return 1, nil, nil end, error))",
        "return select(2, pcall(xpcall, error))",
        "return select(2, pcall(string.rep))",
        "return string.rep('ab', 3) .. string.rep('ab', -1)",
        "return select(2, pcall(table.sort, {1}, 5))",
        "return select(2, pcall(table.concat, {1, {}, 3}))",
        "return table.concat({1, 2, 3}, ',', 2, 3) .. table.concat({}) .. table.concat({1}, 'x', 2)",
        "local t = {1, 2, 3} table.insert(t, 2, 9) table.remove(t, 1) table.remove(t) return table.concat(t, ' ')",
        // Numbers of more than 32 bits are cut to them.
        "local t = {1, 2, 3} table.insert(t, 2^32 + 2, 9) return table.concat(t, ' ')",
        "local t = {1, 2, 3} return table.remove(t, 2^32 + 1) .. table.concat(t, ' ')",
        "return table.concat({1, 2, 3, 4}, '-', 2^32 + 2, 2^32 + 3)",
        "return table.concat({unpack({1, 2, 3, 4}, 2^32 + 2, 2^32 + 3)}, ' ') .. select(2^32 + 1, 'a')",
        "return string.rep('ab', 2^32 + 2)",
        "local t = {} table.insert(t, 5, 'x') table.insert(t, -3, 'y') return tostring(#t) .. t[5] .. t[-3]",
        "local t = {1, nil, 3, nil, 5} table.insert(t, 1, 0) local s = '' for i = 1, 7 do s = s .. tostring(t[i]) end return s",
        "local t = {1, nil, 3, nil, 5} table.remove(t, 1) local s = '' for i = 1, 7 do s = s .. tostring(t[i]) end return s",
        "return tostring((table.remove({}))) .. tostring((table.remove({1}, 2))) .. select('#', table.remove({}))",
        "return table.concat({[-1] = 'a', [0] = 'b'}, '', -1, 0) .. table.concat({1}, 'x', nil, nil)",
        "return table.maxn({1, 2, [-3] = 1, [7.5] = 1, x = 9}) .. table.maxn({})",
        "local s = '' table.foreachi({5, 6, 7}, function(i, v) s = s .. i .. v end) return s .. table.foreachi({1, 2}, function(i) return i == 2 and 'end' or nil end)",
        "local s = '' table.foreach({5, x = 6}, function(k, v) s = s .. k .. v end) return s .. tostring((table.foreach({}, type)))",
        "return select(2, pcall(function() table.insert(1, 2) end))",
        "return select(2, pcall(function() table.insert({}) end))",
        "return select(2, pcall(function() table.insert({}, 1, 2, 3) end))",
        "return select(2, pcall(function() table.insert({}, {}, 1) end))",
        "return select(2, pcall(function() table.remove(1) end))",
        "return select(2, pcall(function() table.remove({}, 'x') end))",
        "return select(2, pcall(function() table.concat({}, {}) end))",
        "return select(2, pcall(function() table.concat({1, {}, 3}) end))",
        "return select(2, pcall(function() table.maxn(1) end))",
        "return select(2, pcall(function() table.foreach({}, 1) end))",
        "return select(2, pcall(function() table.foreachi(1, type) end))",
    ] {
        let their: String = theirs.load(script).set_name("@user_script").eval().unwrap();
        assert_eq!(eval(&lua, script), Ok(their), "{script}");
    }
}
