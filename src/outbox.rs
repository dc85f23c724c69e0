//! What a connection is sent that it has not asked for: messages of channels, invalidations of
//! what it has cached, lines of MONITOR. Anybody may put a frame in; the connection's own task
//! writes them between the replies.

use crate::config::OutputBufferLimit;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Bytes written at once, unless one frame is longer.
const CHUNK: usize = 256 * 1024;

#[derive(Debug, Default)]
struct Inner {
    frames: VecDeque<Bytes>,
    /// Of the frames, and of those that are being written.
    bytes: usize,
    /// Since when there are more than the soft limit allows; 0: there are not.
    soft_since_ms: u64,
    waker: Option<Waker>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Outbox(Mutex<Inner>);

/// The reader is slower than its class of clients may be.
#[derive(Debug, PartialEq, Eq)]
pub struct TooSlow;

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a frame: whole RESP values in the client's protocol.
    pub fn push(
        &self,
        frame: Bytes,
        limit: &OutputBufferLimit,
        now_ms: u64,
    ) -> Result<(), TooSlow> {
        let mut inner = self.lock();
        inner.bytes += frame.len();
        inner.frames.push_back(frame);
        if let Some(waker) = inner.waker.take() {
            waker.wake();
        }
        inner.check(limit, now_ms)
    }

    /// Whether the limits still hold.
    pub fn check(&self, limit: &OutputBufferLimit, now_ms: u64) -> Result<(), TooSlow> {
        self.lock().check(limit, now_ms)
    }

    /// Takes the next frames out, to be written. They count until [`Outbox::written`].
    pub fn take(&self) -> Vec<u8> {
        let mut inner = self.lock();
        let mut out = Vec::new();
        while let Some(frame) = inner.frames.front()
            && (out.is_empty() || out.len() + frame.len() <= CHUNK)
        {
            out.extend_from_slice(frame);
            inner.frames.pop_front();
        }
        if inner.frames.is_empty() {
            inner.frames = VecDeque::new();
        }
        out
    }

    /// So many bytes that were taken out are written.
    pub fn written(&self, bytes: usize) {
        let mut inner = self.lock();
        inner.bytes = inner.bytes.saturating_sub(bytes);
    }

    /// Ready when there are frames; else the task is woken by the next.
    pub fn poll_ready(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        if !inner.frames.is_empty() {
            return Poll::Ready(());
        }
        if !inner.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            inner.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Frames and bytes in it.
    pub fn size(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.frames.len(), inner.bytes)
    }
}

impl Inner {
    fn check(&mut self, limit: &OutputBufferLimit, now_ms: u64) -> Result<(), TooSlow> {
        if limit.hard_bytes != 0 && self.bytes as u64 > limit.hard_bytes {
            return Err(TooSlow);
        }
        if limit.soft_bytes == 0 || self.bytes as u64 <= limit.soft_bytes {
            self.soft_since_ms = 0;
        } else if self.soft_since_ms == 0 {
            self.soft_since_ms = now_ms.max(1);
        } else if now_ms.saturating_sub(self.soft_since_ms) > u64::from(limit.soft_seconds) * 1000 {
            return Err(TooSlow);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: OutputBufferLimit =
        OutputBufferLimit { hard_bytes: 100, soft_bytes: 50, soft_seconds: 2 };

    fn frame(len: usize) -> Bytes {
        Bytes::from(vec![b'x'; len])
    }

    #[test]
    fn frames_count_until_they_are_written() {
        let outbox = Outbox::default();
        assert_eq!(outbox.push(frame(90), &LIMIT, 1), Ok(()));
        assert_eq!(outbox.take().len(), 90);
        assert_eq!(outbox.push(frame(20), &LIMIT, 2), Err(TooSlow));
        outbox.written(90);
        assert_eq!(outbox.check(&LIMIT, 3), Ok(()));
        assert_eq!(outbox.size(), (1, 20));
    }

    #[test]
    fn the_soft_limit_is_a_matter_of_time() {
        let outbox = Outbox::default();
        assert_eq!(outbox.push(frame(60), &LIMIT, 1000), Ok(()));
        assert_eq!(outbox.check(&LIMIT, 3000), Ok(()));
        assert_eq!(outbox.check(&LIMIT, 3001), Err(TooSlow));
        outbox.written(outbox.take().len());
        assert_eq!(outbox.check(&LIMIT, 3002), Ok(()));
        assert_eq!(outbox.push(frame(60), &LIMIT, 3003), Ok(()));
        assert_eq!(outbox.check(&LIMIT, 5003), Ok(()));
    }

    #[test]
    fn a_chunk_has_whole_frames() {
        let outbox = Outbox::default();
        let none = OutputBufferLimit { hard_bytes: 0, soft_bytes: 0, soft_seconds: 0 };
        for _ in 0..3 {
            assert_eq!(outbox.push(frame(CHUNK / 2 + 1), &none, 1), Ok(()));
        }
        assert_eq!(outbox.take().len(), CHUNK / 2 + 1);
        assert_eq!(outbox.size().0, 2);
    }
}
