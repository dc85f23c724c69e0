//! Glob patterns, as KEYS, SCAN, PSUBSCRIBE and ACL rules use them.
//!
//! `*` is any run of bytes, `?` any byte, `[…]` a class with ranges, `[^…]` its complement, `\`
//! takes the next byte literally. The corner cases are those of Valkey 8.1's `stringmatchlen`: a
//! class without `]` ends with the pattern, reversed ranges are turned round, and the empty
//! string matches only the empty pattern.

/// Maximum number of groups of `*`; a pattern with more matches nothing.
const MAX_STARS: usize = 1000;
/// Maximum number of pattern bytes read in one match; a match that takes more work fails.
const MAX_WORK: usize = 4 * 1024 * 1024;

/// Returns true if all of `text` matches `pattern`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    matches_with(pattern, text, false)
}

/// Returns true if all of `text` matches `pattern`, ignoring the case of ASCII letters.
pub fn matches_nocase(pattern: &[u8], text: &[u8]) -> bool {
    matches_with(pattern, text, true)
}

/// Matches `text` with backtracking to the last `*` only: as everything else matches exactly one
/// byte, the match before that `*` never has to change.
fn matches_with(pattern: &[u8], text: &[u8], nocase: bool) -> bool {
    if text.is_empty() {
        return pattern.is_empty();
    }
    let (mut at, mut seen) = (0, 0);
    // Position to retry at when a byte does not match: behind the last `*`, one text byte later.
    let mut retry: Option<(usize, usize)> = None;
    let (mut stars, mut work) = (0, 0);
    while seen < text.len() {
        if pattern.get(at) == Some(&b'*') {
            at = skip_stars(pattern, at);
            if at == pattern.len() {
                return true;
            }
            stars += 1;
            retry = Some((at, seen));
        } else {
            let token = match_one(&pattern[at..], text[seen], nocase);
            work += token.map_or(1, |(_, len)| len);
            match (token, &mut retry) {
                (Some((true, len)), _) => {
                    at += len;
                    seen += 1;
                }
                (_, Some((star_at, star_seen))) => {
                    *star_seen += 1;
                    (at, seen) = (*star_at, *star_seen);
                }
                (_, None) => return false,
            }
        }
        if stars > MAX_STARS || work > MAX_WORK {
            return false;
        }
    }
    skip_stars(pattern, at) == pattern.len()
}

/// Returns the first offset from `at` on that has no `*`.
fn skip_stars(pattern: &[u8], at: usize) -> usize {
    at + pattern[at..].iter().take_while(|&&byte| byte == b'*').count()
}

/// Returns true if `byte` matches the first element of `pattern`, which is not `*`, and that
/// element's length; `None` at the pattern's end.
#[inline]
fn match_one(pattern: &[u8], byte: u8, nocase: bool) -> Option<(bool, usize)> {
    Some(match *pattern {
        [] => return None,
        [b'?', ..] => (true, 1),
        [b'[', ref class @ ..] => {
            let (matched, len) = match_class(class, byte, nocase);
            (matched, len + 1)
        }
        [b'\\', literal, ..] => (same(literal, byte, nocase), 2),
        [literal, ..] => (same(literal, byte, nocase), 1),
    })
}

/// Returns true if `byte` matches the class whose `[` is right before `class`, and the class's
/// length with its `]`.
fn match_class(class: &[u8], byte: u8, nocase: bool) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut matched = false;
    loop {
        match class[at..] {
            [] => break,
            // An escaped byte in a class keeps its case.
            [b'\\', literal, ..] => {
                matched |= literal == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [start, b'-', end, ..] => {
                matched |= in_range(start, end, byte, nocase);
                at += 3;
            }
            [literal, ..] => {
                matched |= same(literal, byte, nocase);
                at += 1;
            }
        }
    }
    (matched != negated, at)
}

/// Returns true if `byte` lies between `start` and `end`, in whichever order these are.
///
/// Bytes are compared as signed ones, as C's `char` is on x86-64, and turned round before they
/// are put in lower case.
fn in_range(start: u8, end: u8, byte: u8, nocase: bool) -> bool {
    let (start, end) = if start as i8 > end as i8 { (end, start) } else { (start, end) };
    let fold = |byte: u8| if nocase { byte.to_ascii_lowercase() as i8 } else { byte as i8 };
    (fold(start)..=fold(end)).contains(&fold(byte))
}

#[inline]
fn same(a: u8, b: u8, nocase: bool) -> bool {
    a == b || (nocase && a.eq_ignore_ascii_case(&b))
}

#[cfg(test)]
#[path = "glob_tests.rs"]
mod tests;
