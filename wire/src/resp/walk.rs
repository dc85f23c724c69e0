//! Walks over rendered replies.

/// Returns the bytes of the first value, in RESP2 or RESP3, including attributes before it; `None`:
/// it is incomplete.
pub fn value_len(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut left) = (0, 1usize);
    while left > 0 {
        let kind = *bytes.get(at)?;
        let line = memchr::memchr(b'\n', &bytes[at..])?;
        let text = bytes.get(at + 1..(at + line).saturating_sub(1)).unwrap_or_default();
        let number = || std::str::from_utf8(text).ok()?.parse::<i64>().ok();
        at += line + 1;
        left -= 1;
        match kind {
            b'$' | b'=' | b'!' => {
                if let Ok(len) = usize::try_from(number()?) {
                    at = at.checked_add(len)?.checked_add(2)?;
                }
            }
            b'*' | b'~' | b'>' => left += usize::try_from(number()?).unwrap_or(0),
            b'%' => left += usize::try_from(number()?).ok()?.checked_mul(2)?,
            // The attribute's value follows.
            b'|' => left += usize::try_from(number()?).ok()?.checked_mul(2)? + 1,
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}

/// Returns the values of an array; `None`: it is no array.
pub fn array_items(bytes: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let head = memchr::memchr(b'\n', bytes).filter(|_| bytes.starts_with(b"*"))?;
    if bytes.starts_with(b"*-") {
        return None;
    }
    let mut rest = &bytes[head + 1..];
    Some(std::iter::from_fn(move || {
        let (item, behind) = rest.split_at_checked(value_len(rest)?)?;
        rest = behind;
        Some(item)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_where_they_end() {
        for value in [
            "+OK\r\n",
            ":-1\r\n",
            "$3\r\n\r\n\n\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*2\r\n*1\r\n:1\r\n$0\r\n\r\n",
            "%1\r\n+a\r\n~2\r\n#t\r\n_\r\n",
            "|1\r\n+a\r\n:1\r\n,1.5\r\n",
            "=5\r\ntxt:a\r\n",
        ] {
            let bytes = [value.as_bytes(), b"+rest\r\n"].concat();
            assert_eq!(value_len(&bytes), Some(value.len()), "{value}");
            for cut in 0..value.len() {
                assert_eq!(value_len(&bytes[..cut]), None, "{value} cut at {cut}");
            }
        }
    }

    #[test]
    fn arrays_fall_into_their_items() {
        let items = |bytes| array_items(bytes).map(Iterator::collect::<Vec<_>>);
        assert_eq!(items(b"*2\r\n:1\r\n*1\r\n+a\r\n"), Some(vec![&b":1\r\n"[..], b"*1\r\n+a\r\n"]));
        assert_eq!(items(b"*-1\r\n"), None);
        assert_eq!(items(b"-ERR\r\n"), None);
        assert_eq!(items(b"_\r\n"), None);
    }
}
