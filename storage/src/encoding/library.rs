//! Rows of libraries of functions.
//!
//! ```text
//! C f name | engine | code | n | n × (name, flags, [description])
//! ```

use super::keys::row;
use super::varint::{get_bytes, get_varint, put_bytes, put_varint};

/// Second byte of the key of a library's row.
pub(super) const LIBRARY: u8 = b'f';

/// Longest name of a library in bytes: it fits into an engine key behind the row's head.
pub const MAX_LIBRARY_NAME: usize = super::keys::MAX_KEY;

/// A library of functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    pub name: Box<[u8]>,
    /// Name of the language of its code.
    pub engine: Box<[u8]>,
    pub code: Box<[u8]>,
    /// The functions that its code registers, in that order.
    pub functions: Vec<Function>,
}

/// A function of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: Box<[u8]>,
    pub description: Option<Box<[u8]>>,
    /// Flags, which the runner of the function interprets.
    pub flags: u64,
}

impl Library {
    /// Returns the key of the row of a library.
    pub fn row_key(name: &[u8]) -> Vec<u8> {
        [&[row::CONTROL, LIBRARY], name].concat()
    }

    /// Returns the value of its row.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.code.len() + 64);
        put_bytes(&mut out, &self.engine);
        put_bytes(&mut out, &self.code);
        put_varint(&mut out, self.functions.len() as u64);
        for function in &self.functions {
            put_bytes(&mut out, &function.name);
            put_varint(&mut out, function.flags);
            match &function.description {
                Some(text) => {
                    out.push(1);
                    put_bytes(&mut out, text);
                }
                None => out.push(0),
            }
        }
        out
    }

    /// Decodes the row of a library; `None` if it is damaged.
    pub fn decode(name: &[u8], mut row: &[u8]) -> Option<Self> {
        let input = &mut row;
        let engine = get_bytes(input)?.into();
        let code = get_bytes(input)?.into();
        let functions =
            (0..get_varint(input)?).map(|_| decode_function(input)).collect::<Option<_>>()?;
        input.is_empty().then(|| Self { name: name.into(), engine, code, functions })
    }
}

fn decode_function(input: &mut &[u8]) -> Option<Function> {
    let name = get_bytes(input)?.into();
    let flags = get_varint(input)?;
    let (&described, rest) = input.split_first()?;
    *input = rest;
    let description = match described {
        0 => None,
        1 => Some(get_bytes(input)?.into()),
        _ => return None,
    };
    Some(Function { name, description, flags })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::Row;

    #[test]
    fn a_library_roundtrips() {
        let function = |name: &[u8], description: Option<&[u8]>, flags| Function {
            name: name.into(),
            description: description.map(Into::into),
            flags,
        };
        let library = Library {
            name: b"lib"[..].into(),
            engine: b"LUA"[..].into(),
            code: b"#!lua name=lib\n"[..].into(),
            functions: vec![function(b"f", None, 0), function(b"g", Some(b""), 300)],
        };
        let row = library.encode();
        assert_eq!(row, *b"\x03LUA\x0f#!lua name=lib\n\x02\x01f\x00\x00\x01g\xac\x02\x01\x00");
        assert_eq!(Library::decode(b"lib", &row), Some(library));
        for len in 0..row.len() {
            assert_eq!(Library::decode(b"lib", &row[..len]), None);
        }
        assert_eq!(Library::decode(b"lib", &[&row[..], b"x"].concat()), None);
        assert_eq!(Row::parse(&Library::row_key(b"lib")), Some(Row::Library { name: b"lib" }));
        assert_eq!(Row::parse(b"Creaches"), Some(Row::Control { name: b"reaches" }));
    }
}
