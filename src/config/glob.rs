//! Glob patterns.

/// Whether `text` matches `pattern` with `*`, `?`, `[…]` and `\`; `nocase` ignores ASCII case.
pub(super) fn matches(pattern: &[u8], text: &[u8], nocase: bool) -> bool {
    let Some((&first, rest)) = pattern.split_first() else { return text.is_empty() };
    let same = |a: u8, b: u8| a == b || (nocase && a.eq_ignore_ascii_case(&b));
    match first {
        b'*' => (0..=text.len()).any(|skip| matches(rest, &text[skip..], nocase)),
        b'?' => !text.is_empty() && matches(rest, &text[1..], nocase),
        b'[' if rest.contains(&b']') => {
            let close = rest.iter().position(|byte| *byte == b']').unwrap_or(0);
            let (class, after) = (&rest[..close], &rest[close + 1..]);
            let Some((&byte, text)) = text.split_first() else { return false };
            let (negated, class) = class.strip_prefix(b"^").map_or((false, class), |c| (true, c));
            class.iter().any(|member| same(*member, byte)) != negated
                && matches(after, text, nocase)
        }
        b'\\' if !rest.is_empty() => {
            !text.is_empty() && same(rest[0], text[0]) && matches(&rest[1..], &text[1..], nocase)
        }
        _ => !text.is_empty() && same(first, text[0]) && matches(rest, &text[1..], nocase),
    }
}
