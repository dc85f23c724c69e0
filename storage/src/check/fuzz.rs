//! Fuzz target: rows are decoded or refused, and nothing panics.

use super::tally::Tally;
use crate::encoding::{Library, Op, OpReader, Row, decode_entry};
use crate::value::Entry;
use bytes::Bytes;

/// Reads `data` as the operations of one shard: meta rows are decoded, and the element rows behind
/// each are assembled as those of its value.
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
                    let tally = Tally::of(&entry);
                    (entry, tally)
                });
            }
            Some(Row::Element { element, .. }) => {
                if let Some((_, tally)) = &mut open {
                    tally.add(Bytes::copy_from_slice(element), Bytes::copy_from_slice(value));
                }
            }
            Some(Row::Control { .. } | Row::Library { .. }) | None => {
                let _library = Library::decode(key, value);
                let _generations = crate::control::Generations::decode(value);
            }
            Some(Row::Time { .. } | Row::Dead { .. }) => {}
        }
    }
    end(&mut open);
}
