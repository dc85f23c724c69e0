use proptest::prelude::*;

use super::*;

#[test]
fn matching_pairs() {
    let cases: &[(&[u8], &[u8])] = &[
        (b"", b""),
        (b"*", b"a"),
        (b"**", b"abc"),
        (b"a*", b"a"),
        (b"a***", b"a"),
        (b"*a", b"a"),
        (b"*a*", b"bab"),
        (b"h?llo", b"hello"),
        (b"h*llo", b"heeeello"),
        (b"h[ae]llo", b"hallo"),
        (b"h[^e]llo", b"hallo"),
        (b"h[a-b]llo", b"hbllo"),
        (b"h[b-a]llo", b"hallo"),
        (b"[a-]", b"a"),
        (b"[a-]x", b"x"),
        (b"[a-]]", b"]"),
        (b"[abc", b"c"),
        (b"[^", b"x"),
        (b"[\\]]", b"]"),
        (b"[\\a-z]", b"-"),
        (b"[\\", b"\\"),
        (b"a\\*c", b"a*c"),
        (b"\\\\", b"\\"),
        (b"\\", b"\\"),
        (b"a*b*c", b"aXbbYc"),
        (b"*abc*abd", b"abcabcabd"),
        (b"a*[^b]?d*", b"abbcbd"),
        (b"[^^]", b"a"),
        (b"\xff?", b"\xff\x00"),
        (b"[\xf0-\x10]", b"\x00"),
    ];
    for (pattern, text) in cases {
        assert!(matches(pattern, text), "{} {}", pattern.escape_ascii(), text.escape_ascii());
    }
}

#[test]
fn differing_pairs() {
    let cases: &[(&[u8], &[u8])] = &[
        (b"", b"a"),
        (b"*", b""),
        (b"?", b""),
        (b"?", b"ab"),
        (b"a*b", b"a"),
        (b"a*b", b"abc"),
        (b"h[^e]llo", b"hello"),
        (b"[", b"["),
        (b"[]", b"]"),
        (b"[^a-c]", b"b"),
        (b"a\\*c", b"abc"),
        (b"A", b"a"),
        (b"[A-Z]", b"a"),
        (b"*?a", b"a"),
        (b"[\x01-\xff]", b"\x7f"),
    ];
    for (pattern, text) in cases {
        assert!(!matches(pattern, text), "{} {}", pattern.escape_ascii(), text.escape_ascii());
    }
}

#[test]
fn without_case() {
    for (pattern, text) in
        [("HELLO", "hello"), ("h[E]llo", "hello"), ("[A-F]", "c"), ("[a-f]", "C"), ("*Z", "aaz")]
    {
        assert!(matches_nocase(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
    }
    // An escaped byte in a class keeps its case; a range is turned round before it is folded.
    assert!(!matches_nocase(b"[\\A]", b"a"));
    assert!(!matches_nocase(b"[a-Z]", b"m"));
}

#[test]
fn abusive_patterns_end_soon() {
    let text = vec![b'a'; 100_000];
    let mut pattern = b"a*".repeat(500);
    pattern.push(b'b');
    assert!(!matches(&pattern, &text));
    pattern.pop();
    assert!(matches(&pattern, &text));

    let mut long = vec![b'*'];
    long.extend(vec![b'a'; 50_000]);
    long.push(b'b');
    assert!(!matches(&long, &text));

    assert!(matches(&b"*".repeat(100_000), &text));
    assert!(!matches(&b"*a".repeat(MAX_STARS + 1), &text));
}

/// Matches by the definition, trying every way.
fn naive(pattern: &[u8], text: &[u8], nocase: bool) -> bool {
    match pattern.first() {
        None => text.is_empty(),
        Some(b'*') => {
            naive(&pattern[1..], text, nocase)
                || (!text.is_empty() && naive(pattern, &text[1..], nocase))
        }
        Some(_) => match text {
            [] => false,
            [byte, rest @ ..] => match match_one(pattern, *byte, nocase) {
                Some((true, len)) => naive(&pattern[len..], rest, nocase),
                _ => false,
            },
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn agrees_with_the_definition(
        pattern in "[ab*?\\[\\]^\\\\A-]{0,9}",
        text in "[abAB\\]-]{1,9}",
        nocase: bool,
    ) {
        let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
        prop_assert_eq!(matches_with(pattern, text, nocase), naive(pattern, text, nocase));
    }

    #[test]
    fn any_bytes_are_fine(pattern: Vec<u8>, text: Vec<u8>, nocase: bool) {
        matches_with(&pattern, &text, nocase);
    }
}
