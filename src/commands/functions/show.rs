//! Subcommands of FUNCTION that change no library.

use crate::commands::scripting::answer_kill;
use crate::functions::{ENGINE, Library};
use crate::routing::{Call, CallOutcome};
use crate::scripts::{ScriptFlags, ScriptKind};
use flagstone_commands::help::help;
use flagstone_commands::is_word;
use flagstone_rdb::dump_functions;
use flagstone_wire::glob;
use flagstone_wire::resp::{Args, Reply};

/// `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]`
pub(super) fn list(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let (mut pattern, mut with_code) = (None, false);
    let mut words = args.skip(2).iter();
    while let Some(word) = words.next() {
        if !with_code && is_word(word, "withcode") {
            with_code = true;
        } else if pattern.is_none() && is_word(word, "libraryname") {
            let given = words.next().ok_or("ERR library name argument was not given")?;
            pattern = Some(given.to_ascii_lowercase());
        } else {
            let word = String::from_utf8_lossy(word);
            return Err(format!("ERR Unknown argument {word}").into());
        }
    }
    let libraries = cx.node.code.functions.now();
    let wanted = |name: &[u8]| {
        let fits = |pattern| glob::matches(pattern, &name.to_ascii_lowercase());
        pattern.as_deref().is_none_or(fits)
    };
    let shown: Vec<_> = libraries.iter().filter(|library| wanted(&library.name)).collect();
    cx.out.array(shown.len());
    for library in shown {
        show_library(cx.out, library, with_code);
    }
    Ok(())
}

fn show_library(out: &mut Reply, library: &Library, with_code: bool) {
    out.map(if with_code { 4 } else { 3 });
    out.bulk_str("library_name");
    out.bulk(&library.name);
    out.bulk_str("engine");
    out.bulk(&library.engine);
    out.bulk_str("functions");
    out.array(library.functions.len());
    for function in &library.functions {
        out.map(3);
        out.bulk_str("name");
        out.bulk(&function.name);
        out.bulk_str("description");
        out.bulk_or_null(function.description.as_deref());
        out.bulk_str("flags");
        let flags = ScriptFlags::from_bits_retain(function.flags as u32);
        let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
        out.set(names.len());
        names.iter().for_each(|name| out.simple(name));
    }
    if with_code {
        out.bulk_str("library_code");
        out.bulk(&library.code);
    }
}

/// `FUNCTION STATS`
pub(super) fn stats(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let running = &cx.node.code.scripts.running;
    if running.busy() == Some(ScriptKind::Script) {
        return Err(ScriptKind::Script.busy_text().into());
    }
    let function = running.oldest().filter(|control| control.kind == ScriptKind::Function);
    cx.out.map(2);
    cx.out.bulk_str("running_script");
    match function {
        None => cx.out.null(),
        Some(control) => {
            cx.out.map(3);
            cx.out.bulk_str("name");
            cx.out.bulk_str(&control.name);
            cx.out.bulk_str("command");
            cx.out.array(control.command.len());
            control.command.iter().for_each(|arg| cx.out.bulk(arg));
            cx.out.bulk_str("duration_ms");
            cx.out.int(control.began.elapsed().as_millis() as i64);
        }
    }
    let libraries = cx.node.code.functions.now();
    cx.out.bulk_str("engines");
    cx.out.map(1);
    cx.out.bulk_str(ENGINE);
    cx.out.map(2);
    cx.out.bulk_str("libraries_count");
    cx.out.int(libraries.iter().len() as i64);
    cx.out.bulk_str("functions_count");
    cx.out.int(libraries.function_count() as i64);
    Ok(())
}

/// `FUNCTION KILL`
pub(super) fn kill(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    answer_kill(cx, ScriptKind::Function)
}

/// `FUNCTION DUMP`
pub(super) fn dump(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let libraries = cx.node.code.functions.now();
    let codes = libraries.iter().map(|library| &*library.code);
    cx.out.bulk(&dump_functions(codes, cx.worker.settings().data.rdbcompression));
    Ok(())
}

pub(super) fn show_help(out: &mut Reply) {
    help(
        out,
        "FUNCTION",
        &[
            ("LOAD [REPLACE] <FUNCTION CODE>", "Add a library of this code."),
            ("DELETE <LIBRARY NAME>", "Remove a library."),
            (
                "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
                "Return the libraries: name, engine, functions, and with WITHCODE the code.",
            ),
            ("STATS", "Return which function is running, and how many there are."),
            ("KILL", "End the function that is running for long."),
            ("FLUSH [ASYNC|SYNC]", "Remove all libraries."),
            ("DUMP", "Return all libraries as a payload for FUNCTION RESTORE."),
            (
                "RESTORE <PAYLOAD> [FLUSH|APPEND|REPLACE]",
                "Add the libraries of a payload: after removing all, or failing if one is there \
                 (the default), or in their place.",
            ),
        ],
    );
}
