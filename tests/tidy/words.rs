//! Texts: of the protocol, and of documentation.

use crate::source::{Kind, MEMBERS, PRODUCTION};
use crate::{Figure, hold, settle};

/// The file that renders replies.
const RENDERER: &str = "wire/src/resp/reply/mod.rs";

/// Other files of production code that may write `\r\n` into a literal, how many times, and why.
const LINE_ENDS: &[(&str, usize, &str)] = &[
    ("src/cli/connection.rs", 5, "requests of a client"),
    ("src/cli/export.rs", 1, "replies as a client reads them"),
    ("src/cli/import/aof.rs", 1, "requests in an append-only file"),
    ("src/commands/cluster/mod.rs", 1, "lines of CLUSTER INFO"),
    ("src/commands/server/info/mod.rs", 2, "lines of INFO"),
    ("src/http/sent.rs", 1, "requests of a client"),
];

/// Words that no documentation begins with: it begins with the noun or the verb itself.
const RIDDLES: &[&str] = &["What", "Whether", "Who", "Whoever", "Whose", "Nobody", "Somebody"];

/// How many doc comments of production code begin with one of `RIDDLES` still, for each crate.
const STILL_RIDDLES: &[(&str, usize)] = &[];

/// A count in `STILL_RIDDLES` may be behind by so many, so that not every change has to touch it.
const SLACK: usize = 20;

/// Comments that a failure shows.
const SHOWN: usize = 10;

#[test]
fn one_place_renders_the_protocol() {
    let ends = |text: &str| text.replace(r"\\", "").contains(r"\r\n");
    let figures = PRODUCTION.iter().filter(|file| file.path != RENDERER).map(|file| {
        let path = &file.path;
        let texts = file.tokens.iter().filter(|t| t.kind == Kind::Text && ends(t.text));
        let lines: Vec<usize> = texts.map(|token| token.line).collect();
        let complaint = format!(
            "{path}: literals with `\\r\\n` in the lines {lines:?}. Only {RENDERER} renders replies: \
             call it. A literal that is no reply may be listed, with the reason."
        );
        Figure { key: format!("{path:?}"), number: lines.len(), complaint }
    });
    let figures: Vec<_> = figures.collect();
    let listed = LINE_ENDS.iter().map(|(path, times, _)| (format!("{path:?}"), *times)).collect();
    let rule = "One place renders the protocol (LINE_ENDS in tests/tidy/words.rs).";
    hold(rule, ("LINE_ENDS", listed), (0, true), &figures);
}

/// Folders of handlers, and the calls of `Reply::error` that may stand there: an error inside a
/// reply, and one that the reference does not count either.
const HANDLERS: &[&str] = &["commands/src/", "src/commands/"];
const ERRORS_IN_REPLIES: &[(&str, usize)] =
    &[("src/commands/server/debug.rs", 1), ("src/commands/transactions/mod.rs", 1)];

#[test]
fn an_error_is_the_result_of_a_handler() {
    let handlers = |path: &str| HANDLERS.iter().any(|folder| path.starts_with(folder));
    let figures = PRODUCTION.iter().filter(|file| handlers(&file.path)).map(|file| {
        let path = &file.path;
        let calls =
            file.tokens.windows(3).filter(|t| t[0].is(".") && t[1].is("error") && t[2].is("("));
        let lines: Vec<usize> = calls.map(|three| three[1].line).collect();
        let complaint = format!(
            "{path}: `.error(` in the lines {lines:?}. Return the error (`Err(text.into())`): its \
             caller writes it, and counts it in the statistics."
        );
        Figure { key: format!("{path:?}"), number: lines.len(), complaint }
    });
    let figures: Vec<_> = figures.collect();
    let listed = ERRORS_IN_REPLIES.iter().map(|(path, n)| (format!("{path:?}"), *n)).collect();
    let rule = "An error is the result of a handler (ERRORS_IN_REPLIES in tests/tidy/words.rs).";
    hold(rule, ("ERRORS_IN_REPLIES", listed), (0, true), &figures);
}

/// Rooms that pass replies on: no literal in them is the type byte of a reply, or begins with one.
const PASSING_ON: &[&str] = &[
    "src/blocking/",
    "src/clients/",
    "src/connection/",
    "src/node/",
    "src/routing/",
    "src/unit/",
    "src/worker/",
];

#[test]
fn no_decision_is_read_from_rendered_bytes() {
    let is_reply = |text: &str| {
        let bytes = text.strip_prefix("b'").or_else(|| text.strip_prefix("b\""));
        bytes.is_some_and(|text| text.starts_with(['-', '+', '*']))
    };
    let mut complaints = Vec::new();
    let rooms = |path: &str| PASSING_ON.iter().any(|room| path.starts_with(room));
    for file in PRODUCTION.iter().filter(|file| rooms(&file.path)) {
        for token in file.tokens.iter().filter(|token| is_reply(token.text)) {
            complaints.push(format!("{}:{}: {}", file.path, token.line, token.text));
        }
    }
    assert!(
        complaints.is_empty(),
        "the type byte of a reply, where replies are passed on. Carry what you need to know as a \
         type beside the reply (`Outcome` in src/command/outcome.rs):\n    {}",
        complaints.join("\n    ")
    );
}

/// The doc comments of `krate` that begin with one of `RIDDLES`: places and first lines.
fn riddles(krate: &str) -> Vec<String> {
    let mut found = Vec::new();
    for file in PRODUCTION.iter().filter(|file| file.krate == krate) {
        let mut before = 0;
        for token in file.tokens.iter().filter(|token| token.kind == Kind::Doc) {
            let first = token.text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
            if token.line != before + 1 && RIDDLES.contains(&first) {
                found.push(format!("{}:{}: {}", file.path, token.line, token.text));
            }
            before = token.line;
        }
    }
    found
}

#[test]
fn documentation_names_its_subject() {
    let mut complaints = Vec::new();
    for krate in MEMBERS.iter() {
        let found = riddles(krate);
        let listed = STILL_RIDDLES.iter().find(|(name, _)| name == krate).map_or(0, |(_, n)| *n);
        if found.len() > listed {
            complaints.push(format!(
                "`{krate}`: {} doc comments begin with one of {RIDDLES:?}, at most {listed} may. \
                 Begin the new ones with the noun or the verb; `git diff main -U0 | grep -E '^\\+ *//[/!] \
                 (Wh|Nobody|Somebody)'` finds them. Some of all:\n    {}",
                found.len(),
                found[..found.len().min(SHOWN)].join("\n    ")
            ));
        } else if found.len() + SLACK < listed || (found.is_empty() && listed > 0) {
            complaints.push(format!(
                "`{krate}`: only {} doc comments begin with one of {RIDDLES:?}. Lower its number in \
                 STILL_RIDDLES, which is {listed}.",
                found.len()
            ));
        }
    }
    let rule = "A doc comment names its subject (STILL_RIDDLES in tests/tidy/words.rs).";
    settle(rule, complaints);
}
