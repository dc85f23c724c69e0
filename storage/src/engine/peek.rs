//! Reads an engine that another process may have open, without disturbing it.

use super::machine::check_cpus;
use super::{OPENING, within};
use crate::encoding::prefix_range;
use crate::place::{Place, Writes, admin};
use anyhow::{Context, Result};
use bytes::Bytes;
use slatedb::config::DbReaderOptions;
use slatedb::{DbReader, DbReaderMode};

/// Returns the rows with a prefix in the files of the engine in a place; `None` if there is no
/// engine. If it is open, files may be deleted while they are read, which is an error.
pub(crate) async fn peek(place: &Place, prefix: &[u8]) -> Result<Option<Vec<(Bytes, Bytes)>>> {
    check_cpus()?;
    let reading = async {
        let (store, path) = (place.store(), place.root().clone());
        let admin = admin(store.clone(), path.as_ref());
        if admin.read_manifest(None).await?.is_none() {
            return Ok(None);
        }
        let options = DbReaderOptions::default();
        let reader = DbReader::open(path, store, DbReaderMode::FollowLatest, options).await?;
        let mut found = reader.scan(prefix_range(prefix)).await?;
        let mut rows = Vec::new();
        while let Some(row) = found.next().await? {
            rows.push((row.key, row.value));
        }
        reader.close().await?;
        Ok(Some(rows))
    };
    let read = within(OPENING, &Writes::default(), reading).await;
    read.with_context(|| format!("reading the engine of {place}"))
}
