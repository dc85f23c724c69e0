//! Pushes to a connection, which it has not requested: messages of channels, invalidations, and
//! lines of MONITOR. Any thread may add a frame; the connection's own task writes them between the
//! replies.

use crate::config::OutputBufferLimit;
use bytes::Bytes;
use flagstone_wire::client_memory::Taken;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Maximum length in bytes of frames that are copied together; longer ones are shared by all
/// recipients.
const COPIED: usize = 4096;
/// Bytes of copied frames that are written at once.
const CHUNK: usize = 64 * 1024;
/// Initial memory in bytes of an outbox, which it keeps while it is empty.
const KEPT: usize = 2048;

/// Whole frames to be written: those that were copied together, then the rest of a shared one.
#[derive(Debug, Default)]
pub struct PushPiece {
    pub copied: Vec<u8>,
    pub shared: Bytes,
}

impl PushPiece {
    fn len(&self) -> usize {
        self.copied.len() + self.shared.len()
    }
}

/// Limits on unread bytes, beyond which the reader is too slow.
#[derive(Clone, Copy, Debug)]
pub struct Allowed<'a> {
    /// Limit on all that is to be written; `None` if there is none.
    pub all: Option<&'a OutputBufferLimit>,
    /// Limit on pushes.
    pub unasked: &'a OutputBufferLimit,
}

#[derive(Debug, Default)]
struct Inner {
    full: VecDeque<PushPiece>,
    /// Frames behind the full pieces.
    last: Vec<u8>,
    /// Empty memory for the next `last`.
    spare: Vec<u8>,
    /// Bytes of frames, including those that are being written.
    unasked: usize,
    /// Bytes of replies that the socket has not accepted.
    replies: usize,
    /// Time since which the soft limit is exceeded; 0 if it is not.
    soft_since_ms: u64,
    /// True if the reader was too slow: no frame is accepted any more.
    closed: bool,
    /// The frames' share in the memory of all clients.
    taken: Taken,
    waker: Option<Waker>,
}

/// Frames for one connection.
#[derive(Debug, Default)]
pub struct Outbox(Mutex<Inner>);

/// The reader is slower than its class of clients may be.
#[derive(Debug, PartialEq, Eq)]
pub struct TooSlow;

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a frame, whole RESP values in the client's protocol, in two parts: its beginning, and
    /// the part that it may share with others. Returns the waker of the connection's task if that
    /// waits for it.
    pub fn push(
        &self,
        head: &[u8],
        body: &Bytes,
        allowed: Allowed<'_>,
        now_ms: u64,
    ) -> Result<Option<Waker>, TooSlow> {
        let mut inner = self.lock();
        if inner.closed {
            return Ok(None);
        }
        inner.append(head, body);
        inner.check(allowed, now_ms)?;
        Ok(inner.waker.take())
    }

    /// Checks the limits.
    pub fn check(&self, allowed: Allowed<'_>, now_ms: u64) -> Result<(), TooSlow> {
        self.lock().check(allowed, now_ms)
    }

    /// Sets the number of bytes of replies that the socket has not accepted.
    pub fn set_replies(&self, bytes: usize) {
        self.lock().replies = bytes;
    }

    /// Removes and returns the next frames, to be written. They count until [`Outbox::written`].
    pub fn take(&self) -> PushPiece {
        let mut inner = self.lock();
        if let Some(piece) = inner.full.pop_front() {
            if inner.full.is_empty() {
                inner.full = VecDeque::new();
            }
            return piece;
        }
        let spare = std::mem::take(&mut inner.spare);
        PushPiece { copied: std::mem::replace(&mut inner.last, spare), shared: Bytes::new() }
    }

    /// Releases frames that were removed and are written now.
    pub fn written(&self, piece: PushPiece) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        inner.count(inner.unasked.saturating_sub(piece.len()));
        let mut copied = piece.copied;
        if copied.capacity() <= KEPT {
            copied.clear();
            let empty = inner.last.capacity() == 0;
            *(if empty { &mut inner.last } else { &mut inner.spare }) = copied;
        }
    }

    /// Removes all frames, to be written before the next reply.
    pub fn drain(&self, mut write: impl FnMut(&[u8])) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        inner.seal();
        for piece in std::mem::take(&mut inner.full) {
            write(&piece.copied);
            write(&piece.shared);
            inner.count(inner.unasked.saturating_sub(piece.len()));
        }
    }

    /// Returns true if there are no frames.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Ready if there are frames; otherwise the next frame wakes the task.
    pub fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        if !inner.is_empty() {
            return Poll::Ready(());
        }
        if !inner.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            inner.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Returns the number of pieces, and of bytes that are not written.
    pub fn size(&self) -> (usize, usize) {
        let inner = self.lock();
        let pieces = inner.full.len() + usize::from(!inner.last.is_empty());
        (pieces, inner.unasked + inner.replies)
    }
}

impl Inner {
    fn is_empty(&self) -> bool {
        self.full.is_empty() && self.last.is_empty()
    }

    fn append(&mut self, head: &[u8], body: &Bytes) {
        let len = head.len() + body.len();
        self.count(self.unasked + len);
        if !self.last.is_empty() && self.last.len() + len.min(COPIED) > CHUNK {
            self.seal();
        }
        if self.last.capacity() == 0 {
            self.last.reserve(KEPT);
        }
        self.last.extend_from_slice(head);
        if len <= COPIED {
            self.last.extend_from_slice(body);
        } else {
            let copied = std::mem::take(&mut self.last);
            self.full.push_back(PushPiece { copied, shared: body.clone() });
        }
    }

    /// Sets the number of bytes of frames.
    fn count(&mut self, bytes: usize) {
        self.unasked = bytes;
        if !self.closed {
            self.taken.set(bytes);
        }
    }

    /// Ends the last piece.
    fn seal(&mut self) {
        if !self.last.is_empty() {
            let copied = std::mem::take(&mut self.last);
            self.full.push_back(PushPiece { copied, shared: Bytes::new() });
        }
    }

    fn check(&mut self, allowed: Allowed<'_>, now_ms: u64) -> Result<(), TooSlow> {
        let counted = [
            allowed.all.map(|limit| (limit, self.unasked + self.replies)),
            Some((allowed.unasked, self.unasked)),
        ];
        let mut patience_ms = None;
        for (limit, bytes) in counted.into_iter().flatten() {
            if limit.hard_bytes != 0 && bytes as u64 >= limit.hard_bytes {
                return self.close();
            }
            if limit.soft_bytes != 0 && bytes as u64 >= limit.soft_bytes {
                let ms = u64::from(limit.soft_seconds) * 1000;
                patience_ms = Some(patience_ms.map_or(ms, |other: u64| other.min(ms)));
            }
        }
        match patience_ms {
            None => self.soft_since_ms = 0,
            Some(_) if self.soft_since_ms == 0 => self.soft_since_ms = now_ms.max(1),
            Some(ms) if now_ms.saturating_sub(self.soft_since_ms) > ms => return self.close(),
            Some(_) => {}
        }
        Ok(())
    }

    /// Discards everything, because its connection is to be closed.
    fn close(&mut self) -> Result<(), TooSlow> {
        self.closed = true;
        self.full = VecDeque::new();
        self.last = Vec::new();
        self.taken.set(0);
        Err(TooSlow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: OutputBufferLimit =
        OutputBufferLimit { hard_bytes: 100, soft_bytes: 50, soft_seconds: 2 };
    const NONE: OutputBufferLimit =
        OutputBufferLimit { hard_bytes: 0, soft_bytes: 0, soft_seconds: 0 };

    fn unasked(limit: &OutputBufferLimit) -> Allowed<'_> {
        Allowed { all: None, unasked: limit }
    }

    fn push(
        outbox: &Outbox,
        len: usize,
        limit: &OutputBufferLimit,
        now_ms: u64,
    ) -> Result<(), TooSlow> {
        let body = Bytes::from(vec![b'x'; len - 4]);
        outbox.push(b">2\r\n", &body, unasked(limit), now_ms).map(|_| ())
    }

    #[test]
    fn frames_count_until_they_are_written() {
        let outbox = Outbox::default();
        assert_eq!(push(&outbox, 80, &LIMIT, 1), Ok(()));
        let piece = outbox.take();
        assert_eq!((piece.len(), outbox.size()), (80, (0, 80)));
        assert_eq!(push(&outbox, 10, &LIMIT, 2), Ok(()));
        outbox.written(piece);
        assert_eq!(push(&outbox, 80, &LIMIT, 3), Ok(()));
        assert_eq!(outbox.size(), (1, 90));
        assert_eq!(push(&outbox, 10, &LIMIT, 4), Err(TooSlow));
    }

    #[test]
    fn a_reader_that_is_too_slow_gets_nothing_more() {
        let outbox = Outbox::default();
        assert_eq!(push(&outbox, 100, &LIMIT, 1), Err(TooSlow));
        assert_eq!(push(&outbox, 10, &LIMIT, 2), Ok(()));
        assert_eq!((outbox.size().0, outbox.take().len()), (0, 0));
    }

    #[test]
    fn the_soft_limit_is_a_matter_of_time() {
        let outbox = Outbox::default();
        assert_eq!(push(&outbox, 60, &LIMIT, 1000), Ok(()));
        assert_eq!(outbox.check(unasked(&LIMIT), 3000), Ok(()));
        outbox.written(outbox.take());
        assert_eq!(outbox.check(unasked(&LIMIT), 3001), Ok(()));
        assert_eq!(push(&outbox, 60, &LIMIT, 3003), Ok(()));
        assert_eq!(outbox.check(unasked(&LIMIT), 5003), Ok(()));
        assert_eq!(outbox.check(unasked(&LIMIT), 5004), Err(TooSlow));
    }

    #[test]
    fn replies_count_where_all_is_limited() {
        let outbox = Outbox::default();
        outbox.set_replies(90);
        assert_eq!(push(&outbox, 20, &LIMIT, 1), Ok(()));
        assert_eq!(outbox.size(), (1, 110));
        let both = Allowed { all: Some(&LIMIT), unasked: &NONE };
        assert_eq!(outbox.check(both, 2), Err(TooSlow));
    }

    #[test]
    fn a_piece_has_whole_frames_in_order() {
        let outbox = Outbox::default();
        let mut pushed = Vec::new();
        for n in 0..60u8 {
            let len = if n % 7 == 0 { COPIED + usize::from(n) } else { 3000 };
            let body = Bytes::from(vec![n; len]);
            assert!(outbox.push(b">2\r\n", &body, unasked(&NONE), 1).is_ok());
            pushed.extend_from_slice(b">2\r\n");
            pushed.extend_from_slice(&body);
        }
        let mut taken = Vec::new();
        for _ in 0..4 {
            let piece = outbox.take();
            assert!(piece.copied.starts_with(b">2\r\n") && piece.copied.len() <= CHUNK + COPIED);
            taken.extend_from_slice(&piece.copied);
            taken.extend_from_slice(&piece.shared);
            outbox.written(piece);
        }
        outbox.drain(|bytes| taken.extend_from_slice(bytes));
        assert_eq!(taken, pushed);
        assert_eq!(outbox.size(), (0, 0));
    }

    #[test]
    fn small_frames_need_no_memory_again_and_again() {
        let outbox = Outbox::default();
        let mut addresses = std::collections::HashSet::new();
        for _ in 0..10 {
            assert_eq!(push(&outbox, 100, &NONE, 1), Ok(()));
            let piece = outbox.take();
            addresses.insert(piece.copied.as_ptr());
            outbox.written(piece);
        }
        assert_eq!(addresses.len(), 1);
    }
}
