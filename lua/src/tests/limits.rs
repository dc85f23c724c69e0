//! Memory and native stack.

use super::*;

/// The stack of a worker's thread.
const STACK: usize = 2 * 1024 * 1024;

/// Runs scripts in sequence in one VM on a thread of its own; no script may crash the process.
fn on_small_stack(scripts: &'static [&'static str]) -> Vec<Result<String, String>> {
    std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || {
            let lua = vm();
            scripts.iter().map(|script| eval(&lua, script)).collect()
        })
        .unwrap()
        .join()
        .unwrap()
}

#[test]
fn native_stack_is_bounded() {
    let results = on_small_stack(&[
        "local function f() return (string.gsub('a', 'a', f)) end return f()",
        "local function f() return (string.gsub('a', '.', function() return f() end)) end return f()",
        "local function f(a, b) table.sort({1, 2, 3}, f) return a < b end f(1, 2)",
        "local t = {} for i = 1, 100000 do t = {t} end return cjson.encode(t)",
        "cjson.encode_max_depth(1000000) local t = {} for i = 1, 100000 do t = {t} end return cjson.encode(t)",
        "cjson.decode_max_depth(1000000) return cjson.decode(string.rep('[', 100000))",
        "cjson.decode_max_depth(1000000) return cjson.decode(string.rep('{\"a\":', 100000))",
        "return cmsgpack.unpack(string.rep('\\145', 100000))",
        "return cmsgpack.unpack(string.rep('\\129\\1', 100000))",
        "return string.find(string.rep('a', 100000), string.rep('a?', 100000))",
        "return string.find(string.rep('a', 100000), string.rep('a*', 100000))",
        "return string.gsub(string.rep('a', 100000), string.rep('a-', 100000), '')",
        "return string.match(string.rep('a', 100000), string.rep('()', 100000))",
        "for _ in string.gmatch(string.rep('a', 100000), string.rep('a?', 100000)) do end",
        "local function f() return 1 + f() end return f()",
        "local function f() return coroutine.wrap(f)() end return f()",
        "local t = setmetatable({}, {__tostring = tostring}) getmetatable(t).__tostring = function() return tostring(t) end return tostring(t)",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k + 1] end return t[1]",
        "return loadstring(string.rep('(', 100000))()",
        "return loadstring('return ' .. string.rep('{', 100000))()",
        "return loadstring('return ' .. string.rep('- ', 1000) .. '1' .. string.rep('..1', 100000))()",
        "return loadstring(string.rep('do ', 100000))()",
        "return loadstring(string.rep('function f() ', 100000))()",
    ]);
    for (n, result) in results.iter().enumerate() {
        assert!(result.is_err(), "script {n}: {result:?}");
    }
}

#[test]
fn usual_depths_work_on_a_small_stack() {
    let results = on_small_stack(&[
        "return #cjson.encode(cjson.decode(string.rep('[', 1000) .. string.rep(']', 1000)))",
        "local function f(n) if n == 0 then return 'x' end return (string.gsub('a', 'a', function() return f(n - 1) end)) end return f(50)",
        "return string.find(string.rep('a', 500), string.rep('a?', 450))",
        "local function f(n) if n == 0 then return 0 end return 1 + f(n - 1) end return f(15000)",
    ]);
    let expected = ["2000", "x", "1", "15000"];
    assert_eq!(results, expected.map(|text| Ok(text.to_owned())));
}

#[test]
fn memory_is_bounded_and_the_vm_goes_on() {
    let lua = vm();
    for script in [
        "return string.rep('x', 1e9)",
        "local t = {} while true do t[#t + 1] = {} end",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} for i = 1, 1e6 do t[i] = string.rep('x', 100) end return cjson.encode(t)",
        "cjson.encode_sparse_array(false, 0) return cjson.encode({[2^31 - 1] = 1})",
        "return struct.pack(string.rep('c0', 200), unpack((function() local t, s = {}, string.rep('x', 1e6) for i = 1, 200 do t[i] = s end return t end)()))",
        "return cmsgpack.pack(unpack((function() local t, s = {}, string.rep('x', 1e6) for i = 1, 200 do t[i] = s end return t end)()))",
        "return load(function() return string.rep(' ', 1e6) end)()",
        "local t = {} for i = 1, 1e9 do t[i] = i end",
    ] {
        let error = eval(&lua, script).unwrap_err();
        assert!(error.contains("memory") || error.contains("overflow"), "{script}: {error}");
        assert_eq!(eval(&lua, "return cjson.encode({1, 'a'})").unwrap(), "[1,\"a\"]");
        assert!(lua.used_memory() <= LIMIT);
    }
    // A script may go on after the error.
    let script = "return tostring(pcall(string.rep, 'x', 1e9)) .. #string.rep('x', 1000)";
    assert_eq!(eval(&lua, script).unwrap(), "false1000");
}

#[test]
fn garbage_of_one_run_is_not_missed_by_the_next() {
    let lua = vm();
    for _ in 0..20 {
        let script = "collectgarbage('stop') return #string.rep('x', 12 * 1024 * 1024)";
        assert_eq!(eval(&lua, script).unwrap(), "12582912");
    }
}

#[test]
fn nothing_counts_to_the_greatest_number() {
    let lua = vm();
    let start = std::time::Instant::now();
    for script in [
        "return string.rep('', 2147483647)",
        "table.insert({}, -2147483648, 1)",
        "table.insert({}, 2294967296, 1)",
        "table.insert({}, 2^32 - 2^31, 1)",
        "table.remove({1}, 2^32 - 2^31)",
        "return table.concat({}, 'x', 2^31, 2^31 - 1)",
        "return string.rep('', 2^32 - 1)",
        "return select(2^31, 1)",
        "return unpack({}, -2147483648, 2147483647)",
        "return struct.size('I2147483648')",
        "return cmsgpack.unpack('\\221\\255\\255\\255\\255')",
        "return cmsgpack.unpack('\\223\\255\\255\\255\\255')",
    ] {
        let _ = eval(&lua, script);
    }
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
}
