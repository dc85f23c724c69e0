//! Small files and directories of a place, whether it is a local directory or in a bucket.

use super::Place;
use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};
use std::collections::BTreeMap;
use std::fs;

/// Returns the names of files, and of directories, right below a place; none if it does not exist.
pub(crate) async fn names(place: &Place) -> Result<(Vec<String>, Vec<String>)> {
    let root = (!place.root().is_root()).then(|| place.root());
    let listed = match place.store().list_with_delimiter(root).await {
        Err(Error::NotFound { .. }) => return Ok(Default::default()),
        listed => listed.with_context(|| format!("listing {place}"))?,
    };
    let name = |path: &Path| path.filename().map(str::to_owned);
    let files = listed.objects.iter().filter_map(|meta| name(&meta.location)).collect();
    let dirs = listed.common_prefixes.iter().filter_map(name).collect();
    Ok((files, dirs))
}

/// Returns the contents of a file; `None` if it does not exist.
pub(crate) async fn read(file: &Place) -> Result<Option<Vec<u8>>> {
    let reading = || format!("reading {file}");
    match file.store().get(file.root()).await {
        Ok(found) => Ok(Some(found.bytes().await.with_context(reading)?.to_vec())),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error).with_context(reading),
    }
}

/// Writes a file whole and durably.
pub(crate) async fn put(file: &Place, bytes: Vec<u8>) -> Result<()> {
    let put = file.store().put(file.root(), bytes.into()).await;
    put.with_context(|| format!("writing {file}"))?;
    Ok(())
}

/// Returns the objects below a place with their sizes, by their paths relative to it.
pub(crate) async fn sizes(place: &Place) -> Result<BTreeMap<String, u64>> {
    let store = place.store();
    let mut found = store.list(Some(place.root()));
    let mut sizes = BTreeMap::new();
    loop {
        match found.try_next().await {
            Ok(Some(meta)) => {
                if let Some(parts) = meta.location.prefix_match(place.root()) {
                    let name: Vec<_> = parts.map(|part| part.as_ref().to_owned()).collect();
                    sizes.insert(name.join("/"), meta.size);
                }
            }
            Ok(None) => return Ok(sizes),
            // The directory does not exist.
            Err(Error::NotFound { .. }) => return Ok(sizes),
            Err(error) => return Err(error).with_context(|| format!("listing {place}")),
        }
    }
}

/// Returns true if an error, as text, says that a disk is full. Not all errors keep their source.
pub fn tells_of_full_disk(error: &str) -> bool {
    error.contains(&format!("(os error {})", libc::ENOSPC))
}

/// Removes everything below a place.
pub async fn remove_tree(place: &Place) -> Result<()> {
    if let Some(dir) = place.dir() {
        return remove_dir(dir);
    }
    let store = place.store();
    let all = store.list(Some(place.root())).map_ok(|meta| meta.location).boxed();
    let gone = store.delete_stream(all).try_for_each(|_| async { Ok(()) });
    match gone.await {
        Err(Error::NotFound { .. }) => Ok(()),
        gone => gone.with_context(|| format!("deleting what is in {place}")),
    }
}

/// Removes a directory with all its contents, if it exists.
pub(crate) fn remove_dir(dir: &std::path::Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", dir.display()))
        }
        _ => Ok(()),
    }
}
