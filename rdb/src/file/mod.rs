//! RDB files: those that Redis and Valkey save, and the RDB part of their append-only files.
//!
//! `REDIS` and four digits of version; items, each beginning with a byte: 244 and up are those of
//! `opcode`, lower ones are the types of objects, and a key and its value follow. Since version 5
//! the end is followed by eight bytes of CRC-64 of everything before, or zeros. Format: `rdb.c` of
//! Valkey 8.1.1 and Redis 8.0.

mod source;
#[cfg(test)]
mod tests;
mod write;

use super::input::Input;
use super::parts::{Kind, Part, Sink};
use super::restore::Collector;
use super::walk::{kind, walk};
use super::{
    RestoreError, VERSION, VERSION_FIELD_EXPIRY, crc64, module_opcode, object_type, opcode,
};
use source::Source;
use std::io::{self, Read};
use thiserror::Error;

pub use super::FOOTER_LEN;
pub use write::{Output, has_field_expiry};

type FileResult<T> = Result<T, FileError>;

/// Maximum memory of a decoded value in bytes, for each byte that its encoding may have.
const DECODED_FACTOR: usize = 4;
/// Assumed memory of an element beside its bytes.
const ELEMENT_OVERHEAD: usize = 64;

/// The reason why a file cannot be read further.
#[derive(Debug, Error)]
pub enum FileError {
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    #[error("the file ends in the middle")]
    Truncated,
    #[error("it is no RDB file")]
    NotRdb,
    #[error("RDB version {0} is not known: 1 to {VERSION_FIELD_EXPIRY} are")]
    Version(String),
    #[error("the value is malformed")]
    Bad(RestoreError),
    #[error("a string of {0} bytes is too long")]
    LongString(u64),
    #[error("{0} is nothing that is known")]
    Opcode(u8),
    #[error("libraries of functions of release candidates of Redis 7.0 are not understood")]
    FunctionPreGa,
    #[error("values of modules of release candidates of Redis 4.0 are not understood")]
    ModulePreGa,
    #[error("the checksum is wrong: {found:016x}, and the file has {stored:016x}")]
    Checksum { found: u64, stored: u64 },
    /// A value that was to be small is large; never returned to callers.
    #[error("the value is large")]
    Large,
}

impl From<RestoreError> for FileError {
    fn from(error: RestoreError) -> Self {
        FileError::Bad(error)
    }
}

/// The next item of a file.
#[derive(Debug)]
pub enum Item {
    /// A name and a value with information about the file.
    Aux(Vec<u8>, Vec<u8>),
    /// The number of the database of the following keys.
    Database(u64),
    /// The number of keys of the database.
    Keys(u64),
    /// The code of a library.
    Function(Vec<u8>),
    /// Data of the module of this name beside keys; it was skipped.
    ModuleAux(String),
    /// A key. Its value must be read next.
    Key(Key),
    End,
}

/// A key, and its properties beside the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub name: Vec<u8>,
    /// Expiry in milliseconds since 1970.
    pub expire_at_ms: Option<i64>,
    pub idle_s: Option<u64>,
    pub freq: Option<u8>,
    object_type: u8,
}

impl Key {
    /// Returns true if its value is a stream.
    pub fn is_stream(&self) -> bool {
        kind(self.object_type) == Ok(Kind::Stream)
    }
}

/// The value of a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Value {
    /// A payload for RESTORE.
    Payload(Vec<u8>),
    /// A collection without members, as older versions could have them: such a key does not exist.
    Empty,
    /// A value of the module's type with this name; it was skipped.
    Module(String),
    /// A value that is too large: its parts must be read next.
    Large(Kind),
}

/// An RDB file that is being read. At most a value that may be a payload, or a string of a larger
/// value, is held in memory.
pub struct File<R> {
    source: Source<R>,
    version: u16,
}

impl<R: Read> File<R> {
    /// Opens a file.
    ///
    /// # Errors
    /// If it is no RDB file, or of an unknown version.
    pub fn open(file: R) -> FileResult<Self> {
        let mut source = Source::new(file);
        let magic: [u8; 9] = source.array()?;
        let digits = magic.strip_prefix(b"REDIS").or_else(|| magic.strip_prefix(b"VALKEY"));
        let digits = std::str::from_utf8(digits.ok_or(FileError::NotRdb)?);
        let digits = digits.map_err(|_| FileError::NotRdb)?;
        let version = digits.parse().ok().filter(|v| (1..=VERSION_FIELD_EXPIRY).contains(v));
        let version = version.ok_or_else(|| FileError::Version(digits.to_owned()))?;
        Ok(File { source, version })
    }

    /// Returns the number of bytes read.
    pub fn offset(&self) -> u64 {
        self.source.offset()
    }

    pub fn version(&self) -> u16 {
        self.version
    }

    /// Returns the next item. [`Item::End`] is the last one.
    ///
    /// # Errors
    /// [`FileError`] if it cannot be read, or is unknown.
    pub fn next_item(&mut self) -> FileResult<Item> {
        let (mut expire_at_ms, mut idle_s, mut freq) = (None, None, None);
        loop {
            let source = &mut self.source;
            match source.byte()? {
                opcode::SLOT_INFO => {
                    for _ in 0..3 {
                        source.len()?;
                    }
                }
                opcode::FUNCTION => return Ok(Item::Function(source.string()?.into_owned())),
                opcode::FUNCTION_PRE_GA => return Err(FileError::FunctionPreGa),
                opcode::MODULE_AUX => {
                    let name = module_name(source.len()?);
                    skip_module(source)?;
                    return Ok(Item::ModuleAux(name));
                }
                opcode::IDLE => idle_s = Some(source.len()?),
                opcode::FREQ => freq = Some(source.byte()?),
                opcode::AUX => {
                    let name = source.string()?.into_owned();
                    return Ok(Item::Aux(name, source.string()?.into_owned()));
                }
                opcode::RESIZE => {
                    let keys = source.len()?;
                    source.len()?;
                    return Ok(Item::Keys(keys));
                }
                opcode::EXPIRE_MS => expire_at_ms = Some(i64::from_le_bytes(source.array()?)),
                opcode::EXPIRE_S => {
                    let at_s = i64::from(i32::from_le_bytes(source.array()?));
                    expire_at_ms = Some(at_s * 1000);
                }
                opcode::DATABASE => return Ok(Item::Database(source.len()?)),
                opcode::END => return self.end(),
                object_type => {
                    match kind(object_type) {
                        Err(RestoreError::Unsupported(object_type::MODULE_2)) | Ok(_) => {}
                        Err(RestoreError::Unsupported(_)) => return Err(FileError::ModulePreGa),
                        Err(_) => return Err(FileError::Opcode(object_type)),
                    }
                    let name = source.string()?.into_owned();
                    // Files have this value for keys without an expiry.
                    let expire_at_ms = expire_at_ms.filter(|at_ms| *at_ms != -1);
                    return Ok(Item::Key(Key { name, expire_at_ms, idle_s, freq, object_type }));
                }
            }
        }
    }

    fn end(&mut self) -> FileResult<Item> {
        if self.version >= 5 {
            let found = self.source.checksum();
            let stored = u64::from_le_bytes(self.source.array()?);
            if stored != 0 && stored != found {
                return Err(FileError::Checksum { found, stored });
            }
        }
        Ok(Item::End)
    }

    /// Returns the value of `key`, which was the last item; as a payload if it has at most
    /// `max_len` bytes and does not take much more memory than that when it is decoded.
    ///
    /// # Errors
    /// [`FileError`] if it is malformed or cannot be read.
    pub fn value(&mut self, key: &Key, max_len: usize) -> FileResult<Value> {
        let object_type = key.object_type;
        if object_type == object_type::MODULE_2 {
            let name = module_name(self.source.len()?);
            skip_module(&mut self.source)?;
            return Ok(Value::Module(name));
        }
        let kind = kind(object_type)?;
        self.source.record(max_len);
        let left = max_len.saturating_mul(DECODED_FACTOR);
        let mut sink = Limited { collector: Collector::new(object_type)?, left };
        match walk::<FileError, _, _>(object_type, &mut self.source, &mut sink) {
            Ok(()) => {}
            Err(FileError::Large) => {
                self.source.rewind();
                return Ok(Value::Large(kind));
            }
            Err(error) => return Err(error),
        }
        let encoded = self.source.recorded();
        let object = sink.collector.finish();
        if object.is_empty() {
            return Ok(Value::Empty);
        }
        if !object.is_distinct() {
            return Err(RestoreError::BadFormat.into());
        }
        Ok(Value::Payload(payload(object_type, &encoded)))
    }

    /// Passes the parts of the value of `key`, which was found to be large, to `sink`.
    ///
    /// # Errors
    /// [`FileError`] if it is malformed or cannot be read; that of the sink.
    pub fn parts<E, S>(&mut self, key: &Key, sink: &mut S) -> Result<(), E>
    where
        S: Sink,
        E: From<FileError> + From<S::Error> + From<RestoreError>,
    {
        walk(key.object_type, &mut self.source, sink)
    }

    /// Returns the rest behind the end: empty for an RDB file, commands for an append-only file.
    pub fn into_rest(self) -> impl Read {
        self.source.into_rest()
    }
}

/// Returns a payload for RESTORE of an object in this encoding.
fn payload(object_type: u8, encoded: &[u8]) -> Vec<u8> {
    let version =
        if object_type > object_type::LAST_COMMON { VERSION_FIELD_EXPIRY } else { VERSION };
    let mut payload = Vec::with_capacity(encoded.len() + 11);
    payload.push(object_type);
    payload.extend_from_slice(encoded);
    payload.extend_from_slice(&version.to_le_bytes());
    payload.extend_from_slice(&crc64::checksum(&payload).to_le_bytes());
    payload
}

/// Returns the name of a module's type, which is in the upper bits of its number.
fn module_name(number: u64) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..9).map(|at| char::from(LETTERS[(number >> (58 - 6 * at)) as usize % 64])).collect()
}

/// Skips a module's data, which is self-delimiting.
fn skip_module<R: Read>(source: &mut Source<R>) -> FileResult<()> {
    loop {
        match source.len()? {
            module_opcode::END => return Ok(()),
            module_opcode::SIGNED | module_opcode::UNSIGNED => {
                source.len()?;
            }
            module_opcode::FLOAT => {
                source.array::<4>()?;
            }
            module_opcode::DOUBLE => {
                source.array::<8>()?;
            }
            module_opcode::STRING => source.text::<FileError>(|_| Ok(()))?,
            _ => return Err(RestoreError::BadFormat.into()),
        }
    }
}

/// Assembles an object within a memory limit.
struct Limited {
    collector: Collector,
    /// Remaining memory limit in bytes.
    left: usize,
}

impl Sink for Limited {
    type Error = FileError;

    fn part(&mut self, part: Part<'_>) -> FileResult<()> {
        let size = match &part {
            Part::Text(text) => text.len(),
            Part::Element(element) => element.len() + ELEMENT_OVERHEAD,
            Part::Scored(member, _) => member.len() + ELEMENT_OVERHEAD,
            Part::Field(name, value, _) => name.len() + value.len() + 2 * ELEMENT_OVERHEAD,
            Part::Node(node) => {
                let values = node.entries.iter().flat_map(|(_, fields, _)| fields);
                values.map(|(_, value)| value.len() + ELEMENT_OVERHEAD).sum()
            }
            Part::Head(_) => 0,
            Part::Group(group) => (group.pending.len() + group.consumers.len()) * ELEMENT_OVERHEAD,
        };
        self.left = self.left.checked_sub(size).ok_or(FileError::Large)?;
        Ok(self.collector.part(part)?)
    }
}
