//! COMMAND DOCS: the declarations' texts, and the arguments of commands.
//!
//! Arguments of the reference's commands are facts on these (`arguments.txt`, written by
//! `tests/compat/command_facts.py`); a command beyond them declares its own (`Spec::arguments`). The
//! facts have one line for each command: its name, `%` if it is for tests of the server, `!` and
//! the version that deprecated it, and its arguments. An argument is `name:type`, then, as far as
//! it has them, in this order: `@` and the number of its key spec, its token in backquotes, `~` and
//! its name in syntax diagrams, `^` and the version that introduced it, `!` and the one that
//! deprecated it, `?` for optional, `*` for repeated, `+` for repeated with its token, and its
//! parts in brackets.

use crate::command::{Command, registry};
use crate::routing::{Call, CallOutcome};
use flagstone_wire::resp::{Args, Reply};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Lines by the commands' names.
static LINES: LazyLock<HashMap<&'static str, &'static str>> = LazyLock::new(|| {
    include_str!("arguments.txt")
        .lines()
        .map(|line| line.split_once(' ').unwrap_or((line, "")))
        .collect()
});

/// Contents of a line.
#[derive(Default)]
struct Facts {
    is_for_tests: bool,
    deprecated_since: Option<&'static str>,
    arguments: Vec<Argument>,
}

#[derive(Default)]
struct Argument {
    name: &'static str,
    kind: &'static str,
    key_spec: Option<&'static str>,
    token: Option<&'static str>,
    display: Option<&'static str>,
    since: Option<&'static str>,
    deprecated_since: Option<&'static str>,
    flags: Vec<&'static str>,
    parts: Vec<Argument>,
}

/// `COMMAND DOCS [name …]`
pub(super) fn docs(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let commands: Vec<&Command> = if args.len() == 2 {
        registry::all().to_vec()
    } else {
        args.iter().skip(2).filter_map(registry::by_full_name).collect()
    };
    document(cx.out, commands.into_iter());
    Ok(())
}

fn document<'a>(out: &mut Reply, commands: impl ExactSizeIterator<Item = &'a Command>) {
    out.map(commands.len());
    for command in commands {
        let spec = command.spec;
        let facts = facts(command);
        out.bulk_str(command.full_name);
        let mark = out.begin_map();
        let mut fields = 4;
        for (name, text) in [
            ("summary", spec.summary),
            ("since", spec.since),
            ("group", spec.group.name()),
            ("complexity", spec.complexity),
        ] {
            out.bulk_str(name);
            out.bulk_str(text);
        }
        let history = history(&facts.arguments);
        if !history.is_empty() {
            fields += 1;
            out.bulk_str("history");
            out.set(history.len());
            for (version, added) in history {
                out.array(2);
                out.bulk_str(version);
                out.bulk_str(&added);
            }
        }
        let doc_flags: Vec<&str> =
            [facts.deprecated_since.map(|_| "deprecated"), facts.is_for_tests.then_some("syscmd")]
                .into_iter()
                .flatten()
                .collect();
        if !doc_flags.is_empty() {
            fields += 1;
            out.bulk_str("doc_flags");
            statuses(out, &doc_flags);
        }
        if let Some(version) = facts.deprecated_since {
            fields += 1;
            out.bulk_str("deprecated_since");
            out.bulk_str(version);
        }
        if !facts.arguments.is_empty() {
            fields += 1;
            out.bulk_str("arguments");
            describe(out, &facts.arguments);
        }
        if !command.subcommands.is_empty() {
            fields += 1;
            out.bulk_str("subcommands");
            document(out, command.subcommands.iter());
        }
        out.end(mark, fields);
    }
}

/// Returns the additions to a command, by the version: the arguments that are younger than it.
fn history(arguments: &[Argument]) -> Vec<(&'static str, String)> {
    let mut added = Vec::new();
    collect_added(arguments, &mut added);
    let number = |version: &str| -> Vec<u32> {
        version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
    };
    added.sort_by_key(|(version, _)| number(version));
    let mut history: Vec<(&'static str, String)> = Vec::new();
    for (version, name) in added {
        match history.last_mut().filter(|(last, _)| *last == version) {
            Some((_, names)) => names.push_str(&format!(", `{name}`")),
            None => history.push((version, format!("Added: `{name}`"))),
        }
    }
    history
}

fn collect_added(arguments: &[Argument], added: &mut Vec<(&'static str, &'static str)>) {
    for argument in arguments {
        match argument.since {
            Some(version) => {
                let name = argument.token.filter(|token| !token.is_empty());
                added.push((version, name.unwrap_or(argument.name)));
            }
            None => collect_added(&argument.parts, added),
        }
    }
}

fn statuses(out: &mut Reply, names: &[&str]) {
    out.set(names.len());
    names.iter().for_each(|name| out.simple(name));
}

fn describe(out: &mut Reply, arguments: &[Argument]) {
    out.array(arguments.len());
    for argument in arguments {
        let has_parts = matches!(argument.kind, "oneof" | "block");
        // As the reference writes them, whatever a client may write.
        let name = argument.name.to_ascii_lowercase();
        let shown = (!has_parts).then(|| argument.display.unwrap_or(&name));
        let token = argument.token.map(str::to_ascii_uppercase);
        let texts = [
            ("name", Some(name.as_str())),
            ("type", Some(argument.kind)),
            ("display_text", shown),
            ("key_spec_index", argument.key_spec),
            ("token", token.as_deref()),
            ("since", argument.since),
            ("deprecated_since", argument.deprecated_since),
        ];
        let present = texts.iter().filter(|(_, text)| text.is_some()).count();
        out.map(present + usize::from(!argument.flags.is_empty()) + usize::from(has_parts));
        for (name, text) in texts.iter().filter_map(|(name, text)| Some((name, (*text)?))) {
            out.bulk_str(name);
            match text.parse() {
                Ok(number) if *name == "key_spec_index" => out.int(number),
                _ => out.bulk_str(text),
            }
        }
        if !argument.flags.is_empty() {
            out.bulk_str("flags");
            statuses(out, &argument.flags);
        }
        if has_parts {
            out.bulk_str("arguments");
            describe(out, &argument.parts);
        }
    }
}

/// Returns the facts on a command; empty for a command without arguments.
fn facts(command: &Command) -> Facts {
    let mut facts = Facts::default();
    let mut text = LINES.get(command.full_name).copied().unwrap_or(command.spec.arguments);
    if let Some(rest) = text.strip_prefix('%') {
        facts.is_for_tests = true;
        text = rest.trim_start();
    }
    if let Some(rest) = text.strip_prefix('!') {
        let (version, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        facts.deprecated_since = Some(version);
        text = rest;
    }
    facts.arguments = arguments(&mut text);
    facts
}

/// Parses arguments up to the end, or to a closing bracket.
fn arguments(text: &mut &'static str) -> Vec<Argument> {
    let mut found = Vec::new();
    loop {
        *text = text.trim_start_matches(' ');
        if text.is_empty() || text.starts_with(']') {
            return found;
        }
        found.push(one_argument(text));
    }
}

fn one_argument(text: &mut &'static str) -> Argument {
    let mut argument = Argument { name: word(text), ..Argument::default() };
    *text = text.strip_prefix(':').unwrap_or(*text);
    argument.kind = word(text);
    loop {
        let Some(mark) = text.chars().next().filter(|mark| !" ]".contains(*mark)) else {
            return argument;
        };
        *text = &text[mark.len_utf8()..];
        match mark {
            '@' => argument.key_spec = Some(word(text)),
            '`' => {
                let (token, rest) = text.split_once('`').unwrap_or((*text, ""));
                (argument.token, *text) = (Some(token), rest);
            }
            '~' => {
                let end = text.find(|mark: char| "^!?*+[] ".contains(mark)).unwrap_or(text.len());
                (argument.display, *text) = (Some(&text[..end]), &text[end..]);
            }
            '^' => argument.since = Some(word(text)),
            '!' => argument.deprecated_since = Some(word(text)),
            '?' => argument.flags.push("optional"),
            '*' => argument.flags.push("multiple"),
            '+' => argument.flags.push("multiple_token"),
            _ => {
                argument.parts = arguments(text);
                *text = text.strip_prefix(']').unwrap_or(*text);
            }
        }
    }
}

/// Returns the text up to the next mark.
fn word(text: &mut &'static str) -> &'static str {
    let end = text.find(|mark: char| ":@`~^!?*+[] ".contains(mark)).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    *text = rest;
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Route;
    use std::collections::BTreeSet;

    const TYPES: &[&str] = &[
        "string",
        "integer",
        "double",
        "key",
        "pattern",
        "unix-time",
        "pure-token",
        "oneof",
        "block",
    ];

    fn check(command: &str, arguments: &[Argument]) {
        for argument in arguments {
            let Argument { name, kind, .. } = argument;
            assert!(!name.is_empty() && TYPES.contains(kind), "{command}: {name} {kind}");
            let has_parts = matches!(*kind, "oneof" | "block");
            assert_eq!(has_parts, !argument.parts.is_empty(), "{command}: {name}");
            assert!(*kind != "pure-token" || argument.token.is_some(), "{command}: {name}");
            check(command, &argument.parts);
        }
    }

    #[test]
    fn every_command_that_takes_arguments_says_which() {
        for command in registry::every() {
            let facts = facts(command);
            check(command.full_name, &facts.arguments);
            let own = command.full_name.split('|').count();
            let takes = usize::from(command.spec.arity.unsigned_abs()) > own;
            let is_container = matches!(command.spec.run, Route::Container);
            if takes && !is_container && !facts.is_for_tests {
                assert!(!facts.arguments.is_empty(), "{}", command.full_name);
            }
        }
    }

    #[test]
    fn every_line_is_of_a_command() {
        let known: BTreeSet<&str> = registry::every().map(|command| command.full_name).collect();
        for name in LINES.keys() {
            assert!(known.contains(name), "{name}");
        }
    }

    #[test]
    fn a_history_tells_what_was_added_since() {
        let text = &mut "a:key b:integer`B`^10.0.0 c:oneof[d:pure-token`D`^7.0.0 e:string] \
            f:string^7.0.0";
        let told = history(&arguments(text));
        let expected =
            [("7.0.0", "Added: `D`, `f`".to_owned()), ("10.0.0", "Added: `B`".to_owned())];
        assert_eq!(told, expected);
    }

    #[test]
    fn an_argument_has_all_that_its_line_says() {
        let text = &mut "a:block@1`=`~ip:port^1.0!2.0?*+[b:string c:pure-token`C`] d:key";
        let [a, d] = <[Argument; 2]>::try_from(arguments(text)).ok().unwrap();
        assert_eq!((a.name, a.kind, a.key_spec, a.token), ("a", "block", Some("1"), Some("=")));
        assert_eq!((a.display, a.since), (Some("ip:port"), Some("1.0")));
        assert_eq!(a.deprecated_since, Some("2.0"));
        assert_eq!(a.flags, ["optional", "multiple", "multiple_token"]);
        assert_eq!((a.parts[0].name, a.parts[1].token), ("b", Some("C")));
        assert_eq!((d.name, d.kind), ("d", "key"));
    }
}
