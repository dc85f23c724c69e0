//! Ratio and cost of compression. The ratio is that of the files that are open. The cost is measured
//! where it can be seen from outside of SlateDB: on one block of each compressed file that is
//! opened.

use super::codec::{compress, decompress};
use slatedb::config::CompressionCodec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of rows in files, before and after they were compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedSize {
    pub(crate) plain: u64,
    pub(crate) packed: u64,
}

impl PackedSize {
    pub(super) fn add(&mut self, other: Self) {
        self.plain += other.plain;
        self.packed += other.packed;
    }
}

/// Times for one block, and its bytes before it was compressed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodecSample {
    plain: u64,
    compressing: Duration,
    decompressing: Duration,
}

impl CodecSample {
    /// Decompresses a block and compresses it again; `None` if it is damaged.
    pub(super) fn take(codec: CompressionCodec, mut block: Vec<u8>) -> Option<Self> {
        let began = Instant::now();
        decompress(codec, &mut block)?;
        let decompressing = began.elapsed();
        let began = Instant::now();
        compress(codec, &block)?;
        Some(Self { plain: block.len() as u64, compressing: began.elapsed(), decompressing })
    }
}

/// Sums of all samples of an engine.
#[derive(Debug, Default)]
pub(super) struct CodecSamples {
    plain: AtomicU64,
    compress_ns: AtomicU64,
    decompress_ns: AtomicU64,
}

/// Cost of compression, by the blocks on which it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CodecCost {
    /// Bytes of these blocks before they were compressed.
    pub(crate) plain: u64,
    pub(crate) compress_ns: u64,
    pub(crate) decompress_ns: u64,
}

impl CodecSamples {
    pub(super) fn add(&self, sample: CodecSample) {
        self.plain.fetch_add(sample.plain, Ordering::Relaxed);
        self.compress_ns.fetch_add(sample.compressing.as_nanos() as u64, Ordering::Relaxed);
        self.decompress_ns.fetch_add(sample.decompressing.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(super) fn cost(&self) -> CodecCost {
        CodecCost {
            plain: self.plain.load(Ordering::Relaxed),
            compress_ns: self.compress_ns.load(Ordering::Relaxed),
            decompress_ns: self.decompress_ns.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_whole_blocks_only() {
        let samples = CodecSamples::default();
        for codec in [CompressionCodec::Lz4, CompressionCodec::Zstd] {
            let packed = compress(codec, &[7; 20_000]).unwrap();
            assert!(CodecSample::take(codec, packed[..packed.len() / 2].to_vec()).is_none());
            samples.add(CodecSample::take(codec, packed).unwrap());
        }
        let cost = samples.cost();
        assert_eq!(cost.plain, 40_000);
        assert!(cost.compress_ns > 0 && cost.decompress_ns > 0);
    }
}
