//! Tests of metadata, of loading and of the registry.

use super::*;
use crate::scripts::ScriptFlags;
use std::sync::Arc;

const VM_BYTES: usize = 64 << 20;
const MAX_BYTES: usize = 1 << 20;

/// Limits of code that is slow on a busy machine.
const LIMITS: LoadLimits =
    LoadLimits { time: std::time::Duration::from_secs(60), bytes: MAX_BYTES };

fn library(name: &str, body: &str) -> Result<Library, String> {
    Library::inspect(format!("#!lua name={name}\n{body}").as_bytes(), VM_BYTES, MAX_BYTES)
}

fn error(body: &str) -> String {
    library("lib", body).unwrap_err()
}

fn registering(name: &str, functions: &[&str]) -> Arc<Library> {
    let body: String = functions
        .iter()
        .map(|f| format!("redis.register_function('{f}', function() return 1 end)\n"))
        .collect();
    Arc::new(library(name, &body).unwrap())
}

#[test]
fn the_first_line_is_read() {
    let read = |code: &str| Metadata::read(code.as_bytes()).map(|m| m.name);
    assert_eq!(read("#!LUA name=a_1\n").unwrap(), b"a_1"[..].into());
    assert_eq!(read("#!lua NAME=\"x\"\ncode").unwrap(), b"x"[..].into());
    for (code, text) in [
        ("", "ERR Missing library metadata"),
        ("#!lua name=x", "ERR Invalid library metadata"),
        ("#!lua name=\"x\n", "ERR Invalid library metadata"),
        ("#!lua\n", "ERR Library name was not given"),
        ("#!lua x\n", "ERR Invalid metadata value given: x"),
        (
            "#!lua name=a name=b\n",
            "ERR Invalid metadata value, name argument was given multiple times",
        ),
        ("#!perl name=a\n", "ERR Engine 'perl' not found"),
    ] {
        assert_eq!(read(code).unwrap_err(), text, "{code}");
    }
    for name in ["", "a-b", "ä"] {
        assert!(read(&format!("#!lua name={name}\n")).unwrap_err().contains("can only contain"));
    }
    let long = "x".repeat(flagstone_storage::encoding::MAX_LIBRARY_NAME + 1);
    assert!(read(&format!("#!lua name={long}\n")).is_err());
}

#[test]
fn functions_are_registered_in_order() {
    let body = "
        server.register_function('b', function() end)
        redis.register_function{
            FUNCTION_NAME = 'a', callback = function() end, description = 'd',
            flags = {'no-writes', 'ALLOW-OOM'},
        }";
    let library = library("lib", body).unwrap();
    let [b, a] = &library.functions[..] else { panic!("two functions") };
    assert_eq!((&*b.name, &b.description, b.flags), (&b"b"[..], &None, 0));
    assert_eq!((&*a.name, a.description.as_deref()), (&b"a"[..], Some(&b"d"[..])));
    assert_eq!(a.flags, u64::from((ScriptFlags::NO_WRITES | ScriptFlags::ALLOW_OOM).bits()));
    assert_eq!(library.body(), format!("\n{body}").as_bytes());
}

#[test]
fn a_library_registers_as_many_functions_as_it_may() {
    let body = |count: usize| {
        format!(
            "for n = 1, {count} do redis.register_function('f' .. n, function() return n end) end"
        )
    };
    let vm = flagstone_lua::new_vm(VM_BYTES).unwrap();
    flagstone_lua::seal(&vm).unwrap();
    let loaded = load(&vm, body(10_000).as_bytes(), LIMITS, false).unwrap();
    assert_eq!(loaded.registered.len(), 10_000);
    let last: mlua::Function = loaded.callbacks.raw_get(10_000).unwrap();
    let answer = flagstone_lua::call(&vm, &last, (), |_| true).unwrap().unwrap();
    assert_eq!(answer.to_string().unwrap(), "10000");
    // There is as much room for other values as before.
    let tables: Vec<_> = (0..7000).map(|_| vm.create_table().unwrap()).collect();
    drop((loaded, last, tables));
    let refused = load(&vm, body(10_001).as_bytes(), LIMITS, false).unwrap_err();
    let text = "ERR Error registering functions: ERR too many functions";
    assert_eq!(refused, LoadError::Failed(text.into()));
}

#[test]
fn names_and_descriptions_of_functions_take_no_more_memory_than_they_may() {
    let body = |bytes: usize| {
        format!(
            "local text = 'x'
            while #text < {bytes} do text = text .. text end
            for n = 1, 100 do
                redis.register_function{{
                    function_name = 'f' .. n, callback = function() end, description = text,
                }}
            end"
        )
    };
    assert_eq!(library("lib", &body(5_000)).unwrap().functions.len(), 100);
    for bytes in [MAX_BYTES / 100, 10 << 20] {
        assert_eq!(
            error(&body(bytes)),
            "ERR Error registering functions: \
             ERR the names and descriptions of the functions take too much memory"
        );
    }
}

#[test]
fn libraries_that_cannot_be_loaded_are_refused_with_the_reason() {
    let registering = "ERR Error registering functions: ERR ";
    for (body, text) in [
        ("bad script", "ERR Error compiling function: user_function:2: '=' expected near 'script'"),
        ("return 1", "ERR No functions registered"),
        (
            "local f = function() end redis.register_function('f', f) \
             redis.register_function('F', f)",
            "ERR Function already exists in the library",
        ),
        (
            "redis.register_function('a-b', function() end)",
            "ERR Function names can only contain letters, numbers, or underscores(_) and must be \
             at least one character long",
        ),
    ] {
        assert_eq!(error(body), text, "{body}");
    }
    for (body, text) in [
        ("local a; a()", "user_function:2: attempt to call local 'a' (a nil value)"),
        (
            "return math.random()",
            "user_function:2: Script attempted to access nonexistent global variable 'math'",
        ),
        (
            "return redis.call('ping')",
            "user_function:2: Script attempted to access nonexistent global variable 'call'",
        ),
        ("redis.x = 1", "user_function:2: Attempt to modify a readonly table"),
        ("redis.register_function()", "wrong number of arguments to server.register_function"),
        (
            "redis.register_function('f')",
            "calling server.register_function with a single argument is only applicable to Lua \
             table (representing named arguments).",
        ),
        (
            "redis.register_function(nil, function() end)",
            "first argument to server.register_function must be a string",
        ),
        (
            "redis.register_function('f', 1)",
            "second argument to server.register_function must be a function",
        ),
        ("redis.register_function{}", "server.register_function must get a function name argument"),
        (
            "redis.register_function{function_name='f'}",
            "server.register_function must get a callback argument",
        ),
        ("redis.register_function{x=1}", "unknown argument given to server.register_function"),
        (
            "redis.register_function{function_name='f', callback=function() end, flags={'x'}}",
            "unknown flag given",
        ),
    ] {
        assert_eq!(error(body), format!("{registering}{text}"), "{body}");
    }
}

#[test]
fn a_library_that_does_not_end_is_refused() {
    let timeout = "ERR Error registering functions: ERR FUNCTION LOAD timeout";
    assert_eq!(error("while true do end"), timeout);
}

#[test]
fn nothing_is_registered_later() {
    let vm = flagstone_lua::new_vm(VM_BYTES).unwrap();
    flagstone_lua::seal(&vm).unwrap();
    let body = b"local r = redis
        r.register_function('f', function() r.register_function('g', function() end) end)
        r.register_function('h', function() return math.abs(-2) end)";
    let callbacks = load(&vm, body, LIMITS, false).unwrap().callbacks;
    let call = |at: usize| {
        let callback: mlua::Function = callbacks.raw_get(at + 1).unwrap();
        flagstone_lua::call(&vm, &callback, (), |_| true).unwrap()
    };
    let mlua::Value::Table(raised) = call(0).unwrap_err() else { panic!("an error") };
    assert_eq!(
        raised.raw_get::<String>("err").unwrap(),
        "ERR server.register_function can only be called on FUNCTION LOAD command"
    );
    // The globals are those of scripts again.
    assert_eq!(call(1).unwrap().to_string().unwrap(), "2");
}

#[test]
fn libraries_come_and_go_together() {
    let functions = Functions::new(Vec::new(), 1 << 20).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut edit = runtime.block_on(functions.edit());
    let (a, b) = (registering("a", &["f", "G"]), registering("b", &["h"]));
    edit.add(&[a.clone(), b], Policy::Append).unwrap();
    assert_eq!(edit.libraries().function(b"g").unwrap().function.name[..], b"G"[..]);
    assert_eq!(edit.libraries().function_count(), 3);
    let bytes = edit.libraries().bytes();

    let clash = [registering("c", &["c"]), registering("d", &["H"])];
    assert_eq!(edit.add(&clash, Policy::Append).unwrap_err(), "ERR Function H already exists");
    let text = "ERR Library a already exists";
    assert_eq!(edit.add(std::slice::from_ref(&a), Policy::Append).unwrap_err(), text);
    let twice = [registering("e", &["e"]), registering("e", &["e2"])];
    assert_eq!(edit.add(&twice, Policy::Replace).unwrap_err(), "ERR Library 'e' already exists");
    assert_eq!(edit.libraries().bytes(), bytes, "a change that fails changes nothing");

    edit.add(&[registering("a", &["f"])], Policy::Replace).unwrap();
    assert!(edit.libraries().function(b"g").is_none());
    assert!(edit.remove(b"b") && !edit.remove(b"b"));
    assert!(edit.libraries().function(b"h").is_none());
    edit.add(&clash, Policy::Flush).unwrap();
    assert_eq!(edit.libraries().iter().len(), 2);
    edit.clear();
    assert_eq!((edit.libraries().bytes(), edit.libraries().function_count()), (0, 0));
    assert_eq!(functions.now().iter().len(), 0, "it is not stored");
}

#[test]
fn libraries_are_bounded() {
    let functions = Functions::new(Vec::new(), 1000).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut edit = runtime.block_on(functions.edit());
    edit.add(&[registering("a", &["f"])], Policy::Append).unwrap();
    let error = edit.add(&[registering("b", &["g"])], Policy::Append).unwrap_err();
    assert!(error.starts_with("OOM "), "{error}");
    edit.add(&[registering("b", &["g"])], Policy::Flush).unwrap();
}

#[test]
fn libraries_beyond_a_limit_may_be_replaced_while_they_do_not_grow() {
    let functions = Functions::new(Vec::new(), 100).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut edit = runtime.block_on(functions.edit());
    edit.replace(vec![(**registering("a", &["f"])).clone()]).unwrap();
    let bytes = edit.libraries().bytes();
    assert!(bytes > 100 && edit.max_bytes() == bytes, "{bytes}");
    assert!(edit.has_room(bytes).is_ok() && edit.has_room(bytes + 1).is_err());
    edit.add(&[registering("a", &["f"])], Policy::Replace).unwrap();
    assert!(edit.add(&[registering("a", &["f", "g"])], Policy::Replace).is_err());
    edit.clear();
    assert_eq!(edit.max_bytes(), 100);
}

#[test]
fn libraries_of_other_servers_replace_all_but_those_that_are_the_same() {
    let functions = Functions::new(Vec::new(), 2000).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut edit = runtime.block_on(functions.edit());
    let [a, b] = [registering("a", &["f"]), registering("b", &["g"])];
    edit.add(&[a.clone(), b.clone()], Policy::Append).unwrap();
    edit.apply(&functions);
    assert_eq!((functions.now().version, edit.changes().len()), (1, 0));
    let other = registering("b", &["g", "h"]);
    let rows = |of: &[&Arc<Library>]| of.iter().map(|it| (***it).clone()).collect::<Vec<_>>();
    let large = registering("c", &["x".repeat(2000).as_str()]);
    // They were accepted elsewhere: the memory here is no reason to refuse them.
    edit.replace(rows(&[&a, &other, &large])).unwrap();
    edit.apply(&functions);
    let now = functions.now();
    assert_eq!((now.version, now.iter().len()), (2, 3));
    assert!(Arc::ptr_eq(now.get(b"a").unwrap(), &a), "a VM keeps what it has loaded of it");
    assert!(!Arc::ptr_eq(now.get(b"b").unwrap(), &b));
    assert!(now.function(b"h").is_some());
    assert!(Arc::ptr_eq(now.with_code(&a.code).unwrap(), &a) && now.with_code(b"").is_none());
    let clash = registering("d", &["f"]);
    assert!(edit.replace(rows(&[&a, &clash])).unwrap_err().contains("already exists"));
    edit.clear();
    edit.begin_again();
    assert_eq!(edit.rows().map(|row| &*row.name).collect::<Vec<_>>(), [b"a", b"b", b"c"]);
}
