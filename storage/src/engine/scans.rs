//! Reads of ranges of rows.

use super::{Engine, OwnSlots};
use anyhow::{Result, anyhow};
use bytes::Bytes;
use slatedb::IterationOrder;
use slatedb::config::ScanOptions;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Rows from which on a scan reads more than a block at a time, and from which on it reads far
/// ahead.
const SHORT_SCAN: usize = 64;
const LONG_SCAN: usize = 4096;
const PAGE_READ_BYTES: usize = 32 << 10;
const LONG_READ_BYTES: usize = 512 << 10;

/// A read may take one part in so many of the time for which replaced files are kept, but at least
/// the time below: tests keep files only for a moment.
const READ_PARTS: u32 = 4;
const LEAST_READ: Duration = Duration::from_secs(5);

/// Time after which a walk goes on in a new read where files are kept for as long as a read needs
/// them.
const WALK: Duration = Duration::from_secs(30);

/// Returns true if a row belongs to the shard with the slots `own`; others may be left of before a split.
fn counts(own: Option<&OwnSlots>, row_key: &[u8]) -> bool {
    own.is_none_or(|own| own.has(row_key))
}

/// How much a scan reads at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanLimit {
    pub(crate) rows: usize,
    /// Bytes of keys and values, unless these are fewer rows than `least`.
    pub(crate) bytes: usize,
    pub(crate) least: usize,
}

impl ScanLimit {
    pub(crate) fn is_reached(&self, rows: usize, bytes: usize) -> bool {
        rows >= self.rows || (rows >= self.least && bytes >= self.bytes)
    }
}

impl Engine {
    /// Returns the limit for a whole read, if the files that it goes through are kept for a time
    /// only.
    fn whole_read(&self) -> Option<Duration> {
        self.how.upkeep.keep_files.map(|kept| (kept / READ_PARTS).max(LEAST_READ))
    }

    /// Returns the rows of a key range in order, `limit` at most.
    pub async fn scan(&self, range: Range<Vec<u8>>, limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let most = ScanLimit { rows: limit, least: limit, bytes: 0 };
        Ok(self.scan_page(false, range, most).await?.0)
    }

    /// Returns the first rows of a key range, or in `reverse` the last ones, last one first. The second value
    /// is true if the limit has ended it.
    pub(crate) async fn scan_page(
        &self,
        reverse: bool,
        range: Range<Vec<u8>>,
        limit: ScanLimit,
    ) -> Result<(Vec<(Bytes, Bytes)>, bool)> {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        if range.start >= range.end {
            return Ok((rows, false));
        }
        let order = if reverse { IterationOrder::Descending } else { IterationOrder::Ascending };
        // A long scan reads ahead, and does not fill the cache.
        let (read_ahead_bytes, cache_blocks) = match limit.rows {
            ..SHORT_SCAN => (1, true),
            SHORT_SCAN..LONG_SCAN => (PAGE_READ_BYTES, true),
            LONG_SCAN.. => (LONG_READ_BYTES, false),
        };
        let options =
            ScanOptions { read_ahead_bytes, cache_blocks, order, ..ScanOptions::default() };
        let (begun, (_reading, db)) = (Instant::now(), self.begin_read());
        let own = self.opened().slots;
        let limit_of_time = self.whole_read().unwrap_or(Duration::MAX);
        let mut iterator = self.read(db.scan(range, &options)).await?;
        let mut count = 0_usize;
        while !limit.is_reached(rows.len(), bytes) {
            let Some(row) = self.read(iterator.next()).await? else { return Ok((rows, false)) };
            count += 1;
            if counts(own.as_ref(), &row.key) {
                bytes += row.key.len() + row.value.len();
                rows.push((row.key, row.value));
            }
            if count.is_multiple_of(SHORT_SCAN) && begun.elapsed() > limit_of_time {
                let (place, seconds) = (&self.how.place, begun.elapsed().as_secs());
                return Err(anyhow!("reading {place}: {count} rows took {seconds} s"));
            }
        }
        Ok((rows, true))
    }

    /// Passes the rows of a range to `each`, in order, until that returns false, or until it takes
    /// so long that the files might be deleted, or that they should be. Returns the key to go on at,
    /// if there may be more rows.
    pub(crate) async fn walk(
        &self,
        range: Range<Vec<u8>>,
        mut each: impl FnMut(Bytes, Bytes) -> bool,
    ) -> Result<Option<Vec<u8>>> {
        if range.start >= range.end {
            return Ok(None);
        }
        let options = ScanOptions { read_ahead_bytes: LONG_READ_BYTES, ..ScanOptions::default() };
        let (begun, (_reading, db)) = (Instant::now(), self.begin_read());
        let own = self.opened().slots;
        let limit_of_time = self.whole_read().unwrap_or(WALK);
        let mut iterator = self.read(db.scan(range, &options)).await?;
        let mut count = 0_usize;
        while let Some(row) = self.read(iterator.next()).await? {
            let key = row.key.clone();
            count += 1;
            let is_late = count.is_multiple_of(SHORT_SCAN) && begun.elapsed() > limit_of_time;
            let goes_on = !counts(own.as_ref(), &row.key) || each(row.key, row.value);
            if !goes_on || is_late {
                return Ok(Some([&key[..], &[0]].concat()));
            }
        }
        Ok(None)
    }
}
