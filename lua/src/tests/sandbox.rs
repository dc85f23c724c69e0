//! Scripts that try to change the environment of other scripts, or to reach forbidden values.

use super::*;

/// Detects changes: run after each trick.
const PROBE: &str = "
local function list(t) local r = {} for k, v in pairs(t) do r[#r + 1] = k .. ':' .. type(v) end table.sort(r)
  return table.concat(r, ',') end
local r = {}
for _, name in ipairs{'_G', 'string', 'table', 'math', 'os', 'coroutine', 'cjson', 'cmsgpack', 'struct', 'bit', 'redis', 'server'} do
  r[#r + 1] = name .. '=' .. list(_G[name]) end
r[#r + 1] = tostring(('x'):upper()) .. tostring(getmetatable('').__index == string)
r[#r + 1] = tostring(rawget(_G, 'hacked')) .. tostring(rawget(string, 'hacked')) .. tostring(('').hacked)
r[#r + 1] = tostring(getmetatable(1)) .. tostring(getmetatable(nil)) .. tostring(getmetatable(print_or_nil))
return table.concat(r, '\\n')";

fn probe() -> String {
    PROBE.replace("print_or_nil", "function() end")
}

const TRICKS: &[&str] = &[
    "hacked = 1",
    "_G.hacked = 1",
    "_G['hacked'] = 1",
    "string.hacked = 1",
    "string.upper = nil",
    "('').hacked = 1",
    "getmetatable('').__index.hacked = 1",
    "getmetatable('').__index = {hacked = 1}",
    "getmetatable('').__metatable = nil",
    "rawset(_G, 'hacked', 1)",
    "rawset(string, 'hacked', 1)",
    "rawset(getmetatable(''), '__index', {})",
    "rawset(getmetatable('').__index, 'hacked', 1)",
    "rawset(getmetatable(_G), '__index', function() return 1 end)",
    "getmetatable(_G).__index = function() return 1 end",
    "getmetatable(_G).__newindex = nil",
    "getmetatable(_G).__metatable = nil",
    "setmetatable(_G, {})",
    "setmetatable(_G, nil)",
    "setmetatable(string, {__index = {hacked = 1}})",
    "setmetatable(getmetatable(_G), {})",
    "table.insert(_G, 1)",
    "table.insert(_G, 1, 1)",
    "table.insert(redis, 1)",
    "table.remove(_G)",
    "table.remove(_G, 1)",
    "table.sort(_G, function() return true end)",
    "table.setn(_G, 10)",
    "table.foreach(_G, function(k, v) if type(v) == 'table' then v.hacked = 1 end end)",
    "for k, v in pairs(_G) do if type(v) == 'table' then v.hacked = 1 end end",
    "for k, v in pairs(_G) do if type(v) == 'table' then pcall(rawset, v, 'hacked', 1) end end error('done')",
    "for k, v in next, _G do if type(v) == 'table' then pcall(rawset, v, 'hacked', 1) end end error('done')",
    "local function each(t, seen) seen[t] = true pcall(rawset, t, 'hacked', 1) pcall(function() t.hacked = 1 end) local m = getmetatable(t) if type(m) == 'table' and not seen[m] then each(m, seen) end for k, v in pairs(t) do if type(v) == 'table' and not seen[v] then each(v, seen) end end end each(_G, {}) error('done')",
    "getfenv(0).hacked = 1",
    "getfenv(string.upper).hacked = 1",
    "setfenv(0, {})",
    "setfenv(1, {})",
    "debug.getregistry()",
    "debug.setmetatable(1, {})",
    "newproxy(true)",
    "require('os')",
    "package.loaded = nil",
    "io.open('/etc/passwd')",
    "os.execute('true')",
    "os.getenv('HOME')",
    "os.exit()",
    "dofile('/etc/passwd')",
    "loadfile('/etc/passwd')",
    "print('x')",
    "loadstring('hacked = 1')()",
    "loadstring('_G.hacked = 1')()",
    "load(function() return nil end)() hacked = 1",
    "loadstring(string.dump(function() hacked = 1 end))()",
    "loadstring('\\27Lua')()",
    "load((function() local n = 0 return function() n = n + 1 return n == 1 and '\\27' or nil end end)())()",
    "coroutine.wrap(function() hacked = 1 end)()",
    "coroutine.wrap(function() rawset(_G, 'hacked', 1) end)()",
    "xpcall(function() error('x') end, function() hacked = 1 end) error('done')",
    "xpcall(function() hacked = 1 end, function(e) rawset(_G, 'hacked', 1) end) error('done')",
    "xpcall(rawset, function(e) hacked = 1 end) error('done')",
    "redis.call = nil",
    "redis.hacked = 1",
    "server.call = nil",
    "redis.call({err = 'ERR x', hacked = 1})",
    "redis.call(redis)",
    "error(redis)",
    "error(_G)",
    "cjson.null = 1",
    "cjson.encode = 1",
    "table.concat = nil",
    "_G = {}",
    "_G._G = {}",
    "_G.string.hacked = 1",
    "coroutine.hacked = 1",
    "local t = setmetatable({}, {__newindex = _G}) t.hacked = 1",
    "local t = setmetatable({}, {__newindex = string}) t.hacked = 1",
    "local t = setmetatable({}, {__newindex = rawset}) setmetatable(_G, getmetatable(t))",
    "getmetatable(_G).__index(_G, 'hacked').x = 1",
    "table.foreach(getmetatable(_G), function(k, v) rawset(v, 'hacked', 1) end)",
    "__redis__err__handler(_G).hacked = 1",
    "__redis__err__handler(redis).hacked = 1",
    "gcinfo.hacked = 1",
    "unpack({}, 0, 2147483647)",
    "unpack({}, -2147483648, 2147483647)",
    "math.random = nil",
    "bit.hacked = 1",
    "struct.hacked = 1",
    "cmsgpack.hacked = 1",
    "for w in string.gmatch('a', '.') do _G[w] = 1 end",
    "string.gsub('a', 'a', function() _G.hacked = 1 end)",
    "table.sort({1, 2, 3}, function() rawset(_G, 'hacked', 1) end)",
    "getmetatable(setmetatable({}, getmetatable(_G))).__index = 1",
];

#[test]
fn no_trick_changes_what_scripts_see() {
    let lua = vm();
    let before = eval(&lua, probe()).unwrap();
    for trick in TRICKS {
        let result = eval(&lua, trick);
        // These find nothing to change.
        let idle =
            ["table.remove(_G", "table.sort(_G"].iter().any(|begin| trick.starts_with(begin));
        assert!(result.is_err() || idle, "{trick}: {result:?}");
        assert_eq!(eval(&lua, probe()).unwrap(), before, "{trick}");
    }
}

#[test]
fn settings_of_a_run_end_with_it() {
    let lua = vm();
    let default = eval(&lua, "return cjson.encode({1.23456789012345, 0.5})").unwrap();
    eval(
        &lua,
        "cjson.encode_number_precision(2) collectgarbage('stop') collectgarbage('setpause', 1)",
    )
    .unwrap();
    assert_eq!(eval(&lua, "return cjson.encode({1.23456789012345, 0.5})").unwrap(), default);
    eval(&lua, "KEYS[1] = 'x' KEYS.y = 1").unwrap();
    assert_eq!(eval(&lua, "return #KEYS .. tostring(KEYS.y)").unwrap(), "0nil");
}

#[test]
fn keys_and_arguments_of_a_run_end_with_it() {
    let lua = vm();
    let (keys, args) = ([&b"key"[..]], [&b"secret"[..]]);
    let inputs = |as_globals| Inputs { keys: &keys, args: &args, as_globals };
    let run_it = |source: &str, inputs: Inputs<'_>| {
        let function = compile(&lua, "@user_script", source.as_bytes(), |_| true).unwrap();
        let (done, value) = run(&lua, &function, inputs, |_| true).unwrap();
        let text = match &value {
            Value::Table(error) => error.raw_get::<String>("err").unwrap(),
            other => other.to_string().unwrap(),
        };
        (done, text)
    };
    let ended = ["return KEYS[1] .. ARGV[1]", "error({err = KEYS[1] .. ARGV[1]})"];
    for (source, is_done) in ended.into_iter().zip([true, false]) {
        assert_eq!(run_it(source, inputs(true)), (is_done, "keysecret".to_owned()));
        for (name, as_globals) in [("KEYS", false), ("ARGV", false)] {
            let (done, text) = run_it(&format!("return {name}[1]"), inputs(as_globals));
            let expected = format!("nonexistent global variable '{name}'");
            assert!(!done && text.contains(&expected), "{text}");
        }
    }
    assert_eq!(
        run_it("local keys, args = ... return keys[1] .. args[1]", inputs(false)).1,
        "keysecret"
    );
    // There is no memory for the arguments.
    let long = ["a", "b", "c", "d", "e"].map(|text| text.repeat(LIMIT / 4));
    let args = long.each_ref().map(String::as_bytes);
    let function = compile(&lua, "@user_script", b"return 1", |_| true).unwrap();
    let too_long = Inputs { keys: &keys, args: &args, as_globals: true };
    assert!(run(&lua, &function, too_long, |_| true).is_err());
    assert!(!run_it("return KEYS[1]", inputs(false)).0);
    // Nor for the last one of many, which is so short that nothing at all is left.
    let many: Vec<String> = (0..LIMIT / 32).map(|n| format!("{n:08}")).collect();
    let args: Vec<&[u8]> = many.iter().map(String::as_bytes).collect();
    let too_many = Inputs { keys: &keys, args: &args, as_globals: true };
    assert!(run(&lua, &function, too_many, |_| true).is_err());
    assert!(!run_it("return KEYS[1]", inputs(false)).0);
}

#[test]
fn a_chunk_name_outlives_a_reader_that_collects() {
    let lua = vm();
    let script = "
        local function reader() collectgarbage() for i = 1, 100 do local s = ('n'):rep(i) .. i end
            return nil end
        for i = 1, 50 do load(reader, 'name' .. i .. '\\0x') end
        return tostring(load(function() collectgarbage() return nil end) ~= nil)";
    assert_eq!(eval(&lua, script).unwrap(), "true");
}

#[test]
fn globals_can_be_restricted_while_a_library_is_loaded() {
    let lua = vm();
    let api = lua.create_table().unwrap();
    api.set("only", "here").unwrap();
    let api = read_only(&lua, &api, true).unwrap();
    restrict_globals(&lua, Some(&api)).unwrap();
    assert_eq!(eval(&lua, "return only").unwrap(), "here");
    let error = eval(&lua, "return string").unwrap_err();
    assert!(error.contains("nonexistent global variable 'string'"), "{error}");
    let error = eval(&lua, "only = 1").unwrap_err();
    assert!(error.contains("Attempt to modify a readonly table"), "{error}");
    restrict_globals(&lua, None).unwrap();
    assert_eq!(eval(&lua, "return string.upper('a')").unwrap(), "A");
    assert!(eval(&lua, "return only").is_err());
}

#[test]
fn values_are_raised_as_they_are() {
    let lua = vm();
    let script =
        "local ok, e = pcall(redis.call, {err = 'ERR no', more = 7}) return tostring(ok) .. e";
    assert_eq!(eval(&lua, script).unwrap(), "falseERR no");
    assert_eq!(
        eval(&lua, "\nredis.call({err = 'MY text'})").unwrap_err(),
        "MY text at @user_script:2"
    );
}
