//! Lines of a configuration file: words, quotes, escapes.

/// Splits a line into words as redis.conf is read: blanks separate, `"…"` knows the escapes
/// `\n \r \t \b \a \xHH` and takes any other escaped character as it is, `'…'` knows `\'` only.
/// Returns `None` if quotes are unbalanced or the bytes are not UTF-8.
pub fn split_words(line: &str) -> Option<Vec<String>> {
    let words = split_bytes(line.as_bytes())?;
    words.into_iter().map(|word| String::from_utf8(word).ok()).collect()
}

/// Splits bytes into words as [`split_words`] does; returns `None` if quotes are unbalanced.
pub fn split_bytes(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut rest = line;
    let mut words = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        rest = take_word(rest, &mut word)?;
        words.push(word);
    }
}

/// Moves one word into `word`, and returns the rest.
fn take_word<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    while let Some((&byte, after)) = rest.split_first() {
        rest = match byte {
            b'"' => return take_quoted(after, word, b'"'),
            b'\'' => return take_quoted(after, word, b'\''),
            b' ' | b'\t' | b'\r' | b'\n' | 0 => return Some(after),
            _ => {
                word.push(byte);
                after
            }
        };
    }
    Some(rest)
}

/// Reads up to the closing quote, which must end the word.
fn take_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>, quote: u8) -> Option<&'a [u8]> {
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        if byte == quote {
            let ends = rest.first().is_none_or(u8::is_ascii_whitespace);
            return ends.then_some(rest);
        }
        if byte != b'\\' {
            word.push(byte);
        } else if quote == b'\'' {
            if rest.first() == Some(&b'\'') {
                word.push(b'\'');
                rest = &rest[1..];
            } else {
                word.push(byte);
            }
        } else {
            rest = take_escape(rest, word)?;
        }
    }
}

/// Reads the escape after a backslash in double quotes.
fn take_escape<'a>(rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    if let [b'x', high, low, after @ ..] = rest
        && let (Some(high), Some(low)) = (hex_digit(*high), hex_digit(*low))
    {
        word.push(high << 4 | low);
        return Some(after);
    }
    let (&byte, after) = rest.split_first()?;
    word.push(match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    });
    Some(after)
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Quotes a text in double quotes so that [`split_words`] reads it back.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::new();
    quote_into(&mut quoted, text.as_bytes());
    quoted
}

/// Appends bytes in double quotes, escaping those that are not printable.
pub fn quote_into(quoted: &mut String, bytes: &[u8]) {
    quoted.reserve(bytes.len() + 2);
    quoted.push('"');
    for &byte in bytes {
        match byte {
            b'\\' | b'"' => quoted.extend(['\\', char::from(byte)]),
            b'\n' => quoted.push_str("\\n"),
            b'\r' => quoted.push_str("\\r"),
            b'\t' => quoted.push_str("\\t"),
            7 => quoted.push_str("\\a"),
            8 => quoted.push_str("\\b"),
            b' '..=b'~' => quoted.push(char::from(byte)),
            other => quoted.push_str(&format!("\\x{other:02x}")),
        }
    }
    quoted.push('"');
}
