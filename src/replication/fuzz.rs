//! Fuzz target: the stream of a primary is split into the same commands with the same positions,
//! whether it arrives at once or in pieces, or is refused at the same place.

use super::stream::{StreamLimits, StreamSplitter};
use bytes::BytesMut;
use flagstone_storage::encoding::SourcePosition;

/// Where the stream begins.
const BEGIN: u64 = 100;

/// Commands of a stream, each with its database, the last position, and how the stream ends.
type SplitStream = (Vec<(u32, Vec<Vec<u8>>)>, u64, Result<(), String>);

fn split(data: &[u8], piece: usize) -> SplitStream {
    let id = b"i".repeat(40).into();
    let position = SourcePosition { offset: BEGIN, id, ..SourcePosition::default() };
    let limits = StreamLimits { databases: 16, transaction: 1 << 12, kept: 1 << 10 };
    let mut splitter = StreamSplitter::new(position, limits);
    let (mut buf, mut commands, mut reached, mut fed) = (BytesMut::new(), Vec::new(), BEGIN, 0);
    for piece in data.chunks(piece) {
        buf.extend_from_slice(piece);
        fed += piece.len() as u64;
        loop {
            if let Err(reason) = splitter.take(&mut buf) {
                return (commands, reached, Err(reason));
            }
            let Some(batch) = splitter.batch() else { break };
            assert!(batch.reached.offset > reached, "a batch goes on");
            reached = batch.reached.offset;
            assert!(reached <= BEGIN + fed, "no position is beyond the bytes that came");
            let words =
                |args: flagstone_wire::resp::Args<'_>| args.iter().map(<[u8]>::to_vec).collect();
            commands.extend(batch.commands.iter().map(|one| (one.db, words(one.args.args()))));
            if batch.commands.is_empty() {
                break;
            }
        }
    }
    (commands, reached, Ok(()))
}

/// Splits `data`, whose first byte says in which pieces.
pub fn stream(data: &[u8]) {
    let Some((piece, data)) = data.split_first() else { return };
    let (whole, parts) = (split(data, data.len().max(1)), split(data, usize::from(*piece) + 1));
    assert_eq!(whole.2, parts.2, "how the stream ends");
    if whole.2.is_ok() {
        assert_eq!(whole, parts);
    }
}
