//! The source tree as the rules see it: the tokens of each file of production code. A file is
//! production code if `mod` declarations lead to it from the root of its crate, and none of them is
//! for tests only. Items for tests only (`#[cfg(test)]`) are left out.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// An identifier, a keyword or a number.
    Word,
    /// A literal of a string or of bytes, with its quotes and escapes.
    Text,
    /// One character of punctuation.
    Mark,
    /// A line or block of documentation, without its slashes.
    Doc,
    /// A lifetime or a literal of a character.
    Other,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: &'static str,
    /// From 1.
    pub(crate) line: usize,
    /// The line of its last character.
    pub(crate) last_line: usize,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Mark) && self.text == text
    }
}

pub(crate) struct File {
    /// The folder of its crate, `.` for the server.
    pub(crate) krate: &'static str,
    /// From the root of the repository.
    pub(crate) path: String,
    /// The path of its module in the crate; empty for the root.
    pub(crate) module: Vec<String>,
    pub(crate) tokens: Vec<Token>,
    /// Lines, without items that are for tests only.
    pub(crate) lines: usize,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folders of the workspace's crates, as `Cargo.toml` lists them.
pub(crate) static MEMBERS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let manifest: &'static str = fs::read_to_string(root().join("Cargo.toml")).unwrap().leak();
    let list = manifest.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    list.split(',').map(|name| name.trim().trim_matches('"')).filter(|n| !n.is_empty()).collect()
});

/// All files of production code.
pub(crate) static PRODUCTION: LazyLock<Vec<File>> = LazyLock::new(|| {
    let mut files = Vec::new();
    for krate in MEMBERS.iter() {
        for start in ["lib.rs", "main.rs"] {
            let path = root().join(krate).join("src").join(start);
            if path.exists() {
                let module = if start == "main.rs" { vec!["main".into()] } else { Vec::new() };
                load(krate, &path, module, &mut files);
            }
        }
    }
    assert!(files.len() > 300, "only {} files are found: mend this test", files.len());
    files
});

/// Reads the file at `path`, and the files of the modules that it declares.
fn load(krate: &'static str, path: &Path, module: Vec<String>, files: &mut Vec<File>) {
    let text: &'static str = fs::read_to_string(path).unwrap().leak();
    let (tokens, test_lines) = without_tests(&tokens(text));
    let folder = match path.file_name().unwrap().to_str().unwrap() {
        "lib.rs" | "main.rs" | "mod.rs" => path.parent().unwrap().to_owned(),
        _ => path.with_extension(""),
    };
    let children: Vec<&str> = tokens
        .windows(3)
        .filter(|three| three[0].is("mod") && three[2].is(";"))
        .map(|three| three[1].text)
        .collect();
    let lines = text.lines().count() - test_lines;
    let shown = path.strip_prefix(root()).unwrap().to_str().unwrap().trim_start_matches("./");
    files.push(File { krate, path: shown.into(), module: module.clone(), tokens, lines });
    for child in children {
        let places = [folder.join(format!("{child}.rs")), folder.join(child).join("mod.rs")];
        let place = places.iter().find(|place| place.exists());
        let place = place.unwrap_or_else(|| panic!("{shown}: no file for `mod {child};`"));
        let module = module.iter().cloned().chain([child.to_owned()]).collect();
        load(krate, place, module, files);
    }
}

/// The tokens that are not for tests only, and how many lines are.
fn without_tests(tokens: &[Token]) -> (Vec<Token>, usize) {
    let (mut kept, mut test_lines, mut at) = (Vec::with_capacity(tokens.len()), 0, 0);
    while at < tokens.len() {
        let end = if is_for_tests(&tokens[at..]) { item_end(tokens, at) } else { at };
        if end > at {
            test_lines += tokens[end - 1].last_line - tokens[at].line + 1;
            at = end;
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    (kept, test_lines)
}

/// Returns true if `tokens` begin with a `#[cfg(…)]` that holds in tests, and not in the server.
fn is_for_tests(tokens: &[Token]) -> bool {
    let begin = ["#", "[", "cfg", "("];
    if tokens.len() < begin.len() || !begin.iter().zip(tokens).all(|(text, token)| token.is(text)) {
        return false;
    }
    let condition = &tokens[4..closing(tokens, 1)];
    condition.iter().any(|token| token.is("test")) && !condition.iter().any(|t| t.is("not"))
}

/// The index of the bracket that closes the one at `open`.
pub(crate) fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        depth += depth_change(token);
        if depth == 0 {
            return at;
        }
    }
    panic!("line {}: a bracket that nothing closes", tokens[open].line)
}

/// 1 for a bracket that opens, -1 for one that closes.
pub(crate) fn depth_change(token: &Token) -> i32 {
    match token.kind {
        Kind::Mark if matches!(token.text, "(" | "[" | "{") => 1,
        Kind::Mark if matches!(token.text, ")" | "]" | "}") => -1,
        _ => 0,
    }
}

/// The index after the item whose first attribute is at `at`.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    const ENDS_WITH_BRACE: &[&str] =
        &["fn", "impl", "struct", "enum", "mod", "trait", "unsafe", "extern", "async", "union"];
    const ENDS_WITH_SEMICOLON: &[&str] = &["use", "static", "type", "let", "const"];
    while tokens[at].is("#") || tokens[at].kind == Kind::Doc {
        at = if tokens[at].is("#") { closing(tokens, at + 1) + 1 } else { at + 1 };
    }
    let mut word = at;
    if tokens[word].is("pub") {
        word = if tokens[at + 1].is("(") { closing(tokens, at + 1) + 1 } else { at + 1 };
    }
    let is_fn = tokens[word].is("const") && ["fn", "unsafe"].contains(&tokens[word + 1].text);
    let item = is_fn || ENDS_WITH_BRACE.contains(&tokens[word].text);
    let statement = !item && ENDS_WITH_SEMICOLON.contains(&tokens[word].text);
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(at) {
        depth += depth_change(token);
        let brace = depth == 0 && token.is("}") && !statement;
        let comma = depth == 0 && token.is(",") && !item && !statement;
        if depth < 0 {
            return at;
        } else if brace || comma || (depth == 0 && token.is(";")) {
            return at + 1;
        }
    }
    tokens.len()
}

/// The tokens of `text`, without comments other than documentation.
pub(crate) fn tokens(text: &'static str) -> Vec<Token> {
    let (mut out, mut at, mut line) = (Vec::new(), 0, 1);
    while at < text.len() {
        let (kind, len) = next(&text[at..]);
        let piece = &text[at..at + len];
        let last_line = line + piece.bytes().filter(|byte| *byte == b'\n').count();
        if let Some(kind) = kind {
            let text = if kind == Kind::Doc { piece[3..].trim() } else { piece };
            out.push(Token { kind, text, line, last_line });
        }
        (at, line) = (at + len, last_line);
    }
    out
}

/// Returns the kind and the length of the first token of `rest`; no kind for space and comments.
fn next(rest: &str) -> (Option<Kind>, usize) {
    let bytes = rest.as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    let word = bytes.iter().position(|byte| !is_word(byte)).unwrap_or(bytes.len());
    let line = rest.find('\n').unwrap_or(rest.len());
    match bytes[0] {
        b if b.is_ascii_whitespace() => (None, 1),
        b'/' if rest.starts_with("////") => (None, line),
        b'/' if rest.starts_with("///") || rest.starts_with("//!") => (Some(Kind::Doc), line),
        b'/' if rest.starts_with("//") => (None, line),
        b'/' if rest.starts_with("/*") => (None, rest.find("*/").unwrap() + 2),
        b'"' => (Some(Kind::Text), quoted(bytes, b'"')),
        b'\'' => character(rest),
        _ if word == 0 => (Some(Kind::Mark), 1),
        _ => match (&rest[..word], bytes.get(word)) {
            ("b" | "c", Some(b'"')) => (Some(Kind::Text), 1 + quoted(&bytes[1..], b'"')),
            ("b", Some(b'\'')) => (Some(Kind::Other), 1 + quoted(&bytes[1..], b'\'')),
            ("r" | "br" | "cr", Some(b'"' | b'#')) => raw(rest, word),
            _ => (Some(Kind::Word), word),
        },
    }
}

/// The length of a literal in `quote`s, which `bytes` begin with.
fn quoted(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// A literal of a character, or a lifetime.
fn character(rest: &str) -> (Option<Kind>, usize) {
    let mut chars = rest.char_indices().skip(1);
    let (_, first) = chars.next().unwrap();
    match chars.next() {
        _ if first == '\\' => (Some(Kind::Other), quoted(rest.as_bytes(), b'\'')),
        Some((at, '\'')) => (Some(Kind::Other), at + 1),
        _ => {
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let name = rest[1..].find(|c| !is_name(c)).unwrap_or(rest.len() - 1);
            (Some(Kind::Other), 1 + name)
        }
    }
}

/// A literal without escapes, whose prefix ends at `word`; or a raw identifier.
fn raw(rest: &str, word: usize) -> (Option<Kind>, usize) {
    let hashes = rest[word..].bytes().take_while(|byte| *byte == b'#').count();
    if rest.as_bytes()[word + hashes] != b'"' {
        return (Some(Kind::Word), word);
    }
    let body = word + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    (Some(Kind::Text), body + rest[body..].find(&end).unwrap() + end.len())
}

/// The first names below the root of the crate in the path that `crate` or `super` at `at` begins;
/// several for a group. Empty if no path begins there, or it does not lead to the root.
pub(crate) fn first_names(file: &File, at: usize) -> Vec<&'static str> {
    let tokens = &file.tokens;
    let after_path = at > 1 && tokens[at - 1].is(":") && tokens[at - 2].is(":");
    let mut up = match tokens[at].text {
        _ if after_path => return Vec::new(),
        "crate" => file.module.len(),
        "super" => 1,
        _ => return Vec::new(),
    };
    // `super` in a module inside of the file is one of the file's own modules.
    if tokens[at].is("super") {
        up = up.saturating_sub(inline_depth(tokens, at));
    }
    let mut next = at + 1;
    let is_path = |at: usize| tokens[at].is(":") && tokens[at + 1].is(":");
    while is_path(next) && tokens[next + 2].is("super") {
        (up, next) = (up + 1, next + 3);
    }
    if up < file.module.len() || !is_path(next) {
        return Vec::new();
    }
    let next = next + 2;
    if !tokens[next].is("{") {
        return vec![tokens[next].text];
    }
    let end = closing(tokens, next);
    let mut depth = 0;
    let mut names = Vec::new();
    for at in next..end {
        if depth == 1 && tokens[at].kind == Kind::Word && !is_behind_path(tokens, at) {
            names.push(tokens[at].text);
        }
        depth += depth_change(&tokens[at]);
    }
    names
}

/// Returns true if the word at `at` follows `::` or `as`.
fn is_behind_path(tokens: &[Token], at: usize) -> bool {
    tokens[at].is("as") || tokens[at - 1].is("as") || tokens[at - 1].is(":")
}

/// How many modules that are written out in the file are around `at`.
fn inline_depth(tokens: &[Token], at: usize) -> usize {
    let opens = |open: usize| tokens[open].is("mod") && tokens[open + 2].is("{");
    (0..at).filter(|&open| opens(open) && closing(tokens, open + 2) > at).count()
}

#[test]
fn the_reader_tells_code_from_text_and_tests() {
    const TEXT: &str = r####"
        //! Doc of the file.
        use crate::{a::{b, c}, d as e}; // use crate::f;
        /* crate::g */
        fn h<'a>(i: &'a str) -> char { let _ = (r#"crate::"j"#, "\"crate::k", b'\'', '"'); 'l' }
        #[cfg(test)]
        use super::m::{n, o};
        #[cfg(any(test, fuzzing))]
        /// Doc of a test.
        mod p { fn q() { crate::r } }
        #[cfg(not(test))]
        static S: [u8; 2] = super::t::U;
    "####;
    let (tokens, test_lines) = without_tests(&tokens(TEXT));
    assert_eq!(test_lines, 5);
    let texts = tokens.iter().filter(|token| token.kind == Kind::Text).map(|token| token.text);
    assert_eq!(texts.collect::<Vec<_>>(), [r##"r#"crate::"j"#"##, r#""\"crate::k""#]);
    let docs = tokens.iter().filter(|token| token.kind == Kind::Doc).map(|token| token.text);
    assert_eq!(docs.collect::<Vec<_>>(), ["Doc of the file."]);

    let module = vec!["here".to_owned()];
    let file = File { krate: ".", path: "src/here.rs".into(), module, tokens, lines: 0 };
    let names = (0..file.tokens.len()).flat_map(|at| first_names(&file, at));
    assert_eq!(names.collect::<Vec<_>>(), ["a", "d", "t"]);
}
