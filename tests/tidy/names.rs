//! Names: of types and of commands.

use crate::source::{File, Kind, PRODUCTION, Token, closing};
use crate::{Figure, hold, ratchet};
use std::collections::BTreeMap;

/// Types of one name in a crate: the crate, the name, how many there are.
const SAME_NAMES: &[(&str, &str, usize)] = &[];

/// Literals in rooms of the server that are names of commands too: the file, the literal, and why it
/// is there.
const NAME_COMMANDS: &[(&str, &str, &str)] = &[
    ("src/acl/denials.rs", "auth", "a reason in ACL LOG"),
    ("src/acl/denials.rs", "command", "a reason in ACL LOG"),
    ("src/acl/denials.rs", "multi", "a context in ACL LOG"),
    ("src/acl/start.rs", "reset", "a rule of a user"),
    ("src/acl/user.rs", "reset", "a rule of a user"),
    ("src/blocking/table.rs", "stream", "a type of values"),
    ("src/functions/load.rs", "log", "a function of Lua"),
    ("src/membership/beats.rs", "BEAT", "a command that another server is sent"),
    ("src/membership/beats.rs", "CLUSTER", "a command that another server is sent"),
    ("src/membership/joining.rs", "cluster", "an argument of rename-command"),
    ("src/membership/joining.rs", "replicaof", "a setting"),
    ("src/membership/spreading.rs", "CLUSTER", "a command that another server is sent"),
    ("src/membership/spreading.rs", "LINK", "a command that another server is sent"),
    ("src/membership/spreading.rs", "SPREAD", "a command that another server is sent"),
    ("src/pubsub/mod.rs", "sunsubscribe", "the kind of a message"),
    ("src/scripting/api.rs", "debug", "a function of Lua"),
    ("src/scripting/api.rs", "log", "a function of Lua"),
    ("src/scripting/run.rs", "FUNCTION", "a word of an error"),
    ("src/scripting/run.rs", "SCRIPT", "a word of an error"),
    ("src/scripting/to_reply.rs", "set", "a key of a Lua table"),
    ("src/secrets.rs", "acl", "an argument that is not shown, until `Spec` says so"),
    ("src/secrets.rs", "auth", "an argument that is not shown, until `Spec` says so"),
    ("src/secrets.rs", "config", "an argument that is not shown, until `Spec` says so"),
    ("src/secrets.rs", "deluser", "an argument that is not shown, until `Spec` says so"),
    ("src/secrets.rs", "getuser", "an argument that is not shown, until `Spec` says so"),
    ("src/secrets.rs", "hello", "an argument that is not shown, until `Spec` says so"),
    ("src/secrets.rs", "migrate", "an argument that is not shown, until `Spec` says so"),
    ("src/secrets.rs", "set", "an argument that is not shown, until `Spec` says so"),
    ("src/secrets.rs", "setuser", "an argument that is not shown, until `Spec` says so"),
    ("src/transaction.rs", "exec", "the command that a queue ends with"),
    ("src/worker/departures.rs", "del", "the name of an event"),
    ("src/worker/scan.rs", "exists", "the command that a worker runs on many keys"),
    ("src/worker/watching.rs", "keys", "a field, for Debug"),
];

/// The types that `file` declares in its modules, with their lines. Types in functions are their
/// own business.
fn types(file: &File) -> Vec<(&'static str, usize)> {
    const WORDS: &[&str] = &["struct", "enum", "trait", "type", "union"];
    let tokens = &file.tokens;
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_module = at > 1 && tokens[at - 2].is("mod");
        if tokens[at].is("{") && !is_module {
            at = closing(tokens, at);
        } else if is_declaration(tokens, at, WORDS) {
            found.push((tokens[at + 1].text, tokens[at].line));
        }
        at += 1;
    }
    found
}

fn is_declaration(tokens: &[Token], at: usize, words: &[&str]) -> bool {
    tokens[at].kind == Kind::Word
        && words.contains(&tokens[at].text)
        && tokens[at + 1].kind == Kind::Word
        && !tokens[at + 1].is("for")
}

#[test]
fn names_of_types_are_unique_in_a_crate() {
    let mut places: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for file in PRODUCTION.iter() {
        for (name, line) in types(file) {
            places.entry((file.krate, name)).or_default().push(format!("{}:{line}", file.path));
        }
    }
    assert!(places.len() > 500, "only {} types are found: mend this test", places.len());
    let figures = places.into_iter().map(|((krate, name), places)| {
        let (number, places) = (places.len(), places.join(", "));
        let complaint = format!(
            "{places}: `{name}` is the name of {number} types of a crate. Give each a name that \
             says what sets it apart."
        );
        Figure { key: format!("{krate:?}, {name:?}"), number, complaint }
    });
    let figures: Vec<_> = figures.collect();
    let listed =
        SAME_NAMES.iter().map(|(krate, name, times)| (format!("{krate:?}, {name:?}"), *times));
    let rule = "A crate has one type of a name (SAME_NAMES in tests/tidy/names.rs).";
    hold(rule, ("SAME_NAMES", listed.collect()), (1, true), &figures);
}

/// The names of all commands, as their declarations have them.
fn commands() -> Vec<&'static str> {
    let mut names = Vec::new();
    for file in PRODUCTION.iter().filter(|file| is_family(&file.path)) {
        for three in file.tokens.windows(3) {
            if three[0].is("name") && three[1].is(":") && three[2].kind == Kind::Text {
                names.extend(Some(three[2].text.trim_matches('"')).filter(|name| !name.is_empty()));
            }
        }
    }
    assert!(names.len() > 200, "only {} commands are found: mend this test", names.len());
    names
}

fn is_family(path: &str) -> bool {
    path.starts_with("commands/") || path.starts_with("src/commands/")
}

#[test]
fn commands_are_known_by_their_declarations() {
    /// `config` and `log` have words of their own that commands have too; clients (`cli`, `http`) name
    /// the commands that they send, and `replication` and `followers` those between servers.
    const OTHERS: &[&str] =
        &["commands", "config", "log", "cli", "http", "replication", "followers"];
    let commands = commands();
    let is_command = |text: &str| commands.iter().any(|name| name.eq_ignore_ascii_case(text));
    let mut found = BTreeMap::new();
    for file in PRODUCTION.iter().filter(|file| file.krate == ".") {
        if file.module.first().is_some_and(|room| OTHERS.contains(&room.as_str())) {
            continue;
        }
        for token in file.tokens.iter().filter(|token| token.kind == Kind::Text) {
            let text = token.text.trim_start_matches('b').trim_matches('"');
            if is_command(text) {
                let complaint = format!(
                    "{}:{}: names the command `{text}`. Add a flag or a field to `Spec`, and ask the \
                     command for it; or list the literal with a reason.",
                    file.path, token.line
                );
                found.insert(format!("{:?}, {text:?}", file.path), complaint);
            }
        }
    }
    let listed =
        NAME_COMMANDS.iter().map(|(path, text, _)| format!("{path:?}, {text:?}")).collect();
    let rule = "Commands are known by their declarations (NAME_COMMANDS in tests/tidy/names.rs).";
    ratchet(rule, "NAME_COMMANDS", found.into_iter().collect(), listed);
}
