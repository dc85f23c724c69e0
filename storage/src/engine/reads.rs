//! Reads of single rows.

use super::points::{self, DiskRow, OnDisk, Point, Points};
use super::{DamagedFile, Engine};
use anyhow::Result;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
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

    /// Passes the rows of some keys to `take`, and returns its results in the order of the keys, or
    /// errors in place of those whose rows lie in a damaged file; faster than [`get`](Self::get) one by
    /// one. Must run on the background runtime.
    ///
    /// # Errors
    /// If a row cannot be read for another reason.
    pub async fn get_many<T>(
        &self,
        keys: &[Box<[u8]>],
        take: impl Fn(&[u8], Option<&[u8]>) -> T,
    ) -> Result<Vec<Result<T>>> {
        let points = self.points();
        let mut taken: Vec<Option<Result<T>>> = keys.iter().map(|_| None).collect();
        let mut on_disk = Vec::new();
        for (n, key) in keys.iter().enumerate() {
            match points.find(key, true, |row| take(key, row)) {
                Point::Known(one) => taken[n] = Some(Ok(one)),
                Point::OnDisk(place) => on_disk.push((n, key.to_vec(), place)),
                Point::Elsewhere => {}
            }
        }
        for (n, row) in self.read_from_disk(on_disk).await? {
            taken[n] = row.map(|row| Ok(take(&keys[n], row.as_deref())));
        }
        let unread: Vec<usize> = (0..keys.len()).filter(|n| taken[*n].is_none()).collect();
        let reads = unread.into_iter().map(|n| self.get_numbered(keys, n));
        let mut reads = stream::iter(reads).buffered(READS);
        while let Some(read) = reads.next().await {
            let (n, row) = read;
            taken[n] = Some(match row {
                Err(error) if !error.is::<DamagedFile>() => return Err(error),
                row => row.map(|row| take(&keys[n], row.as_deref())),
            });
        }
        Ok(taken.into_iter().flatten().collect())
    }

    async fn get_numbered(&self, keys: &[Box<[u8]>], n: usize) -> (usize, Result<Option<Bytes>>) {
        (n, self.get(&keys[n]).await)
    }
}
