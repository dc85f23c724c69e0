//! Behaviour common to all collections: they are packed into the meta row while small, and have
//! rows of their own for their elements when big.

use super::expiries::EarliestExpiries;
use crate::encoding::ElementRows;
use crate::need::{ElementRange, IndexPiece, Page, Part};
use crate::slot::Layout;
use anyhow::Result;

/// Bytes, and elements, beyond which a hash, set or sorted set goes to element rows. A packed
/// collection is one read, but all of it is decoded even for one element: for larger ones, that
/// costs more than to read an element's row behind a meta row, which is small and mostly cached.
pub(crate) const PACKED_MAX: usize = 4 * 1024;
pub(crate) const PACKED_MAX_ELEMENTS: u64 = 512;

/// Bytes up to which one stays packed however often it changes: to write all of it anew costs no
/// more than to read and write an element's rows. A list goes to element rows beyond them.
pub(crate) const PACKED_ALWAYS: usize = 2048;

/// Rounds that changed little of a packed hash, set or sorted set, after which it goes to element
/// rows if it takes more than [`PACKED_ALWAYS`] bytes.
pub(crate) const MAX_REWRITES: u32 = 8;

/// A change of at most this part of a packed collection is little.
pub(crate) const LITTLE: usize = 4;

/// Bytes up to which one in element rows is packed again when it changes, if all of it is in
/// memory. The distance to [`PACKED_ALWAYS`] bounds how often a collection is converted.
pub(crate) const PACKED_AGAIN: usize = 1536;

/// Returns the range of element keys from a place on, with a `prefix`.
pub(crate) fn range_from(prefix: &[u8], place: u64) -> ElementRange {
    let from = [prefix, &place.to_be_bytes()[2..]].concat();
    let to = (!prefix.is_empty()).then(|| crate::encoding::prefix_range(prefix).end);
    ElementRange { from, to }
}

/// Returns the place in an element key behind its prefix.
pub(crate) fn place_of(element: &[u8]) -> u64 {
    element
        .iter()
        .take(6)
        .chain(std::iter::repeat(&0))
        .take(6)
        .fold(0, |n, &b| n << 8 | u64::from(b))
}

/// An element that a command will ask for.
#[derive(Clone, Copy, Debug)]
pub struct ElementHint<'a> {
    pub name: &'a [u8],
    /// The score that it will get, if that is known.
    pub score: Option<f64>,
}

/// A hash, list, set, sorted set or stream.
pub(crate) trait Collection {
    /// Returns the type's name as TYPE answers it.
    fn type_name(&self) -> &'static str;

    /// Returns the encoding's name as OBJECT ENCODING answers it.
    fn encoding(&self) -> &'static str;

    /// Returns the number of elements.
    fn len(&self) -> u64;

    /// Prefetches the memory of elements.
    fn touch(&self, _wanted: &mut dyn Iterator<Item = ElementHint<'_>>) {}

    /// Returns true if it is known in memory if there is an element of a name.
    fn knows(&self, _name: &[u8]) -> bool {
        true
    }

    /// Returns true if a part that was missed is in memory by now, so that it need not be read.
    fn has(&self, _part: &Part) -> bool {
        false
    }

    /// Returns true if a key may hold it without elements.
    fn may_be_empty(&self) -> bool {
        false
    }

    /// Returns the version its element rows are under; 0 while it is packed.
    fn version(&self) -> u64;

    /// Returns the approximate memory use in bytes, in constant time.
    fn memory(&self) -> usize;

    /// Checks that all of it is in memory.
    fn require_whole(&self) -> Result<(), Part>;

    /// Returns the earliest expiry of an element in ms; 0 when none expires.
    fn fields_expire_at_ms(&self) -> u64 {
        0
    }

    /// Returns true if the collection must be unpacked.
    fn is_too_big(&self) -> bool;

    /// Returns true if a collection in element rows is wholly in memory and so small that it is to
    /// be packed again.
    fn is_small_again(&self) -> bool {
        false
    }

    /// Notes that a packed collection is written to its meta row.
    fn note_rewrite(&mut self) {}

    /// Gives it a version: the next [`Collection::seal`] writes each element as a row.
    fn unpack(&mut self, version: u64);

    /// Detaches it from its element rows: they will be written anew under another version. All of
    /// it must be in memory.
    fn detach(&mut self);

    /// Writes the element rows that changed since the last call.
    fn seal(&mut self, rows: &mut ElementRows<'_>);

    /// Appends the meta row's payload.
    fn encode(&self, out: &mut Vec<u8>);

    /// Returns its type and flags in the meta row.
    fn kind(&self) -> (u8, u8);

    /// Returns the element key of a name.
    fn element_key(&self, name: &[u8], layout: &Layout) -> Vec<u8> {
        crate::encoding::RowKey::named_element(layout.hash(name), name)
    }

    /// Applies the row of an element that was requested by name. (A value that has replaced another
    /// since the request may have no names; the same holds for an index.)
    fn apply_named(&mut self, _name: &[u8], _row: Option<&[u8]>) -> Result<()> {
        Ok(())
    }

    /// Applies some of all element rows, in the order of their keys; others follow, and
    /// [`apply_all`](Self::apply_all) is the last one. Returns the number of the first ones that were
    /// applied: 0 if they can only be applied with all that are left.
    fn apply_some(&mut self, _rows: &[(bytes::Bytes, bytes::Bytes)]) -> Result<usize> {
        Ok(0)
    }

    /// Applies all element rows, or all that are left: key and value.
    fn apply_all(&mut self, rows: Vec<(bytes::Bytes, bytes::Bytes)>) -> Result<()>;

    /// Applies a page of element rows.
    fn apply_page(&mut self, page: Page) -> Result<()>;

    /// Applies the counts of a range.
    fn apply_index(&mut self, _range: &ElementRange, _pieces: Vec<IndexPiece>) -> Result<()> {
        Ok(())
    }

    /// Applies the earliest expiries of its elements, which were read from its rows.
    fn apply_expiries(&mut self, _found: EarliestExpiries) {}

    /// Returns the number of elements that are known to exist or not, if it is counted.
    fn known(&self) -> usize {
        0
    }

    /// Returns true if hardly any elements are in memory.
    fn has_few_in_memory(&self) -> bool;

    /// Drops elements that are in the journal from memory, examining up to `steps`.
    fn shed(&mut self, steps: usize);
}
