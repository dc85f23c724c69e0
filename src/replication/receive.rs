//! Receives the primary's data set into a file: of a length that is said before, or up to a mark.

use super::wire::PrimaryWire;
use crate::replica::Replica;
use bytes::BytesMut;
use std::path::Path;
use tokio::fs::File;
use tokio::io::{AsyncWriteExt, BufWriter};

/// Length of the mark at the end of a data set whose length is not known before.
const MARK: usize = 40;

/// Maximum number of bytes that are read at a time.
const READ: usize = 256 << 10;

/// End of the data set.
enum DataSetEnd {
    After(u64),
    Mark(Vec<u8>),
}

/// Receives the data set into a new file at `path`.
///
/// # Errors
/// Returns the reason if the connection ends, or the file cannot be written.
pub(super) async fn receive(
    wire: &mut PrimaryWire,
    replica: &Replica,
    path: &Path,
) -> Result<(), String> {
    let head = wire.line().await?;
    let end = match head.strip_prefix('$') {
        Some(length) => match length.strip_prefix("EOF:") {
            Some(mark) if mark.len() == MARK => DataSetEnd::Mark(mark.as_bytes().to_vec()),
            _ => DataSetEnd::After(length.parse().map_err(|_| malformed(&head))?),
        },
        None => return Err(malformed(&head)),
    };
    let failed = |error: std::io::Error| format!("{} cannot be written: {error}", path.display());
    let mut file = BufWriter::new(File::create(path).await.map_err(failed)?);
    let all = match &end {
        DataSetEnd::After(bytes) => Some(*bytes),
        DataSetEnd::Mark(_) => None,
    };
    let mut received = 0;
    loop {
        let part = take(&mut wire.buf, &end, received);
        file.write_all(&part).await.map_err(failed)?;
        received += part.len() as u64;
        replica.link().sync_bytes = (received, all);
        let is_done = match &end {
            DataSetEnd::After(bytes) => received == *bytes,
            // Nothing follows the mark before this server says that it has the data set.
            DataSetEnd::Mark(mark) => wire.buf[..] == mark[..],
        };
        if is_done {
            break;
        }
        wire.read(READ).await?;
    }
    if let DataSetEnd::Mark(mark) = &end {
        let _ = wire.buf.split_to(mark.len());
    }
    file.flush().await.map_err(failed)
}

/// Takes the bytes of the data set that are certain to belong to it.
fn take(buf: &mut BytesMut, end: &DataSetEnd, received: u64) -> BytesMut {
    let certain = match end {
        DataSetEnd::After(bytes) => usize::try_from(bytes - received).unwrap_or(usize::MAX),
        DataSetEnd::Mark(mark) => buf.len().saturating_sub(mark.len()),
    };
    buf.split_to(certain.min(buf.len()))
}

fn malformed(head: &str) -> String {
    format!("the primary announces its data set by {head:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_the_mark_is_not_taken() {
        let mark = vec![b'm'; MARK];
        let end = DataSetEnd::Mark(mark.clone());
        let mut buf = BytesMut::from(&b"data"[..]);
        assert!(take(&mut buf, &end, 0).is_empty());
        buf.extend_from_slice(&mark);
        assert_eq!(take(&mut buf, &end, 0), b"data"[..]);
        assert_eq!(buf[..], mark[..]);
        let mut buf = BytesMut::from(&b"datastream"[..]);
        assert_eq!(take(&mut buf, &DataSetEnd::After(4), 0), b"data"[..]);
        assert!(take(&mut buf, &DataSetEnd::After(4), 4).is_empty());
    }
}
