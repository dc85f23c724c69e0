//! Lua's patterns, matched like `lstrlib.c` of Lua 5.1, including error texts; but each step counts
//! as an instruction, so that a long match can be ended.
//!
//! A pattern ends at its first NUL.

use crate::raw::State;
use crate::work;

/// Maximum number of captures of a pattern.
const MAX_CAPTURES: usize = 32;

/// Steps that are counted together.
const STEPS: u64 = 1000;

/// Bytes of a set in a pattern that count as one step.
const SET_BYTES: usize = 8;

const ESCAPE: u8 = b'%';

/// Length of a capture that has not ended yet.
const UNFINISHED: isize = -1;
/// Length of a capture that is a position.
const POSITION: isize = -2;

#[derive(Clone, Copy)]
struct Capture {
    start: usize,
    len: isize,
}

/// A match of a pattern with a text. It owns nothing: an error may leave it at any time.
pub(crate) struct Matcher<'a> {
    state: State,
    text: &'a [u8],
    pattern: &'a [u8],
    level: usize,
    captures: [Capture; MAX_CAPTURES],
    steps: u64,
}

impl<'a> Matcher<'a> {
    pub(crate) fn new(state: State, text: &'a [u8], pattern: &'a [u8]) -> Self {
        let pattern = &pattern[..memchr::memchr(0, pattern).unwrap_or(pattern.len())];
        let captures = [Capture { start: 0, len: UNFINISHED }; MAX_CAPTURES];
        Self { state, text, pattern, level: 0, captures, steps: 0 }
    }

    /// Returns the end of the match that begins at `start`, if there is one.
    pub(crate) fn match_at(&mut self, start: usize) -> Option<usize> {
        self.level = 0;
        self.matches(start, 0)
    }

    /// Charges the steps that were not charged yet.
    pub(crate) fn settle(&mut self) {
        work::charge(self.state, std::mem::take(&mut self.steps));
    }

    fn step(&mut self, weight: u64) {
        self.steps += weight;
        if self.steps >= STEPS {
            self.settle();
        }
    }

    fn fail(&self, text: &str) -> ! {
        self.state.error(format_args!("{text}"))
    }

    /// Returns a byte of the pattern; behind its end, NUL.
    fn at(&self, p: usize) -> u8 {
        self.pattern.get(p).copied().unwrap_or(0)
    }

    /// Returns a byte of the text; behind its end, NUL.
    fn byte(&self, s: usize) -> u8 {
        self.text.get(s).copied().unwrap_or(0)
    }

    /// Returns the end of the item that begins at `p`.
    fn item_end(&self, p: usize) -> usize {
        match self.at(p) {
            ESCAPE if p + 1 >= self.pattern.len() => {
                self.fail("malformed pattern (ends with '%')");
            }
            ESCAPE => p + 2,
            b'[' => self.set_end(p + 1),
            _ => p + 1,
        }
    }

    fn set_end(&self, mut p: usize) -> usize {
        if self.at(p) == b'^' {
            p += 1;
        }
        loop {
            if p >= self.pattern.len() {
                self.fail("malformed pattern (missing ']')");
            }
            p += 1;
            if self.at(p - 1) == ESCAPE && p < self.pattern.len() {
                p += 1;
            }
            if self.at(p) == b']' {
                return p + 1;
            }
        }
    }

    /// Returns true if a byte is in the set that begins at `p` and whose `]` is at `end`.
    fn in_set(&self, byte: u8, mut p: usize, end: usize) -> bool {
        let is_positive = self.at(p + 1) != b'^';
        if !is_positive {
            p += 1;
        }
        p += 1;
        while p < end {
            if self.at(p) == ESCAPE {
                p += 1;
                if in_class(byte, self.at(p)) {
                    return is_positive;
                }
            } else if self.at(p + 1) == b'-' && p + 2 < end {
                if (self.at(p)..=self.at(p + 2)).contains(&byte) {
                    return is_positive;
                }
                p += 2;
            } else if self.at(p) == byte {
                return is_positive;
            }
            p += 1;
        }
        !is_positive
    }

    /// Returns true if the byte at `s` matches the item from `p` to `end`.
    fn is_single(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(s) else { return false };
        match self.at(p) {
            b'.' => true,
            ESCAPE => in_class(byte, self.at(p + 1)),
            b'[' => self.in_set(byte, p, end - 1),
            other => other == byte,
        }
    }

    /// Returns the end of the match of the pattern from `p` on at `s`.
    fn matches(&mut self, mut s: usize, mut p: usize) -> Option<usize> {
        loop {
            self.step(1);
            match self.at(p) {
                0 if p >= self.pattern.len() => return Some(s),
                b'(' if self.at(p + 1) == b')' => return self.begin_capture(s, p + 2, POSITION),
                b'(' => return self.begin_capture(s, p + 1, UNFINISHED),
                b')' => return self.end_capture(s, p + 1),
                b'$' if p + 1 == self.pattern.len() => {
                    return (s == self.text.len()).then_some(s);
                }
                ESCAPE if self.at(p + 1) == b'b' => {
                    s = self.balanced(s, p + 2)?;
                    p += 4;
                }
                ESCAPE if self.at(p + 1) == b'f' => p = self.frontier(s, p + 2)?,
                ESCAPE if self.at(p + 1).is_ascii_digit() => {
                    s = self.captured_before(s, self.at(p + 1))?;
                    p += 2;
                }
                _ => {
                    let end = self.item_end(p);
                    let weight = 1 + ((end - p) / SET_BYTES) as u64;
                    self.step(weight);
                    let is_single = self.is_single(s, p, end);
                    match self.at(end) {
                        b'?' => {
                            if is_single && let Some(found) = self.matches(s + 1, end + 1) {
                                return Some(found);
                            }
                            p = end + 1;
                        }
                        b'*' => return self.most(s, p, end, weight),
                        b'+' if is_single => return self.most(s + 1, p, end, weight),
                        b'+' => return None,
                        b'-' => return self.fewest(s, p, end, weight),
                        _ if is_single => (s, p) = (s + 1, end),
                        _ => return None,
                    }
                }
            }
        }
    }

    /// Matches the item as often as possible, then the rest of the pattern.
    fn most(&mut self, s: usize, p: usize, end: usize, weight: u64) -> Option<usize> {
        let mut count = 0;
        while self.is_single(s + count, p, end) {
            self.step(weight);
            count += 1;
        }
        (0..=count).rev().find_map(|count| self.matches(s + count, end + 1))
    }

    /// Matches the item as rarely as possible, then the rest of the pattern.
    fn fewest(&mut self, mut s: usize, p: usize, end: usize, weight: u64) -> Option<usize> {
        loop {
            if let Some(found) = self.matches(s, end + 1) {
                return Some(found);
            }
            self.step(weight);
            if !self.is_single(s, p, end) {
                return None;
            }
            s += 1;
        }
    }

    /// Returns the end of a balanced text that begins at `s` with one byte and ends with its
    /// partner.
    fn balanced(&mut self, s: usize, p: usize) -> Option<usize> {
        let (open, close) = (self.at(p), self.at(p + 1));
        if p + 1 >= self.pattern.len() {
            self.fail("unbalanced pattern");
        }
        if self.byte(s) != open {
            return None;
        }
        let mut depth = 1;
        for at in s + 1..self.text.len() {
            self.step(1);
            let byte = self.text[at];
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            } else if byte == open {
                depth += 1;
            }
        }
        None
    }

    /// Returns the end of the set at `p`, if the text enters it at `s`.
    fn frontier(&mut self, s: usize, p: usize) -> Option<usize> {
        if self.at(p) != b'[' {
            self.fail("missing '[' after '%f' in pattern");
        }
        let end = self.item_end(p);
        self.step(((end - p) / SET_BYTES) as u64);
        let before = s.checked_sub(1).map_or(0, |before| self.byte(before));
        let enters = !self.in_set(before, p, end - 1) && self.in_set(self.byte(s), p, end - 1);
        enters.then_some(end)
    }

    /// Returns the end of a repetition of an earlier capture at `s`.
    fn captured_before(&mut self, s: usize, digit: u8) -> Option<usize> {
        let index = usize::from(digit).checked_sub(usize::from(b'1'));
        let capture = index.filter(|index| *index < self.level).map(|at| self.captures[at]);
        let Some(Capture { start, len }) = capture.filter(|capture| capture.len != UNFINISHED)
        else {
            self.fail("invalid capture index");
        };
        // The length of a position does not convert.
        let len = usize::try_from(len).ok()?;
        self.step((len / SET_BYTES) as u64);
        let captured = &self.text[start..start + len];
        self.text[s..].starts_with(captured).then_some(s + len)
    }

    fn begin_capture(&mut self, s: usize, p: usize, len: isize) -> Option<usize> {
        if self.level >= MAX_CAPTURES {
            self.fail("too many captures");
        }
        self.captures[self.level] = Capture { start: s, len };
        self.level += 1;
        let found = self.matches(s, p);
        if found.is_none() {
            self.level -= 1;
        }
        found
    }

    fn end_capture(&mut self, s: usize, p: usize) -> Option<usize> {
        let open = self.captures[..self.level].iter().rposition(|c| c.len == UNFINISHED);
        let Some(open) = open else { self.fail("invalid pattern capture") };
        self.captures[open].len = (s - self.captures[open].start).cast_signed();
        let found = self.matches(s, p);
        if found.is_none() {
            self.captures[open].len = UNFINISHED;
        }
        found
    }

    /// Pushes a capture of the match from `start` to `end`; without captures, the first one is the
    /// match.
    pub(crate) fn push_capture(&self, index: usize, start: usize, end: usize) {
        let state = self.state;
        if index >= self.level {
            if index > 0 {
                self.fail("invalid capture index");
            }
            return self.push_whole(start, end);
        }
        let capture = self.captures[index];
        match usize::try_from(capture.len) {
            Ok(len) => state.push_bytes(&self.text[capture.start..capture.start + len]),
            Err(_) if capture.len == POSITION => state.push_number((capture.start + 1) as f64),
            Err(_) => self.fail("unfinished capture"),
        }
    }

    /// Pushes a part of the text.
    pub(crate) fn push_whole(&self, start: usize, end: usize) {
        self.state.push_bytes(&self.text[start..end]);
    }

    /// Pushes all captures, or the match `whole` if there are none, and returns their number.
    pub(crate) fn push_captures(&self, whole: Option<(usize, usize)>) -> i32 {
        let count = if self.level == 0 && whole.is_some() { 1 } else { self.level };
        let (start, end) = whole.unwrap_or_default();
        let results = count as i32;
        self.state.need_stack(results, "too many captures");
        (0..count).for_each(|index| self.push_capture(index, start, end));
        results
    }
}

/// Returns true if a byte is in the class of a letter, or equals the letter if it names no class.
fn in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_in == class.is_ascii_lowercase()
}
