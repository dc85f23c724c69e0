//! COMMAND: describes the server's commands from their declarations.

use super::docs;
use crate::command::{Command, registry};
use crate::commands::{Handler, Spec};
use crate::routing::{Call, CallOutcome};
use flagstone_commands::help::help;
use flagstone_commands::{
    Begin, Categories, Find, Group, KeyAccess, KeyFlags, KeySpec, acl, arg, error, flag, is_word,
    key,
};
use flagstone_wire::glob;
use flagstone_wire::resp::{Args, Reply};

/// `COMMAND`
pub(super) fn all(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let commands = registry::all();
    cx.out.array(commands.len());
    for command in commands {
        describe(cx.out, command);
    }
    Ok(())
}

/// `COMMAND COUNT`
fn count(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.out.count(registry::all().len());
    Ok(())
}

/// `COMMAND INFO [name …]`
fn info(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    if args.len() == 2 {
        return all(cx, args);
    }
    cx.out.array(args.len() - 2);
    for name in args.iter().skip(2) {
        match registry::by_full_name(name) {
            Some(command) => describe(cx.out, command),
            None => cx.out.null(),
        }
    }
    Ok(())
}

fn describe(out: &mut Reply, command: &Command) {
    let spec = command.spec;
    let range = spec.key_range().0;
    out.array(10);
    out.bulk_str(command.full_name);
    out.int(spec.arity.into());
    statuses(out, &spec.flag_names());
    out.int(range.first);
    out.int(range.last);
    out.int(range.step);
    let categories = spec.category_names();
    out.set(categories.len());
    for category in categories {
        out.simple(&format!("@{category}"));
    }
    out.set(spec.tips.len());
    for tip in spec.tips {
        out.bulk_str(tip);
    }
    out.set(spec.keys.len());
    for keys in spec.keys {
        describe_keys(out, keys);
    }
    out.array(command.subcommands.len());
    for sub in &command.subcommands {
        describe(out, sub);
    }
}

/// Writes a set of simple strings.
fn statuses(out: &mut Reply, names: &[&str]) {
    out.set(names.len());
    for name in names {
        out.simple(name);
    }
}

fn key_flags(out: &mut Reply, flags: KeyFlags) {
    let names: Vec<&str> = flags.iter_names().map(|(name, _)| name).collect();
    statuses(out, &names);
}

fn describe_keys(out: &mut Reply, keys: &KeySpec) {
    out.map(3);
    out.bulk_str("flags");
    key_flags(out, keys.flags);
    out.bulk_str("begin_search");
    match keys.begin {
        Begin::Index(index) => {
            typed(out, "index", 1);
            number(out, "index", index as i64);
        }
        Begin::Keyword(word, start) => {
            typed(out, "keyword", 2);
            out.bulk_str("keyword");
            out.bulk_str(word);
            number(out, "startfrom", start.into());
        }
        Begin::Unknown => typed(out, "unknown", 0),
    }
    out.bulk_str("find_keys");
    match keys.find.shown() {
        Find::Range { last, step, limit } => {
            typed(out, "range", 3);
            number(out, "lastkey", last.into());
            number(out, "keystep", step as i64);
            number(out, "limit", limit as i64);
        }
        Find::KeyNum { at, first, step } => {
            typed(out, "keynum", 3);
            number(out, "keynumidx", at as i64);
            number(out, "firstkey", first as i64);
            number(out, "keystep", step as i64);
        }
        Find::Options(_) | Find::ShownAs(..) | Find::Unknown => typed(out, "unknown", 0),
    }
}

/// Writes the head of a part of a key spec; `pairs` pairs follow.
fn typed(out: &mut Reply, kind: &str, pairs: usize) {
    out.map(2);
    out.bulk_str("type");
    out.bulk_str(kind);
    out.bulk_str("spec");
    out.map(pairs);
}

fn number(out: &mut Reply, name: &str, value: i64) {
    out.bulk_str(name);
    out.int(value);
}

/// `COMMAND LIST [FILTERBY <MODULE name | ACLCAT category | PATTERN pattern>]`
fn list(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let chosen: Box<dyn Fn(&Command) -> bool> = match args.len() {
        2 => Box::new(|_| true),
        5 if is_word(arg(args, 2)?, "filterby") => {
            let (kind, value) = (arg(args, 3)?, arg(args, 4)?);
            if is_word(kind, "module") {
                Box::new(|_| false)
            } else if is_word(kind, "aclcat") {
                let mut all = Categories::all().iter_names();
                let named = all.find(|(name, _)| is_word(value, name));
                let category = named.map_or(Categories::empty(), |(_, category)| category);
                Box::new(move |command| command.spec.categories().intersects(category))
            } else if is_word(kind, "pattern") {
                Box::new(|command| glob::matches_nocase(value, command.full_name.as_bytes()))
            } else {
                return Err(error::SYNTAX.into());
            }
        }
        _ => return Err(error::SYNTAX.into()),
    };
    let mark = cx.out.begin_set();
    let mut found = 0;
    for command in registry::listed().filter(|command| chosen(command)) {
        cx.out.bulk_str(command.full_name);
        found += 1;
    }
    cx.out.end(mark, found);
    Ok(())
}

/// `COMMAND GETKEYS command [arg …]`
fn getkeys(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    keys_of(cx.out, args, false)
}

/// `COMMAND GETKEYSANDFLAGS command [arg …]`
fn getkeysandflags(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    keys_of(cx.out, args, true)
}

fn keys_of(out: &mut Reply, args: Args<'_>, with_flags: bool) -> CallOutcome {
    let inner = args.skip(2);
    let command = inner.get(0).and_then(registry::lookup).and_then(|command| match inner.get(1) {
        Some(sub) if !command.subcommands.is_empty() => command.subcommand(sub),
        _ => Some(command),
    });
    let spec = command.ok_or("ERR Invalid command specified")?.spec;
    if spec.keys.iter().all(|keys| keys.flags.contains(key!(NOT_KEY))) {
        return Err("ERR The command has no key arguments".into());
    }
    if !spec.arity_allows(inner.len()) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let found = spec.key_accesses(inner).unwrap_or_default();
    if found.is_empty() && !spec.has(flag!(NO_MANDATORY_KEYS)) {
        return Err("ERR Invalid arguments specified for command".into());
    }
    out.array(found.len());
    for KeyAccess { index, flags } in found {
        if with_flags {
            out.array(2);
        }
        out.bulk(arg(inner, index)?);
        if with_flags {
            key_flags(out, flags);
        }
    }
    Ok(())
}

/// `COMMAND HELP`
fn show_help(out: &mut Reply) {
    help(
        out,
        "COMMAND",
        &[
            ("(no subcommand)", "Describes all commands."),
            ("COUNT", "Answers how many commands there are."),
            (
                "LIST",
                "Answers the commands' names; FILTERBY (MODULE|ACLCAT|PATTERN) <value> chooses.",
            ),
            ("INFO [<command-name> ...]", "Describes these commands, or all."),
            ("DOCS [<command-name> ...]", "Documents these commands, or all."),
            ("GETKEYS <full-command>", "Answers the keys in a full command."),
            ("GETKEYSANDFLAGS <full-command>", "The same, with what is done to each key."),
        ],
    );
}

/// Declarations of the subcommands of COMMAND.
pub(super) const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "count",
        group: Group::Server,
        since: "2.8.13",
        summary: "Answers how many commands there are.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        acl: acl!(CONNECTION),
        run: Handler::Session(count),
        ..Spec::NEW
    },
    Spec {
        name: "docs",
        group: Group::Server,
        since: "7.0.0",
        complexity: "O(N) where N is the number of commands to look up",
        summary: "Documents commands.",
        arity: -2,
        flags: flag!(LOADING | STALE),
        acl: acl!(CONNECTION),
        tips: &["nondeterministic_output_order"],
        run: Handler::Session(docs::docs),
        ..Spec::NEW
    },
    Spec {
        name: "getkeys",
        group: Group::Server,
        since: "2.8.13",
        complexity: "O(N) where N is the number of arguments to the command",
        summary: "Answers the keys among the arguments of a command.",
        arity: -3,
        flags: flag!(LOADING | STALE),
        acl: acl!(CONNECTION),
        run: Handler::Session(getkeys),
        ..Spec::NEW
    },
    Spec {
        name: "getkeysandflags",
        group: Group::Server,
        since: "7.0.0",
        complexity: "O(N) where N is the number of arguments to the command",
        summary: "Answers the keys among the arguments of a command, and what is done to them.",
        arity: -3,
        flags: flag!(LOADING | STALE),
        acl: acl!(CONNECTION),
        run: Handler::Session(getkeysandflags),
        ..Spec::NEW
    },
    Spec {
        name: "help",
        group: Group::Server,
        since: "5.0.0",
        summary: "Tells the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        acl: acl!(CONNECTION),
        run: Handler::Help(show_help),
        ..Spec::NEW
    },
    Spec {
        name: "info",
        group: Group::Server,
        since: "2.8.13",
        complexity: "O(N) where N is the number of commands to look up",
        summary: "Describes commands.",
        arity: -2,
        flags: flag!(LOADING | STALE),
        acl: acl!(CONNECTION),
        tips: &["nondeterministic_output_order"],
        run: Handler::Session(info),
        ..Spec::NEW
    },
    Spec {
        name: "list",
        group: Group::Server,
        since: "7.0.0",
        complexity: "O(N) where N is the total number of commands",
        summary: "Answers the commands' names.",
        arity: -2,
        flags: flag!(LOADING | STALE),
        acl: acl!(CONNECTION),
        tips: &["nondeterministic_output_order"],
        run: Handler::Session(list),
        ..Spec::NEW
    },
];
