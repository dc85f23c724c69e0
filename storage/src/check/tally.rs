//! Counts and decodes the element rows of one value.

use crate::encoding::get_varint;
use crate::value::decode_field;
use crate::value::pack::Pack;
use crate::value::string::CHUNK;
use crate::value::{Entry, Value};
use bytes::Bytes;

/// Bounds (rows, and their bytes) of a value that is assembled as for a command. Bigger values are
/// counted row by row.
const WHOLE_ROWS: usize = 16_384;
const WHOLE_BYTES: usize = 16 << 20;

/// First bytes of the element rows of a sorted set and of a stream.
const FIRST: u8 = 0;
const ORDER: u8 = 1;

/// The type of a value and its rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    Chunks { len: u64 },
    Fields,
    Members,
    Nodes,
    Scores,
    Stream,
}

/// See the module's description.
pub(super) struct Tally {
    kind: ValueKind,
    /// Number of elements so far.
    count: u64,
    /// Number of rows in a sorted set's order.
    ordered: u64,
    rows: Vec<(Bytes, Bytes)>,
    bytes: usize,
    is_whole: bool,
    damage: Option<String>,
}

impl Tally {
    pub(super) fn of(entry: &Entry) -> Self {
        let kind = match &entry.value {
            Value::Hash(_) => ValueKind::Fields,
            Value::Set(_) => ValueKind::Members,
            Value::List(_) => ValueKind::Nodes,
            Value::Zset(_) => ValueKind::Scores,
            Value::Stream(_) => ValueKind::Stream,
            Value::Str(string) => ValueKind::Chunks { len: string.len() as u64 },
            _ => ValueKind::Chunks { len: 0 },
        };
        let (rows, bytes) = (Vec::new(), 0);
        Self { kind, count: 0, ordered: 0, rows, bytes, is_whole: true, damage: None }
    }

    /// Adds the next row, by its element.
    pub(super) fn add(&mut self, element: Bytes, value: Bytes) {
        if self.count_elements(&element, &value).is_none() && self.damage.is_none() {
            self.damage = Some(format!("the element row {} is damaged", element.escape_ascii()));
        }
        self.bytes += element.len() + value.len();
        if self.rows.len() < WHOLE_ROWS && self.bytes <= WHOLE_BYTES {
            self.rows.push((element, value));
        } else {
            self.is_whole = false;
            self.rows = Vec::new();
        }
    }

    /// Counts the elements in a row; `None` if it is damaged.
    fn count_elements(&mut self, element: &[u8], value: &[u8]) -> Option<()> {
        match self.kind {
            ValueKind::Chunks { len } => {
                let n = u32::from_be_bytes(element.try_into().ok()?);
                let is_inside = u64::from(n) * (CHUNK as u64) < len;
                (is_inside && value.len() <= CHUNK).then_some(())?;
                self.count += 1;
            }
            ValueKind::Fields => {
                decode_field(value).ok()?;
                self.count += 1;
            }
            ValueKind::Members => self.count += 1,
            ValueKind::Nodes => self.count += Pack::decode(value)?.count() as u64,
            ValueKind::Scores => match *element.first()? {
                FIRST => {
                    let score =
                        f64::from_bits(u64::from_be_bytes(value.get(..8)?.try_into().ok()?));
                    (!score.is_nan()).then_some(())?;
                    self.count += 1;
                }
                ORDER => self.ordered += 1,
                _ => return None,
            },
            ValueKind::Stream => {
                if *element.first()? == FIRST {
                    self.count += get_varint(&mut &value[..])?;
                }
            }
        }
        Some(())
    }

    /// Compares the rows with the meta row; all rows must have been added.
    pub(super) fn end(self, mut entry: Entry) -> Result<(), String> {
        if let Some(damage) = self.damage {
            return Err(damage);
        }
        let Some(collection) = entry.value.collection_mut() else { return Ok(()) };
        let len = collection.len();
        if self.count != len {
            return Err(format!("it has {} elements, and its meta row says {len}", self.count));
        }
        if self.kind == ValueKind::Scores && self.ordered != len {
            return Err(format!("it has {} elements in order of {len}", self.ordered));
        }
        if self.is_whole && !self.rows.is_empty() {
            collection.apply_all(self.rows).map_err(|error| format!("{error:#}"))?;
            collection.require_whole().map_err(|_| "a part of it is missing".to_owned())?;
        }
        Ok(())
    }
}
