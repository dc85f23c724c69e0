//! Writes a file.

use crate::crc64;
use crate::writer::Writer;
use crate::{FOOTER_LEN, VERSION, VERSION_FIELD_EXPIRY, VERSION_OLD_TYPES, object_type, opcode};
use crc::{Digest, Table};
use std::io::{self, Seek, SeekFrom, Write};

/// A file that is being written. Its parts must come in order: aux fields, functions, then for each
/// database its number and its keys.
pub struct Output<W> {
    file: W,
    /// Digests of the bytes written, with the version of Valkey 8.1 and with that of Redis 8.0.
    digests: [Digest<'static, u64, Table<16>>; 2],
    /// True if an object needs the version of Redis 8.0.
    has_field_expiry: bool,
    bytes: u64,
}

/// A place in a file that is being written, between two of its parts.
pub struct OutputMark {
    digests: [Digest<'static, u64, Table<16>>; 2],
    has_field_expiry: bool,
    bytes: u64,
}

fn magic(version: u16) -> [u8; 9] {
    let mut magic = *b"REDIS0000";
    for (at, digit) in format!("{version:04}").bytes().enumerate() {
        magic[5 + at] = digit;
    }
    magic
}

impl<W: Write> Output<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// If it cannot be written; the same holds for all methods below.
    pub fn new(file: W) -> io::Result<Self> {
        Self::of_version(file, VERSION)
    }

    /// Begins a file with the types of Redis 7.0 only ([`Limits::old_types`](crate::Limits)), and
    /// hashes whose fields expire. [`finish_sent`](Self::finish_sent) ends it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn of_old_types(file: W) -> io::Result<Self> {
        Self::of_version(file, VERSION_OLD_TYPES)
    }

    fn of_version(mut file: W, version: u16) -> io::Result<Self> {
        let digests = [version, VERSION_FIELD_EXPIRY].map(|version| {
            let mut digest = crc64::digest();
            digest.update(&magic(version));
            digest
        });
        file.write_all(&magic(version))?;
        Ok(Output { file, digests, has_field_expiry: false, bytes: 9 })
    }

    /// Returns the number of bytes written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns this place, to come back to by [`rewind`](Self::rewind).
    pub fn mark(&self) -> OutputMark {
        let (digests, has_field_expiry) = (self.digests.clone(), self.has_field_expiry);
        OutputMark { digests, has_field_expiry, bytes: self.bytes }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digests.iter_mut().for_each(|digest| digest.update(bytes));
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Writes a name and a value with information about the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn aux(&mut self, name: &str, value: &str) -> io::Result<()> {
        let mut writer = Writer::new(opcode::AUX, false);
        writer.string(name.as_bytes());
        writer.string(value.as_bytes());
        self.write(&writer.into_bytes())
    }

    /// Writes the libraries in a payload of FUNCTION DUMP.
    ///
    /// # Errors
    /// If it is no payload, or the file cannot be written.
    pub fn functions(&mut self, payload: &[u8]) -> io::Result<()> {
        let len = payload.len().checked_sub(FOOTER_LEN);
        let len = len.ok_or_else(|| io::Error::other("a payload that is none"))?;
        self.write(&payload[..len])
    }

    /// Begins a database, with its number of keys, and of keys with an expiry.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn database(&mut self, number: u64, keys: u64, expiring: u64) -> io::Result<()> {
        let mut writer = Writer::new(opcode::DATABASE, false);
        writer.len(number);
        writer.bytes(&[opcode::RESIZE]);
        writer.len(keys);
        writer.len(expiring);
        self.write(&writer.into_bytes())
    }

    /// Writes a key and the type of its object, the first byte of a payload of DUMP. The rest of
    /// the payload, without its footer, must follow.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn key(
        &mut self,
        name: &[u8],
        expire_at_ms: Option<i64>,
        object_type: u8,
    ) -> io::Result<()> {
        self.has_field_expiry |= has_field_expiry(object_type);
        let mut writer = Writer::empty(false);
        if let Some(at_ms) = expire_at_ms {
            writer.bytes(&[opcode::EXPIRE_MS]);
            writer.bytes(&at_ms.to_le_bytes());
        }
        writer.bytes(&[object_type]);
        writer.string(name);
        self.write(&writer.into_bytes())
    }

    /// Writes more bytes of an object.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn object(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes)
    }

    /// Returns the file, for those who take its bytes as they come.
    pub fn file_mut(&mut self) -> &mut W {
        &mut self.file
    }

    /// Completes a file whose beginning has been sent: its version is the common one even if some
    /// object needs a newer one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish_sent(mut self) -> io::Result<W> {
        self.write(&[opcode::END])?;
        let [common, _] = self.digests.map(|digest| digest.finalize());
        self.file.write_all(&common.to_le_bytes())?;
        self.file.flush()?;
        Ok(self.file)
    }
}

impl<W: Write + Seek> Output<W> {
    /// Goes back to a place in this file, as if nothing had been written since. The caller cuts off the bytes
    /// behind it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn rewind(&mut self, mark: OutputMark) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(mark.bytes))?;
        let OutputMark { digests, has_field_expiry, bytes } = mark;
        (self.digests, self.has_field_expiry, self.bytes) = (digests, has_field_expiry, bytes);
        Ok(())
    }

    /// Completes the file, and returns its version and the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> io::Result<(u16, W)> {
        self.write(&[opcode::END])?;
        let [common, newer] = self.digests.map(|digest| digest.finalize());
        let (version, checksum) =
            if self.has_field_expiry { (VERSION_FIELD_EXPIRY, newer) } else { (VERSION, common) };
        self.file.write_all(&checksum.to_le_bytes())?;
        if version != VERSION {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&magic(version))?;
        }
        self.file.flush()?;
        Ok((version, self.file))
    }
}

/// Returns true if objects of this type are hashes with fields that expire, which Valkey 8.1 does
/// not know.
pub fn has_field_expiry(object_type: u8) -> bool {
    object_type > object_type::LAST_COMMON
}
