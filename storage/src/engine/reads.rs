//! Reads of single rows.

use super::points::{self, DiskRow, OnDisk, Point, Points};
use super::{DamagedFile, Engine};
use anyhow::Result;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

/// Reads through SlateDB that are under way at the same time for one caller.
const READS: usize = 8;

impl Engine {
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let (_reading, db) = self.begin_read();
        self.read(db.get(key)).await
    }

    /// Returns the point reads in its files.
    pub(crate) fn points(&self) -> Arc<Points> {
        self.opened.read().unwrap_or_else(PoisonError::into_inner).points.clone()
    }

    /// Reads rows from the disk, each with a number. Those that are missing in the answer, or are
    /// `None` there, have to be read by [`get`](Self::get).
    ///
    /// # Errors
    /// If no row arrives within the limit of a read.
    pub(crate) async fn read_from_disk(
        &self,
        rows: Vec<(usize, Vec<u8>, OnDisk)>,
    ) -> Result<Vec<(usize, DiskRow)>> {
        let mut read = Vec::with_capacity(rows.len());
        for some in points::read_from_disk(rows) {
            read.extend(self.read(async { Ok(some.await.unwrap_or_default()) }).await?);
        }
        Ok(read)
    }

    /// Returns the rows of some keys, in their order, and errors in place of those that lie in a
    /// damaged file; faster than [`get`](Self::get) one by one. Must run on the background runtime.
    ///
    /// # Errors
    /// If a row cannot be read for another reason.
    pub async fn get_many(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Result<Option<Bytes>>>> {
        let points = self.points();
        let mut rows: Vec<_> = keys.iter().map(|_| Ok(None)).collect();
        let (mut on_disk, mut unread) = (Vec::new(), BTreeMap::new());
        for (n, key) in keys.into_iter().enumerate() {
            match points.find(&key, true, |value| value.map(Bytes::copy_from_slice)) {
                Point::Known(row) => rows[n] = Ok(row),
                Point::OnDisk(place) => on_disk.push((n, key, place)),
                Point::Elsewhere => drop(unread.insert(n, key)),
            }
        }
        unread.extend(on_disk.iter().map(|(n, key, _)| (*n, key.clone())));
        for (n, row) in self.read_from_disk(on_disk).await? {
            if let Some(row) = row {
                unread.remove(&n);
                rows[n] = Ok(row);
            }
        }
        let unread: Vec<(usize, Vec<u8>)> = unread.into_iter().collect();
        let reads = (0..unread.len()).map(|at| self.get_numbered(&unread, at));
        let mut reads = stream::iter(reads).buffered(READS);
        while let Some(read) = reads.next().await {
            let (n, row) = read;
            rows[n] = match row {
                Err(error) if !error.is::<DamagedFile>() => return Err(error),
                row => row,
            };
        }
        Ok(rows)
    }

    async fn get_numbered(
        &self,
        rows: &[(usize, Vec<u8>)],
        at: usize,
    ) -> (usize, Result<Option<Bytes>>) {
        let (n, key) = &rows[at];
        (*n, self.get(key).await)
    }
}
