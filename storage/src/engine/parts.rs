//! Verifies the checksums inside a file with rows while its bytes pass by.
//!
//! SlateDB 0.18 (its `format/sst.rs`) writes blocks, then the filter, the index, the statistics and
//! the description of the file, each with a CRC-32 (IEEE, big-endian) of its bytes behind it, and
//! ten bytes that name the place of the description and the format.

use anyhow::{Context, Result, ensure};
use crc32fast::Hasher;
use object_store::ObjectStore;
use object_store::path::Path;
use slatedb::SstReader;
use std::collections::VecDeque;
use std::sync::Arc;

/// Length of a checksum.
const CHECKSUM: u64 = 4;

/// Length of the bytes behind the description.
const FOOTER: u64 = 10;

/// Checksums of a file's parts, as far as its bytes have passed.
pub(crate) struct PartChecks {
    /// Ends of the parts that have not passed, in order.
    ends: VecDeque<u64>,
    /// Number of bytes that have passed.
    at: u64,
    hash: Hasher,
    /// The checksum of the part that is passing, as far as it has passed.
    sum: Vec<u8>,
}

impl PartChecks {
    /// Reads where the parts of a file begin and end. `at` is its path in the store of its engine,
    /// `size` its length.
    ///
    /// # Errors
    /// The file cannot be read, or its index or its description is damaged.
    pub(crate) async fn of(store: &Arc<dyn ObjectStore>, at: &Path, size: u64) -> Result<Self> {
        let names: Vec<_> = at.parts().collect();
        let [root @ .., _, file] = &names[..] else {
            anyhow::bail!("{at} is no file of an engine");
        };
        let root: Path = root.iter().cloned().collect();
        let id = file.as_ref().strip_suffix(".sst").context("it is no file with rows")?;
        let reader = SstReader::new(root, store.clone(), None, None);
        let file = reader.open(id.parse().context("its name")?).await?;
        let (info, index) = (file.info(), file.index().await?);
        let mut ends: Vec<u64> = index.iter().skip(1).map(|(offset, _)| offset).collect();
        ends.push(if info.filter_len > 0 { info.filter_offset } else { info.index_offset });
        for (offset, length) in [
            (info.filter_offset, info.filter_len),
            (info.index_offset, info.index_len),
            (info.stats_offset, info.stats_len),
        ] {
            if length > 0 {
                ends.push(offset + length);
            }
        }
        ends.push(size.saturating_sub(FOOTER));
        ensure!(ends.is_sorted(), "its index is damaged");
        Ok(Self { ends: ends.into(), at: 0, hash: Hasher::new(), sum: Vec::new() })
    }

    /// Takes the next bytes of the file. Returns false if a part that ends in them is damaged.
    pub(crate) fn pass(&mut self, mut bytes: &[u8]) -> bool {
        while let Some(&end) = self.ends.front() {
            let data_end = end.saturating_sub(CHECKSUM);
            let is_data = self.at < data_end;
            let wanted = if is_data { data_end } else { end } - self.at;
            let most = usize::try_from(wanted).unwrap_or(usize::MAX).min(bytes.len());
            let (now, rest) = bytes.split_at(most);
            if is_data {
                self.hash.update(now);
            } else {
                self.sum.extend_from_slice(now);
            }
            (self.at, bytes) = (self.at + most as u64, rest);
            if self.at < end {
                if bytes.is_empty() {
                    return true;
                }
                continue;
            }
            let found = std::mem::take(&mut self.hash).finalize();
            if self.sum != found.to_be_bytes() {
                return false;
            }
            self.sum.clear();
            self.ends.pop_front();
        }
        true
    }

    /// Returns true if all parts have passed.
    pub(crate) fn have_passed(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;
    use slatedb::Db;
    use slatedb::config::{CompressionCodec, FlushOptions, FlushType, Settings};

    /// Returns a store with an engine's files.
    async fn files(codec: Option<CompressionCodec>) -> (Arc<dyn ObjectStore>, Vec<Path>) {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let settings = Settings { compression_codec: codec, ..Settings::default() };
        let db = Db::builder("at/db", store.clone()).with_settings(settings).build().await.unwrap();
        for n in 0..2000 {
            db.put(format!("key {n:05}").as_bytes(), [n as u8; 40]).await.unwrap();
        }
        db.flush_with_options(FlushOptions { flush_type: FlushType::MemTable }).await.unwrap();
        db.close().await.unwrap();
        let listed = store.list_with_delimiter(Some(&"at/db/compacted".into())).await.unwrap();
        (store, listed.objects.into_iter().map(|object| object.location).collect())
    }

    /// Passes bytes in pieces, and returns true if all of them are as they were written.
    fn passes(mut checks: PartChecks, bytes: &[u8], piece: usize) -> bool {
        bytes.chunks(piece).all(|piece| checks.pass(piece)) && checks.have_passed()
    }

    #[tokio::test]
    async fn every_flipped_bit_is_found() {
        for codec in [None, Some(CompressionCodec::Lz4), Some(CompressionCodec::Zstd)] {
            let (store, files) = files(codec).await;
            assert!(!files.is_empty());
            let at = &files[0];
            let bytes = store.get(at).await.unwrap().bytes().await.unwrap().to_vec();
            let size = bytes.len() as u64;
            for piece in [1, 7, 4096, bytes.len()] {
                let checks = PartChecks::of(&store, at, size).await.unwrap();
                assert!(passes(checks, &bytes, piece), "{codec:?} in pieces of {piece}");
            }
            for place in (0..bytes.len()).step_by(bytes.len() / 150) {
                let mut damaged = bytes.clone();
                damaged[place] ^= 0x10;
                store.put(at, damaged.clone().into()).await.unwrap();
                // The index or the description may be the damaged part.
                let found = match PartChecks::of(&store, at, size).await {
                    Ok(checks) => !passes(checks, &damaged, 1000),
                    Err(_) => true,
                };
                assert!(found, "{codec:?} at {place} of {size}");
            }
            store.put(at, bytes.clone().into()).await.unwrap();
            let checks = PartChecks::of(&store, at, size).await.unwrap();
            assert!(!passes(checks, &bytes[..bytes.len() / 2], 1000));
        }
    }
}
