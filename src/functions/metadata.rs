//! The first line of a library's code: its language and the library's name.

use flagstone_storage::encoding::MAX_LIBRARY_NAME;
use flagstone_wire::resp::split_args;

/// Language of libraries.
pub const ENGINE: &str = "LUA";

/// Contents of the first line of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub name: Box<[u8]>,
    /// Start of the code: the end of the first line.
    pub body: usize,
}

impl Metadata {
    /// Parses `#!lua name=…`; fails with the error text.
    pub fn read(code: &[u8]) -> Result<Self, String> {
        const INVALID: &str = "ERR Invalid library metadata";
        if !code.starts_with(b"#!") {
            return Err("ERR Missing library metadata".into());
        }
        let body = memchr::memchr(b'\n', code).ok_or(INVALID)?;
        let parts = split_args(&code[..body]).map_err(|_| INVALID)?;
        let (engine, parts) = parts.split_first().ok_or(INVALID)?;
        let mut name = None;
        for part in parts {
            let value =
                part.split_at_checked(5).filter(|(key, _)| key.eq_ignore_ascii_case(b"name="));
            let Some((_, value)) = value else {
                let part = String::from_utf8_lossy(part);
                return Err(format!("ERR Invalid metadata value given: {part}"));
            };
            if name.replace(value).is_some() {
                let text = "ERR Invalid metadata value, name argument was given multiple times";
                return Err(text.into());
            }
        }
        let name = name.ok_or("ERR Library name was not given")?;
        if !is_name(name) {
            return Err("ERR Library names can only contain letters, numbers, or underscores(_) \
                        and must be at least one character long"
                .into());
        }
        if name.len() > MAX_LIBRARY_NAME {
            return Err(format!("ERR Library names have up to {MAX_LIBRARY_NAME} characters"));
        }
        let engine = engine.get(2..).unwrap_or_default();
        if !engine.eq_ignore_ascii_case(ENGINE.as_bytes()) {
            let engine = String::from_utf8_lossy(engine);
            return Err(format!("ERR Engine '{engine}' not found"));
        }
        Ok(Self { name: name.into(), body })
    }
}

/// Returns true if a library or function may have this name.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}
