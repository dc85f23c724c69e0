//! JSON files that end with a checksum of the bytes before it: one changed digit of an lsn would be
//! another state of the data.

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The bytes before the checksum, which is the last field.
const FIELD: &str = ",\n  \"checksum\": \"";

/// Serializes an object as text with a checksum: CRC32C of all bytes before the comma in front of
/// it.
pub(crate) fn to_vec<T: Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.truncate(text.len().saturating_sub("\n}".len()));
    let checksum = crc32c::crc32c(&text);
    text.extend(format!("{FIELD}{checksum:08x}\"\n}}\n").into_bytes());
    Ok(text)
}

/// Refuses text whose checksum is wrong. Text of earlier versions has none.
pub(crate) fn verify(text: &[u8]) -> Result<()> {
    let field = text.windows(FIELD.len()).rposition(|bytes| bytes == FIELD.as_bytes());
    let Some(end) = field else { return Ok(()) };
    let (content, rest) = text.split_at(end);
    let expected = format!("{FIELD}{:08x}\"\n}}\n", crc32c::crc32c(content));
    if rest != expected.as_bytes() {
        bail!("its checksum is wrong");
    }
    Ok(())
}

/// Reads an object that [`to_vec`] has written. The checksum must be there, and is no field of it.
pub(crate) fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    verify(text)?;
    let field = text.windows(FIELD.len()).rposition(|bytes| bytes == FIELD.as_bytes());
    let end = field.context("it has no checksum")?;
    Ok(serde_json::from_slice(&[&text[..end], b"\n}"].concat())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_flipped_bit_of_a_description_is_believed() {
        let value = json!({ "lsn": 10_501, "seed": 77, "tree": { "of": { "many": [1, 2] } } });
        let text = to_vec(&value).unwrap();
        verify(&text).unwrap();
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&text).unwrap()["lsn"], 10_501);
        for bit in 0..text.len() * 8 {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let read = serde_json::from_slice::<serde_json::Value>(&damaged);
            if let (Ok(()), Ok(read)) = (verify(&damaged), read) {
                // The checksum's field has another name.
                assert_eq!((&read["lsn"], &read["seed"]), (&10_501.into(), &77.into()), "{bit}");
            }
        }
    }

    #[test]
    fn an_object_without_a_checksum_is_refused_where_one_must_be() {
        let value = json!({ "lsn": 10_501, "of": ["checksum"] });
        let text = to_vec(&value).unwrap();
        assert_eq!(from_slice::<serde_json::Value>(&text).unwrap(), value);
        for bit in 0..text.len() * 8 {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(from_slice::<serde_json::Value>(&damaged).is_err(), "{bit}");
        }
        let plain = serde_json::to_vec_pretty(&value).unwrap();
        assert!(from_slice::<serde_json::Value>(&plain).is_err());
    }

    #[test]
    fn text_of_an_earlier_version_is_read() {
        verify(b"{\n  \"lsn\": 10501\n}").unwrap();
    }
}
