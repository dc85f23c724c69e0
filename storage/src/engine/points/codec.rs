//! Decompresses blocks and filters as SlateDB 0.18 compresses them (its `format/sst.rs`): lz4 blocks
//! behind their size (u32, little-endian), and zstd frames that name theirs.

use super::BUFFER;
use slatedb::config::CompressionCodec;
use std::cell::RefCell;
use zstd::bulk::Decompressor;
use zstd::zstd_safe::get_frame_content_size;

/// Maximum size of decompressed bytes: a block has at least one row, and no row is nearly as large.
const MAX_PLAIN: usize = 64 << 20;

/// SlateDB's level of zstd.
const ZSTD_LEVEL: i32 = 3;

thread_local! {
    static PLAIN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static ZSTD: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Replaces compressed bytes by plain ones; `None` if they are not well-formed.
pub(super) fn decompress(codec: CompressionCodec, bytes: &mut Vec<u8>) -> Option<()> {
    PLAIN.with_borrow_mut(|plain| {
        plain.clear();
        match codec {
            CompressionCodec::Lz4 => unpack_lz4(bytes, plain)?,
            CompressionCodec::Zstd => unpack_zstd(bytes, plain)?,
            _ => return None,
        }
        std::mem::swap(bytes, plain);
        if plain.capacity() > BUFFER {
            *plain = Vec::new();
        }
        Some(())
    })
}

/// Compresses the bytes of a block as SlateDB does; `None` for another codec.
pub(super) fn compress(codec: CompressionCodec, plain: &[u8]) -> Option<Vec<u8>> {
    match codec {
        CompressionCodec::Lz4 => Some(lz4_flex::block::compress_prepend_size(plain)),
        CompressionCodec::Zstd => zstd::bulk::compress(plain, ZSTD_LEVEL).ok(),
        _ => None,
    }
}

fn unpack_lz4(bytes: &[u8], plain: &mut Vec<u8>) -> Option<()> {
    let (size, bytes) = bytes.split_first_chunk()?;
    let size = usize::try_from(u32::from_le_bytes(*size)).ok().filter(|size| *size <= MAX_PLAIN)?;
    plain.resize(size, 0);
    let written = lz4_flex::block::decompress_into(bytes, plain).ok()?;
    (written == size).then_some(())
}

fn unpack_zstd(bytes: &[u8], plain: &mut Vec<u8>) -> Option<()> {
    let size = usize::try_from(get_frame_content_size(bytes).ok()??).ok()?;
    plain.reserve(Some(size).filter(|size| *size <= MAX_PLAIN)?);
    ZSTD.with_borrow_mut(|zstd| {
        if zstd.is_none() {
            *zstd = Some(Decompressor::new().ok()?);
        }
        let written = zstd.as_mut()?.decompress_to_buffer(bytes, plain).ok()?;
        (written == size).then_some(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use CompressionCodec::{Lz4, Zstd};

    #[test]
    fn bytes_come_back() {
        for codec in [Lz4, Zstd] {
            for size in [0, 1, 100, 16 << 10, 300 << 10] {
                let plain: Vec<u8> = (0..size).map(|n| (n % 251 / 3) as u8).collect();
                let mut bytes = compress(codec, &plain).unwrap();
                assert_eq!(decompress(codec, &mut bytes), Some(()), "{codec:?} {size}");
                assert!(bytes == plain, "{codec:?} {size}");
            }
        }
    }

    #[test]
    fn no_size_that_bytes_announce_is_believed() {
        let mut bytes = vec![255, 255, 255, 255, 0, 0];
        assert_eq!(decompress(Lz4, &mut bytes), None);
        let plain = vec![7; 5000];
        for codec in [Lz4, Zstd] {
            let whole = compress(codec, &plain).unwrap();
            for at in 0..whole.len() {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x55;
                if decompress(codec, &mut damaged).is_some() {
                    assert!(damaged.len() <= MAX_PLAIN);
                }
                assert_eq!(decompress(codec, &mut whole[..at].to_vec()), None, "{codec:?} {at}");
            }
        }
    }
}
