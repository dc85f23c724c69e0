//! Fuzz targets: payloads and files are read or refused, and values that were read can be written.

use crate::file::{File, FileError, Item, Value};
use crate::{Limits, Part, Sink, VERSION_FIELD_EXPIRY, crc64, dump};

/// Bytes up to which a value is read as a whole; larger ones are read in parts.
const WHOLE: usize = 256;

/// Restores `data`, an object without its footer.
pub fn restore(data: &[u8]) {
    let mut payload = [data, &VERSION_FIELD_EXPIRY.to_le_bytes()].concat();
    payload.extend_from_slice(&crc64::checksum(&payload).to_le_bytes());
    let Ok(object) = super::restore(&payload) else { return };
    let limits = Limits::default();
    let written = dump(&object, &limits);
    let again = super::restore(&written).expect("what was written can be read");
    assert_eq!(dump(&again, &limits), written, "it is written the same again");
}

/// Reads `data` as an RDB file.
pub fn rdb_file(data: &[u8]) {
    let Ok(mut file) = File::open(data) else { return };
    while let Ok(item) = file.next_item() {
        assert!(file.offset() <= data.len() as u64, "no more is read than there is");
        match item {
            Item::End => return,
            Item::Key(key) => match file.value(&key, WHOLE) {
                Ok(Value::Large(_)) => {
                    if file.parts::<FileError, _>(&key, &mut Anything).is_err() {
                        return;
                    }
                }
                Ok(_) => {}
                Err(_) => return,
            },
            _ => {}
        }
    }
}

/// A sink that accepts every part.
struct Anything;

impl Sink for Anything {
    type Error = FileError;

    fn part(&mut self, _part: Part<'_>) -> Result<(), FileError> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn payloads_are_restored_or_refused() {
        replay("restore", super::restore);
    }

    #[test]
    fn files_are_read_or_refused() {
        replay("rdb_file", super::rdb_file);
    }
}
