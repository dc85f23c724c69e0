//! Fuzz target: rows are decoded or refused, and nothing panics.

use super::tally::Tally;
use crate::encoding::{ElementRows, Library, Op, OpReader, OpWriter, Row, SourcePosition};
use crate::value::{Entry, Value, decode_entry, encode_meta};
use bytes::Bytes;

/// Reads `data` as the operations of one shard: meta rows are decoded, and the element rows behind
/// each are assembled as those of its value. Packed hashes, sets and sorted sets are unpacked too.
pub fn rows(data: &[u8]) {
    let mut open: Option<(Entry, Tally)> = None;
    let end = |open: &mut Option<(Entry, Tally)>| {
        if let Some((entry, tally)) = open.take() {
            let _refused = tally.end(entry);
        }
    };
    for op in OpReader::new(data) {
        let Op::Put { key, value, .. } = op else { continue };
        match Row::parse(key) {
            Some(Row::Meta { key, .. }) => {
                end(&mut open);
                open = decode_entry(key, 0, value).ok().map(|entry| {
                    if let Ok(again) = decode_entry(key, 0, value) {
                        unpack(again);
                    }
                    let tally = Tally::of(&entry);
                    (entry, tally)
                });
            }
            Some(Row::Element { element, .. }) => {
                if let Some((_, tally)) = &mut open {
                    tally.add(Bytes::copy_from_slice(element), Bytes::copy_from_slice(value));
                }
            }
            Some(Row::Control { .. } | Row::Library { .. } | Row::Source) | None => {
                let _position = SourcePosition::decode(value);
                let _library = Library::decode(key, value);
                let _generations = crate::control::Generations::decode(value);
                let _resolved = crate::Resolved::decode(value);
            }
            Some(Row::Time { .. } | Row::Dead { .. }) => {}
        }
    }
    end(&mut open);
}

/// Gives a packed hash, set or sorted set element rows, and reads it from them.
fn unpack(mut entry: Entry) {
    let (Value::Hash(_) | Value::Set(_) | Value::Zset(_)) = &entry.value else { return };
    let Some(collection) = entry.value.collection_mut() else { return };
    if collection.version() != 0 {
        return;
    }
    collection.unpack(1);
    let mut ops = OpWriter::default();
    collection.seal(&mut ElementRows::new(&mut ops, 0, 1, &|name| name.len() as u64));
    let mut meta = Vec::new();
    encode_meta(&mut meta, &entry);
    let again = decode_entry(b"", 0, &meta).expect("a meta row that was written is read");
    assert_eq!(again.value.version(), 1);
    let mut tally = Tally::of(&again);
    for piece in ops.pieces().0.iter().map(|piece| &piece[..]).chain([ops.pieces().1]) {
        for op in OpReader::new(piece) {
            let Op::Put { key, value, .. } = op else { panic!("all rows are put") };
            let Some(Row::Element { element, .. }) = Row::parse(key) else { panic!("an element") };
            tally.add(Bytes::copy_from_slice(element), Bytes::copy_from_slice(value));
        }
    }
    assert_eq!(tally.end(again), Ok(()));
}
