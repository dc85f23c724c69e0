//! Fuzz target: a segment is followed to its end or refused, and nothing panics.
//!
//! Checksums would reject nearly every mutation at once, so the target corrects them first.

use super::disk::File;
use super::record::{HEADER, decode_shards, le_u32};
use super::scan::{SegmentChain, SegmentWalk, remains};
use super::segment::{FIRST_RECORD, FoundHeader, SEGMENT_HEADER, SegmentHeader};
use crate::commit::split_body;
use crate::encoding::OpReader;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Bytes as a read-only file.
struct ReadOnly(Vec<u8>);

impl File for ReadOnly {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = usize::try_from(offset).ok().and_then(|at| self.0.get(at..at + buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_all_at(&self, _slices: &mut [IoSlice<'_>], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads `data` as a segment after correcting its checksums.
pub fn journal(data: &[u8]) {
    let mut bytes = data.to_vec();
    bytes.resize(bytes.len().max(SEGMENT_HEADER + HEADER), 0);
    let Some(header) = repair(&mut bytes) else { return };
    let size = bytes.len() as u64;
    let file: Arc<dyn File> = Arc::new(ReadOnly(bytes));
    let walked = SegmentWalk::new(&file, header.salt, SegmentChain::head(&header));
    let mut walk = walked.expect("a file in memory can be read");
    let mut end = FIRST_RECORD;
    while let Some(step) = walk.next().expect("a file in memory can be read") {
        assert_eq!(step.offset, end, "records follow each other");
        end += step.header.record_len();
        assert!(end <= size, "a record lies within its segment");
        let shards = decode_shards(step.payload, step.header.shard_count);
        assert_eq!(shards.len(), usize::from(step.header.shard_count));
        let body = &step.payload[step.header.body_range()];
        for (_, operations) in split_body(body).unwrap_or_default() {
            OpReader::new(operations).for_each(drop);
        }
    }
    remains(&file, header.salt, end).expect("a file in memory can be read");
}

/// Corrects the checksums of a segment, from its beginning on as far as there are records, and
/// returns its header, if it has one.
fn repair(bytes: &mut [u8]) -> Option<SegmentHeader> {
    let head: &mut [u8; SEGMENT_HEADER] = bytes.first_chunk_mut()?;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..12]), &head[16..]);
    head[12..16].copy_from_slice(&crc.to_le_bytes());
    let FoundHeader::Valid(header) = SegmentHeader::decode(head) else { return None };
    let (mut at, mut prev_crc) = (SEGMENT_HEADER, header.prev_crc);
    while let Some(record) = bytes.get_mut(at..).filter(|rest| rest.len() >= HEADER) {
        let shards = usize::from(u16::from_le_bytes([record[12], record[13]]));
        let len = super::record::record_len(shards, u64::from(le_u32(record, 8)));
        let Some(record) = usize::try_from(len).ok().and_then(|len| record.get_mut(..len)) else {
            break;
        };
        record[48..52].copy_from_slice(&prev_crc.to_le_bytes());
        let body_crc = crc32c::crc32c(&record[HEADER..]);
        record[60..64].copy_from_slice(&body_crc.to_le_bytes());
        prev_crc = crc32c::crc32c_append(header.salt, &record[8..HEADER]);
        record[4..8].copy_from_slice(&prev_crc.to_le_bytes());
        at += record.len();
    }
    Some(header)
}
