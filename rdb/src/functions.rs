//! The payload of FUNCTION DUMP and RESTORE: the code of libraries.

use crate::input::Input;
use crate::opcode::{FUNCTION, FUNCTION_PRE_GA};
use crate::reader::Reader;
use crate::restore::object_bytes;
use crate::writer::Writer;
use crate::{VERSION, VERSION_FIELD_EXPIRY, VERSION_FOREIGN_MAX};

/// Returns the payload of libraries, given their code.
pub fn dump_functions<'a>(codes: impl Iterator<Item = &'a [u8]>, compression: bool) -> Vec<u8> {
    let mut writer = Writer::empty(compression);
    for code in codes {
        writer.bytes(&[FUNCTION]);
        writer.string(code);
    }
    writer.finish(VERSION)
}

/// Returns the code of the libraries in a payload; the text of the error otherwise. With `newer` it
/// may also be of a later version of Valkey than the known ones.
///
/// # Errors
///
/// If the footer is wrong, or the payload has anything but libraries.
pub fn restore_functions(payload: &[u8], newer: bool) -> Result<Vec<Vec<u8>>, &'static str> {
    let is_known =
        |version| version <= VERSION_FIELD_EXPIRY || (newer && version > VERSION_FOREIGN_MAX);
    let bytes = object_bytes(payload, is_known);
    let (bytes, _) = bytes.map_err(|_| "ERR DUMP payload version or checksum are wrong")?;
    let mut reader = Reader::new(bytes);
    let mut codes = Vec::new();
    while !reader.is_empty() {
        match reader.byte().map_err(|_| "ERR can not read data type")? {
            FUNCTION => {}
            FUNCTION_PRE_GA => return Err("ERR Pre-GA function format not supported"),
            _ => return Err("ERR given type is not a function"),
        }
        let code = reader.string().map_err(|_| "ERR Failed loading library payload")?;
        codes.push(code.into_owned());
    }
    Ok(codes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_roundtrip() {
        let codes = [b"#!lua name=a\nx".to_vec(), b"#!lua name=b\n".repeat(30), b"".to_vec()];
        for some in [&codes[..], &[]] {
            let payload = dump_functions(some.iter().map(Vec::as_slice), true);
            assert_eq!(restore_functions(&payload, false).unwrap(), some);
        }
    }

    #[test]
    fn payloads_without_a_library_are_named() {
        let wrong = "ERR DUMP payload version or checksum are wrong";
        assert_eq!(restore_functions(b"", false), Err(wrong));
        let mut payload = dump_functions(std::iter::once(&b"code"[..]), false);
        payload[2] ^= 1;
        assert_eq!(restore_functions(&payload, false), Err(wrong));
        for (first, error) in [
            (FUNCTION_PRE_GA, "ERR Pre-GA function format not supported"),
            (0, "ERR given type is not a function"),
            (FUNCTION, "ERR Failed loading library payload"),
        ] {
            let mut writer = Writer::empty(false);
            writer.bytes(&[first]);
            assert_eq!(restore_functions(&writer.finish(VERSION), false), Err(error));
        }
        let newer = Writer::empty(false).finish(VERSION_FOREIGN_MAX + 1);
        assert_eq!(restore_functions(&newer, false), Err(wrong));
        assert_eq!(restore_functions(&newer, true), Ok(Vec::new()));
    }
}
