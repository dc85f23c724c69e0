//! `cjson.decode`.

use std::ffi::c_int;

use super::settings;
use crate::json_settings::{JsonSettings, OFF};
use crate::raw::State;
use crate::vm::Scratch;
use crate::work::charge_bytes;

#[derive(Clone, Copy)]
enum Token<'a> {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    /// The string as in the text.
    String(&'a [u8]),
    /// A string with escapes; its value is in the scratch buffer.
    Unescaped,
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Error(&'static str),
}

impl Token<'_> {
    fn name(self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::String(_) | Token::Unescaped => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
            Token::Error(text) => text,
        }
    }
}

struct Decoder<'a> {
    state: State,
    settings: JsonSettings,
    scratch: &'a Scratch,
    text: &'a [u8],
    at: usize,
    /// Offset of the last token, or of its error.
    token_at: usize,
    depth: c_int,
}

pub(super) fn decode(state: State) -> c_int {
    if state.top() != 1 {
        state.arg_error(1, format_args!("expected 1 argument"));
    }
    let text = state.check_bytes(1);
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        state.error(format_args!("JSON parser does not support UTF-16 or UTF-32"));
    }
    let scratch = &state.vm().scratch;
    let settings = settings(state).get();
    let mut decoder = Decoder { state, settings, scratch, text, at: 0, token_at: 0, depth: 0 };
    let first = decoder.next();
    decoder.value(first);
    match decoder.next() {
        Token::End => 1,
        other => decoder.unexpected("the end", other),
    }
}

impl<'a> Decoder<'a> {
    fn unexpected(&self, expected: &str, found: Token<'_>) -> ! {
        let (found, at) = (found.name(), self.token_at + 1);
        self.state.error(format_args!("Expected {expected} but found {found} at character {at}"))
    }

    /// Returns the byte `ahead` of the current one; beyond the end, NUL.
    fn peek(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    /// Pushes the value that begins with a token.
    fn value(&mut self, token: Token<'_>) {
        match token {
            Token::String(bytes) => self.state.push_bytes(bytes),
            Token::Unescaped => self.scratch.push(self.state),
            Token::Number(number) => self.state.push_number(number),
            Token::Boolean(value) => self.state.push_boolean(value),
            Token::Null => self.state.push_light(std::ptr::null_mut()),
            Token::ObjectBegin => self.object(),
            Token::ArrayBegin => self.array(),
            other => self.unexpected("value", other),
        }
    }

    fn descend(&mut self, slots: c_int) {
        self.depth += 1;
        let shallow = self.depth <= self.settings.decode_max_depth && !self.state.vm().is_deep();
        if !shallow || !self.state.check_stack(slots) {
            let (depth, at) = (self.depth, self.at);
            self.state.error(format_args!(
                "Found too many nested data structures ({depth}) at character {at}"
            ));
        }
    }

    fn object(&mut self) {
        self.descend(3);
        self.state.new_table();
        let mut token = self.next();
        if matches!(token, Token::ObjectEnd) {
            self.depth -= 1;
            return;
        }
        loop {
            match token {
                Token::String(_) | Token::Unescaped => self.value(token),
                other => self.unexpected("object key string", other),
            }
            match self.next() {
                Token::Colon => {}
                other => self.unexpected("colon", other),
            }
            let value = self.next();
            self.value(value);
            self.state.raw_set(-3);
            match self.next() {
                Token::ObjectEnd => break,
                Token::Comma => token = self.next(),
                other => self.unexpected("comma or object end", other),
            }
        }
        self.depth -= 1;
    }

    fn array(&mut self) {
        self.descend(2);
        self.state.new_table();
        let mut token = self.next();
        if matches!(token, Token::ArrayEnd) {
            self.depth -= 1;
            return;
        }
        for n in 1.. {
            self.value(token);
            self.state.raw_set_at(-2, n);
            match self.next() {
                Token::ArrayEnd => break,
                Token::Comma => token = self.next(),
                other => self.unexpected("comma or array end", other),
            }
        }
        self.depth -= 1;
    }

    fn error(&mut self, text: &'static str) -> Token<'a> {
        self.token_at = self.at;
        Token::Error(text)
    }

    fn next(&mut self) -> Token<'a> {
        let before = self.at;
        while matches!(self.peek(0), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        // Includes the token before it.
        charge_bytes(self.state, self.at - before.min(self.token_at));
        self.token_at = self.at;
        let single = match self.peek(0) {
            b'{' => Token::ObjectBegin,
            b'}' => Token::ObjectEnd,
            b'[' => Token::ArrayBegin,
            b']' => Token::ArrayEnd,
            b',' => Token::Comma,
            b':' => Token::Colon,
            0 => return Token::End,
            b'"' => return self.string(),
            b'-' | b'0'..=b'9' => {
                if self.settings.decode_invalid_numbers == OFF && self.is_invalid_number() {
                    return self.error("invalid number");
                }
                return self.number();
            }
            b'f' | b'i' | b'I' | b'n' | b'N' | b't' | b'+' => return self.word(),
            _ => return self.error("invalid token"),
        };
        self.at += 1;
        single
    }

    fn word(&mut self) -> Token<'a> {
        let rest = &self.text[self.at..];
        for (word, token) in [
            ("true", Token::Boolean(true)),
            ("false", Token::Boolean(false)),
            ("null", Token::Null),
        ] {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return token;
            }
        }
        if self.settings.decode_invalid_numbers != OFF && self.is_invalid_number() {
            return self.number();
        }
        self.error("invalid token")
    }

    fn number(&mut self) -> Token<'a> {
        let start = self.text[self.at..].as_ptr().cast();
        let mut end = std::ptr::null_mut();
        // SAFETY: strings of Lua end with NUL, so that `strtod` stays in it.
        let number = unsafe { libc::strtod(start, &mut end) };
        let len = end.addr() - start.addr();
        if len == 0 {
            return self.error("invalid number");
        }
        self.at += len;
        Token::Number(number)
    }

    /// Returns true for numbers that `strtod` accepts and JSON does not.
    fn is_invalid_number(&self) -> bool {
        if self.peek(0) == b'+' {
            return true;
        }
        let sign = usize::from(self.peek(0) == b'-');
        let (first, second) = (self.peek(sign), self.peek(sign + 1));
        if first == b'0' {
            return second | 0x20 == b'x' || second.is_ascii_digit();
        }
        if first <= b'9' {
            return false;
        }
        let word = [first, second, self.peek(sign + 2)];
        word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"nan")
    }

    fn string(&mut self) -> Token<'a> {
        self.at += 1;
        let rest = &self.text[self.at..];
        match rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0)) {
            Some(len) if rest[len] == b'"' => {
                self.at += len + 1;
                Token::String(&rest[..len])
            }
            _ => self.unescape(),
        }
    }

    fn unescape(&mut self) -> Token<'a> {
        self.scratch.clear();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0));
            let plain = plain.unwrap_or(rest.len());
            self.scratch.append(self.state, &rest[..plain]);
            self.at += plain;
            match self.peek(0) {
                b'"' => {
                    self.at += 1;
                    return Token::Unescaped;
                }
                b'\\' => {}
                _ => return self.error("unexpected end of string"),
            }
            let meant = match self.peek(1) {
                byte @ (b'"' | b'\\' | b'/') => byte,
                b'b' => 0x08,
                b't' => b'\t',
                b'n' => b'\n',
                b'f' => 0x0c,
                b'r' => b'\r',
                b'u' => match self.unicode() {
                    Some((character, len)) => {
                        self.scratch.append(self.state, character.as_slice());
                        self.at += len;
                        continue;
                    }
                    None => return self.error("invalid unicode escape code"),
                },
                _ => return self.error("invalid escape code"),
            };
            self.scratch.append(self.state, &[meant]);
            self.at += 2;
        }
    }

    /// Returns the character of a `\u` escape, and the length of the escape.
    fn unicode(&self) -> Option<(Utf8, usize)> {
        let unit = self.hex(2)?;
        if unit & 0xf800 != 0xd800 {
            return Some((Utf8::new(unit), 6));
        }
        let is_pair = unit & 0x400 == 0 && self.peek(6) == b'\\' && self.peek(7) == b'u';
        let low = self.hex(8).filter(|low| is_pair && low & 0xfc00 == 0xdc00)?;
        Some((Utf8::new((((unit & 0x3ff) << 10) | (low & 0x3ff)) + 0x1_0000), 12))
    }

    fn hex(&self, ahead: usize) -> Option<u32> {
        (ahead..ahead + 4)
            .try_fold(0, |value, at| Some((value << 4) | char::from(self.peek(at)).to_digit(16)?))
    }
}

/// A character as UTF-8.
struct Utf8 {
    bytes: [u8; 4],
    len: usize,
}

impl Utf8 {
    fn new(code: u32) -> Self {
        let mut bytes = [0; 4];
        // Surrogates were combined before.
        let len = char::from_u32(code).map_or(0, |c| c.encode_utf8(&mut bytes).len());
        Self { bytes, len }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
