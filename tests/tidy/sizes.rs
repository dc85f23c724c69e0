//! Files and lists of parameters stay short. (Functions do by clippy's `too_many_lines`.)

use crate::source::{File, Kind, PRODUCTION, Token, closing, depth_change};
use crate::{Figure, hold};
use std::collections::BTreeMap;

/// Lines of a file without its tests; comments and empty lines count.
const MAX_FILE: usize = 600;

/// Parameters of a function, `self` not counted.
const MAX_PARAMETERS: usize = 6;

/// Files that are longer, and their lines.
const LONG_FILES: &[(&str, usize)] = &[];

/// Functions with more parameters: the file, the function, the parameters.
const MANY_PARAMETERS: &[(&str, &str, usize)] = &[];

/// The number of parameters, without `self`, of the function whose name ends before `at`.
fn parameters(tokens: &[Token], at: usize) -> usize {
    let mut angles = 0;
    let mut open = at;
    while angles > 0 || !tokens[open].is("(") {
        angles += angle_change(tokens, open);
        open += 1;
    }
    let end = closing(tokens, open);
    let (mut depth, mut names) = (0, 0);
    let mut is_self = false;
    for at in open..end {
        // A parameter's name is before the only `:` outside of brackets that is no part of `::`.
        let colon = tokens[at].is(":") && !tokens[at - 1].is(":") && !tokens[at + 1].is(":");
        if depth == 1 && colon {
            names += 1;
            is_self |= tokens[at - 1].is("self");
        }
        depth += depth_change(&tokens[at]) + angle_change(tokens, at);
    }
    names - usize::from(is_self)
}

/// 1 for `<`, -1 for a `>` that is no arrow.
fn angle_change(tokens: &[Token], at: usize) -> i32 {
    match tokens[at].kind {
        Kind::Mark if tokens[at].text == "<" => 1,
        Kind::Mark if tokens[at].text == ">" && !tokens[at - 1].is("-") => -1,
        _ => 0,
    }
}

#[test]
fn functions_have_few_parameters() {
    // Of functions of one name in a file, the one with the most.
    let mut most: BTreeMap<String, Figure> = BTreeMap::new();
    let mut functions = 0;
    for file in PRODUCTION.iter() {
        let pairs = file.tokens.windows(2).enumerate();
        for (at, pair) in pairs.filter(|(_, two)| two[0].is("fn") && two[1].kind == Kind::Word) {
            let number = parameters(&file.tokens, at + 2);
            let (path, line, name) = (&file.path, pair[0].line, pair[1].text);
            let complaint = format!(
                "{path}:{line}: `{name}` has {number} parameters. Put those that belong together \
                 into a struct."
            );
            let key = format!("{path:?}, {name:?}");
            if most.get(&key).is_none_or(|before| before.number < number) {
                most.insert(key.clone(), Figure { key, number, complaint });
            }
            functions += 1;
        }
    }
    assert!(functions > 3000, "only {functions} functions are found: mend this test");
    let figures: Vec<_> = most.into_values().collect();
    let listed =
        MANY_PARAMETERS.iter().map(|(path, name, n)| (format!("{path:?}, {name:?}"), *n)).collect();
    let rule = "A function has at most 6 parameters (MANY_PARAMETERS in tests/tidy/sizes.rs).";
    hold(rule, ("MANY_PARAMETERS", listed), (MAX_PARAMETERS, true), &figures);
}

#[test]
fn files_are_short() {
    let figures = PRODUCTION.iter().map(|file| {
        let File { path, lines, .. } = file;
        let remedy = "Move one of its subjects to a file of its own.";
        let complaint = format!("{path}: {lines} lines without tests. {remedy}");
        Figure { key: format!("{path:?}"), number: *lines, complaint }
    });
    let figures: Vec<_> = figures.collect();
    let listed = LONG_FILES.iter().map(|(path, lines)| (format!("{path:?}"), *lines)).collect();
    let rule =
        "A file has at most 600 lines without its tests (LONG_FILES in tests/tidy/sizes.rs).";
    hold(rule, ("LONG_FILES", listed), (MAX_FILE, false), &figures);
}
