//! TLS over TCP, behind the interface of a plain stream: nothing waits.

use bytes::BufMut;
use rustls::server::ServerConnection;
use std::cell::RefCell;
use std::io::{BufRead, Error, ErrorKind, IoSlice, Result, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

/// Bytes that are read from the socket at once.
const READ: usize = 64 << 10;

/// Bytes that are encrypted ahead of the socket.
const AHEAD: usize = 64 << 10;

/// Bytes of a handshake that are read at once.
const HANDSHAKE_READ: usize = 4 << 10;

/// Maximum number of bytes that a client sends before the handshake is complete.
const MAX_HANDSHAKE: usize = 32 << 10;

/// First byte of a record of the handshake.
const HANDSHAKE_RECORD: u8 = 0x16;

thread_local! {
    /// Bytes on their way from a socket to the session that decrypts them.
    static INCOMING: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
}

/// Returns true if a client begins with these bytes that speaks TLS.
pub fn is_tls(bytes: &[u8]) -> bool {
    // The handshake's record has the version of SSL 3.0, TLS 1.0 or later in its next byte.
    bytes.len() > 1 && bytes[0] == HANDSHAKE_RECORD && bytes[1] == 3
}

/// Reason why there is no connection after a handshake.
#[derive(Debug)]
pub enum HandshakeError {
    /// The client does not speak TLS.
    NotTls,
    /// The client has disconnected.
    Gone,
    Failed(String),
}

/// A TLS connection after its handshake.
pub struct SecuredStream {
    tcp: TcpStream,
    session: ServerConnection,
    /// Bytes that were read from the socket and not decrypted.
    undecrypted: Vec<u8>,
    /// True if the session may have decrypted bytes.
    may_have_more: bool,
    /// Number of bytes given to [`SecuredStream::try_write`] that are encrypted, but not all in the
    /// socket.
    ahead: usize,
}

/// A secured stream that belongs to no runtime.
pub struct DetachedSecured {
    tcp: std::net::TcpStream,
    session: ServerConnection,
    undecrypted: Vec<u8>,
}

impl DetachedSecured {
    /// Gives the stream to the runtime of this thread.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn attach(self) -> Result<SecuredStream> {
        let Self { tcp, session, undecrypted } = self;
        let tcp = TcpStream::from_std(tcp)?;
        Ok(SecuredStream { tcp, session, undecrypted, may_have_more: true, ahead: 0 })
    }
}

impl SecuredStream {
    /// Performs the handshake of a server.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn accept(
        tcp: TcpStream,
        session: ServerConnection,
    ) -> std::result::Result<Self, HandshakeError> {
        let undecrypted = Vec::new();
        let mut stream = Self { tcp, session, undecrypted, may_have_more: true, ahead: 0 };
        let shaken = stream.shake_hands().await;
        if matches!(shaken, Err(HandshakeError::Failed(_))) {
            // The client is told why, if the socket takes it.
            let _ = stream.flush();
        }
        shaken.map(|()| stream)
    }

    async fn shake_hands(&mut self) -> std::result::Result<(), HandshakeError> {
        let gone = |_| HandshakeError::Gone;
        let mut received = 0;
        loop {
            while !self.flush().map_err(gone)? {
                self.tcp.writable().await.map_err(gone)?;
            }
            if !self.session.is_handshaking() {
                return Ok(());
            }
            self.tcp.readable().await.map_err(gone)?;
            let mut incoming = [0; HANDSHAKE_READ];
            let bytes = match self.tcp.try_read(&mut incoming) {
                Ok(0) => return Err(HandshakeError::Gone),
                Ok(n) => &incoming[..n],
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(gone(error)),
            };
            if received == 0 && bytes[0] != HANDSHAKE_RECORD {
                return Err(HandshakeError::NotTls);
            }
            received += bytes.len();
            if received > MAX_HANDSHAKE {
                return Err(HandshakeError::Failed("it sends too much".to_owned()));
            }
            self.decrypt(bytes).map_err(|error| HandshakeError::Failed(error.to_string()))?;
        }
    }

    /// Takes the stream from the runtime of this thread.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn detach(self) -> Result<DetachedSecured> {
        let Self { tcp, session, undecrypted, .. } = self;
        Ok(DetachedSecured { tcp: tcp.into_std()?, session, undecrypted })
    }

    /// Returns the socket below.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Resolves when there may be bytes to read, or the stream has ended.
    ///
    /// # Errors
    /// The stream is broken.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.may_have_more {
            return Poll::Ready(Ok(()));
        }
        // The session has something to say by itself.
        while self.session.wants_write() && self.ahead == 0 {
            match self.tcp.poll_write_ready(cx)? {
                Poll::Ready(()) => _ = self.flush()?,
                Poll::Pending => break,
            }
        }
        self.tcp.poll_read_ready(cx)
    }

    /// Reads bytes that are there, none at the end of the stream.
    ///
    /// # Errors
    /// The stream is broken.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buf.filled().len();
        if self.may_have_more && (self.drain(buf)? || buf.filled().len() > before) {
            return Poll::Ready(Ok(()));
        }
        INCOMING.with_borrow_mut(|incoming| {
            loop {
                let mut incoming = ReadBuf::new(incoming);
                ready!(Pin::new(&mut self.tcp).poll_read(cx, &mut incoming))?;
                if incoming.filled().is_empty() {
                    return Poll::Ready(Ok(()));
                }
                self.decrypt(incoming.filled())?;
                if self.drain(buf)? || buf.filled().len() > before {
                    return Poll::Ready(Ok(()));
                }
            }
        })
    }

    /// Reads bytes that are there, and returns their number: 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if there are none, or the stream is broken.
    pub fn try_read_buf(&mut self, buf: &mut impl BufMut) -> Result<usize> {
        let room = buf.remaining_mut();
        if self.may_have_more && (self.drain(buf)? || buf.remaining_mut() < room) {
            return Ok(room - buf.remaining_mut());
        }
        INCOMING.with_borrow_mut(|incoming| {
            loop {
                let n = self.tcp.try_read(incoming)?;
                if n == 0 {
                    return Ok(0);
                }
                self.decrypt(&incoming[..n])?;
                if self.drain(buf)? || buf.remaining_mut() < room {
                    return Ok(room - buf.remaining_mut());
                }
            }
        })
    }

    /// Decrypts bytes of the socket, up to the first that are for the reader; keeps the others.
    fn decrypt(&mut self, bytes: &[u8]) -> Result<()> {
        if !self.undecrypted.is_empty() {
            self.undecrypted.extend_from_slice(bytes);
            return Ok(());
        }
        let taken = self.feed(bytes)?;
        self.undecrypted.extend_from_slice(&bytes[taken..]);
        Ok(())
    }

    /// Gives the session bytes of the socket until it has something for the reader, and returns
    /// their number.
    fn feed(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut left = bytes;
        while !left.is_empty() {
            self.session.read_tls(&mut left)?;
            let state = self.session.process_new_packets().map_err(|error| {
                // The client is told why, if the socket takes it.
                let _ = flush(&mut self.session, &self.tcp);
                Error::new(ErrorKind::InvalidData, error)
            })?;
            if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                break;
            }
        }
        Ok(bytes.len() - left.len())
    }

    /// Moves decrypted bytes to the reader, as many as it has room for. Returns true at the end of
    /// the stream.
    fn drain(&mut self, out: &mut impl BufMut) -> Result<bool> {
        self.may_have_more = false;
        while out.has_remaining_mut() {
            let mut reader = self.session.reader();
            match reader.fill_buf() {
                Ok([]) => {
                    // The next read finds the end again.
                    self.may_have_more = true;
                    return Ok(true);
                }
                Ok(bytes) => {
                    let n = bytes.len().min(out.remaining_mut());
                    out.put_slice(&bytes[..n]);
                    reader.consume(n);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if self.undecrypted.is_empty() {
                if self.session.wants_write() {
                    self.flush()?;
                }
                return Ok(false);
            }
            let bytes = std::mem::take(&mut self.undecrypted);
            let taken = self.feed(&bytes)?;
            self.undecrypted = bytes;
            self.undecrypted.drain(..taken);
            if self.undecrypted.is_empty() {
                self.undecrypted = Vec::new();
            }
        }
        self.may_have_more = true;
        Ok(false)
    }

    /// Writes as many bytes as the stream takes at once, and returns their number. After
    /// `WouldBlock` the same bytes have to be given again: some of them may be encrypted.
    ///
    /// # Errors
    /// `WouldBlock` if it takes none, or the stream is broken.
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize> {
        if self.ahead == 0 {
            // The session's own messages go first.
            if self.session.wants_write() && !self.flush()? {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.ahead = self.session.writer().write(&bytes[..bytes.len().min(AHEAD)])?;
        }
        if self.flush()? {
            Ok(std::mem::take(&mut self.ahead))
        } else {
            Err(ErrorKind::WouldBlock.into())
        }
    }

    /// Writes encrypted bytes to the socket; returns false if it does not take all of them.
    fn flush(&mut self) -> Result<bool> {
        flush(&mut self.session, &self.tcp)
    }

    /// Tells the client that nothing follows, if the socket takes it.
    pub fn close(&mut self) {
        self.session.send_close_notify();
        // The client may have disconnected.
        let _ = self.flush();
    }
}

impl AsRawFd for SecuredStream {
    fn as_raw_fd(&self) -> RawFd {
        self.tcp.as_raw_fd()
    }
}

fn flush(session: &mut ServerConnection, tcp: &TcpStream) -> Result<bool> {
    while session.wants_write() {
        match session.write_tls(&mut SocketWriter(tcp)) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// A socket that takes bytes without waiting.
struct SocketWriter<'a>(&'a TcpStream);

impl Write for SocketWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> Result<usize> {
        self.0.try_write_vectored(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
