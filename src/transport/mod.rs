//! The byte stream of a connection: TCP, TLS over it, or a Unix socket, behind one interface that
//! never blocks.

mod address;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod proxy_header;
mod secured;

pub use address::PeerAddr;
pub use proxy_header::read_header;
pub use secured::{DetachedSecured, HandshakeError, SecuredStream, is_tls};

use bytes::BufMut;
use std::io::Result;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// The stream of one client.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<SecuredStream>),
}

impl Stream {
    /// Resolves when there are bytes to read, or the stream has ended.
    ///
    /// # Errors
    /// The stream is broken.
    #[inline]
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
            Self::Tls(stream) => stream.poll_readable(cx),
        }
    }

    /// Reads bytes that are there, none at the end of the stream. If it does not fill the buffer,
    /// the next [`poll_readable`](Self::poll_readable) needs no system call.
    ///
    /// # Errors
    /// The stream is broken.
    #[inline]
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => stream.poll_read(cx, buf),
        }
    }

    /// Reads bytes that are there, and returns their number: 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if there are none, or the stream is broken.
    pub fn try_read_buf(&mut self, buf: &mut impl BufMut) -> Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(buf),
            Self::Unix(stream) => stream.try_read_buf(buf),
            Self::Tls(stream) => stream.try_read_buf(buf),
        }
    }

    /// Writes as many bytes as the stream takes at once, and returns their number. After
    /// `WouldBlock` the same bytes have to be given again.
    ///
    /// # Errors
    /// `WouldBlock` if it takes none, or the stream is broken.
    #[inline]
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            Self::Tls(stream) => stream.try_write(bytes),
        }
    }

    /// Resolves when [`try_write`](Self::try_write) may succeed.
    ///
    /// # Errors
    /// The stream is broken.
    pub fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
            Self::Tls(stream) => stream.tcp().poll_write_ready(cx),
        }
    }

    /// Waits until [`try_write`](Self::try_write) may succeed.
    ///
    /// # Errors
    /// The stream is broken.
    pub async fn writable(&mut self) -> Result<()> {
        match self {
            Self::Tcp(stream) => stream.ready(Interest::WRITABLE).await.map(drop),
            Self::Unix(stream) => stream.ready(Interest::WRITABLE).await.map(drop),
            Self::Tls(stream) => stream.tcp().ready(Interest::WRITABLE).await.map(drop),
        }
    }

    /// Tells the client that nothing follows, where the protocol of the stream can say so.
    pub fn close(&mut self) {
        match self {
            Self::Tcp(_) | Self::Unix(_) => {}
            Self::Tls(stream) => stream.close(),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Tls(stream) => stream.as_raw_fd(),
        }
    }
}
