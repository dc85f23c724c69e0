//! Reads of single rows.

use super::Engine;
use super::damage::is_of_one_file;
use super::database::Database;
use super::points::{self, DiskRow, OnDisk, Point, Points};
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
    /// errors in place of those whose rows lie in a damaged or unreadable file; faster than [`get`](Self::get) one by
    /// one. Must run on the background runtime.
    ///
    /// # Errors
    /// If a row cannot be read for another reason, or if the engine has closed itself.
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
        let (_reading, db) = self.begin_read();
        let reads = unread.into_iter().map(|n| self.get_numbered(&db, &keys[n], n));
        let mut reads = stream::iter(reads).buffered(READS);
        while let Some(read) = reads.next().await {
            let (n, row) = read;
            taken[n] = Some(match row {
                Err(error) if !is_of_one_file(&error) => return Err(error),
                row => row.map(|row| take(&keys[n], row.as_deref())),
            });
        }
        let mut taken: Vec<Result<T>> = taken.into_iter().flatten().collect();
        // A closed database answers all reads with the error that has closed it, which may be one of a
        // damaged file: it says nothing about the rows.
        if db.is_closed()
            && let Some(failed) = taken.iter().position(Result::is_err)
            && let Err(error) = taken.swap_remove(failed)
        {
            return Err(error);
        }
        Ok(taken)
    }

    async fn get_numbered(
        &self,
        db: &Database,
        key: &[u8],
        n: usize,
    ) -> (usize, Result<Option<Bytes>>) {
        (n, self.read(db.get(key)).await)
    }
}
