//! Functions, files and lists of parameters stay short.

use crate::source::{File, Kind, PRODUCTION, Token, closing, depth_change};
use crate::{Figure, hold};

/// Lines of code between the braces of a function.
const MAX_FUNCTION: usize = 70;

/// Lines of a file without its tests; comments and empty lines count.
const MAX_FILE: usize = 600;

/// Parameters of a function, `self` not counted.
const MAX_PARAMETERS: usize = 6;

/// Functions that are longer: the file, the function, its lines.
const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[];

/// Files that are longer, and their lines.
const LONG_FILES: &[(&str, usize)] = &[
    ("commands/src/spec.rs", 609),
    ("storage/src/directory/mod.rs", 636),
    ("storage/src/engine/mod.rs", 676),
    ("storage/src/journal/bucket/recovery.rs", 661),
    ("storage/src/journal/recovery.rs", 620),
    ("storage/src/store/mod.rs", 764),
];

/// Functions with more parameters: the file, the function, the parameters.
const MANY_PARAMETERS: &[(&str, &str, usize)] = &[
    ("src/commands/scripting/mod.rs", "run_script", 7),
    ("src/node.rs", "new", 8),
    ("src/worker/execute.rs", "execute", 7),
    ("src/worker/execute.rs", "execute_unlocked", 8),
    ("src/worker/units.rs", "execute_unit", 7),
    ("src/worker/units.rs", "try_unit", 7),
];

struct Function {
    path: &'static str,
    name: &'static str,
    line: usize,
    lines: usize,
    parameters: usize,
}

fn functions(file: &'static File) -> Vec<Function> {
    let tokens = &file.tokens;
    let starts = tokens.windows(2).enumerate();
    let starts = starts.filter(|(_, two)| two[0].is("fn") && two[1].kind == Kind::Word);
    starts
        .map(|(at, two)| {
            let (parameters, end) = parameters(tokens, at + 2);
            let mut depth = 0;
            let body = (end + 1..tokens.len()).find(|&at| {
                let found = depth == 0 && matches!(tokens[at].text, "{" | ";");
                depth += depth_change(&tokens[at]);
                found
            });
            let lines = body.filter(|at| tokens[*at].is("{")).map(|at| code_lines(tokens, at));
            let (name, line) = (two[1].text, two[0].line);
            Function { path: &file.path, name, line, lines: lines.unwrap_or(0), parameters }
        })
        .collect()
}

/// The number of parameters, without `self`, of the function whose name ends before `at`, and the
/// index of the bracket that closes them.
fn parameters(tokens: &[Token], at: usize) -> (usize, usize) {
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
    (names - usize::from(is_self), end)
}

/// 1 for `<`, -1 for a `>` that is no arrow.
fn angle_change(tokens: &[Token], at: usize) -> i32 {
    match tokens[at].kind {
        Kind::Mark if tokens[at].text == "<" => 1,
        Kind::Mark if tokens[at].text == ">" && !tokens[at - 1].is("-") => -1,
        _ => 0,
    }
}

/// The lines with code between the brace at `open` and the one that closes it.
fn code_lines(tokens: &[Token], open: usize) -> usize {
    let end = closing(tokens, open);
    let (first, last) = (tokens[open].line, tokens[end].line);
    let inner = tokens[open + 1..end].iter().filter(|token| token.kind != Kind::Doc);
    let mut seen = first;
    let mut lines = 0;
    for token in inner {
        let from = token.line.max(seen + 1);
        let to = token.last_line.min(last.saturating_sub(1));
        lines += (to + 1).saturating_sub(from);
        seen = seen.max(to);
    }
    lines
}

/// `number` of each function, with a complaint.
fn of_functions(number: fn(&Function) -> usize, unit: &str, remedy: &str) -> Vec<Figure> {
    let functions = PRODUCTION.iter().flat_map(functions).map(|function| {
        let Function { path, name, line, .. } = function;
        let number = number(&function);
        let complaint = format!("{path}:{line}: `{name}` has {number} {unit}. {remedy}");
        Figure { key: format!("{path:?}, {name:?}"), number, complaint }
    });
    let functions: Vec<_> = functions.collect();
    assert!(functions.len() > 3000, "only {} functions found: mend this test", functions.len());
    functions
}

fn listed(list: &[(&str, &str, usize)]) -> Vec<(String, usize)> {
    list.iter().map(|(path, name, number)| (format!("{path:?}, {name:?}"), *number)).collect()
}

#[test]
fn functions_are_short() {
    let remedy = "Give a part of it a name of its own.";
    let figures = of_functions(|function| function.lines, "lines of code", remedy);
    let rule = "A function has at most 70 lines of code (LONG_FUNCTIONS in tests/tidy/sizes.rs).";
    hold(rule, ("LONG_FUNCTIONS", listed(LONG_FUNCTIONS)), (MAX_FUNCTION, false), &figures);
}

#[test]
fn functions_have_few_parameters() {
    let remedy = "Put those that belong together into a struct.";
    let figures = of_functions(|function| function.parameters, "parameters", remedy);
    let rule = "A function has at most 6 parameters (MANY_PARAMETERS in tests/tidy/sizes.rs).";
    hold(rule, ("MANY_PARAMETERS", listed(MANY_PARAMETERS)), (MAX_PARAMETERS, true), &figures);
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
