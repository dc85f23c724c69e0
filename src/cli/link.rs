//! The byte stream to a server: TCP, TLS over it, or a Unix socket. It is read and written on
//! different threads.

use anyhow::{Context, Result};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::io::{Error, ErrorKind, Read, Result as IoResult, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that are read from a socket at a time.
const READ: usize = 64 << 10;

/// Time for which an address may leave an attempt to connect without an answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The stream; its clones share it.
#[derive(Clone)]
pub(super) enum Link {
    Tcp(Arc<TcpStream>),
    Unix(Arc<UnixStream>),
    Tls(Arc<TlsLink>),
}

impl Link {
    /// Connects by TCP.
    ///
    /// # Errors
    /// No server listens there.
    pub(super) fn tcp(host: &str, port: u16) -> Result<Self> {
        Ok(Self::Tcp(Arc::new(connect(host, port)?)))
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// No server listens there.
    pub(super) fn unix(path: &str) -> Result<Self> {
        let stream =
            UnixStream::connect(path).with_context(|| format!("no connection to {path}"))?;
        Ok(Self::Unix(Arc::new(stream)))
    }

    /// Connects by TCP, and secures the stream. `name`: the name that the server's certificate has
    /// to have.
    ///
    /// # Errors
    /// No server listens there, or the handshake fails.
    pub(super) fn tls(
        host: &str,
        port: u16,
        config: Arc<ClientConfig>,
        name: &str,
    ) -> Result<Self> {
        let server = ServerName::try_from(name.to_owned())
            .with_context(|| format!("'{name}' is no name of a server: use --sni"))?;
        let mut session = ClientConnection::new(config, server).context("TLS")?;
        let mut socket = connect(host, port)?;
        while session.is_handshaking() {
            session
                .complete_io(&mut socket)
                .with_context(|| format!("no TLS with {host}:{port}"))?;
        }
        Ok(Self::Tls(Arc::new(TlsLink {
            socket,
            session: Mutex::new(session),
            sending: Mutex::default(),
            received: Mutex::default(),
        })))
    }

    /// Makes reads fail that get nothing for so long.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn limit_silence(&self, limit: Duration) -> IoResult<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(limit)),
            Self::Unix(stream) => stream.set_read_timeout(Some(limit)),
            Self::Tls(link) => link.socket.set_read_timeout(Some(limit)),
        }
    }

    /// Ends the stream, on all threads.
    pub(super) fn end(&self) {
        // It may have ended already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tls(link) => link.socket.shutdown(Shutdown::Both),
        };
    }
}

fn connect(host: &str, port: u16) -> Result<TcpStream> {
    let shown = || format!("no connection to {host}:{port}");
    let mut tried = Err(Error::from(ErrorKind::NotFound));
    for addr in (host, port).to_socket_addrs().with_context(shown)? {
        tried = TcpStream::connect_timeout(&addr, CONNECT_LIMIT);
        if tried.is_ok() {
            break;
        }
    }
    let stream = tried.with_context(shown)?;
    stream.set_nodelay(true).context("the connection's options")?;
    Ok(stream)
}

impl Read for Link {
    fn read(&mut self, buf: &mut [u8]) -> IoResult<usize> {
        match self {
            Self::Tcp(stream) => (&**stream).read(buf),
            Self::Unix(stream) => (&**stream).read(buf),
            Self::Tls(link) => link.read(buf),
        }
    }
}

impl Write for Link {
    fn write(&mut self, buf: &[u8]) -> IoResult<usize> {
        match self {
            Self::Tcp(stream) => (&**stream).write(buf),
            Self::Unix(stream) => (&**stream).write(buf),
            Self::Tls(link) => link.write(buf),
        }
    }

    fn flush(&mut self) -> IoResult<()> {
        Ok(())
    }
}

/// A secured stream. No lock is held while the socket is waited for, but that of `sending`.
pub(super) struct TlsLink {
    socket: TcpStream,
    session: Mutex<ClientConnection>,
    /// Held by the thread that writes to the socket: records go out in order.
    sending: Mutex<()>,
    /// Bytes of the socket that the session has not taken.
    received: Mutex<Vec<u8>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TlsLink {
    fn read(&self, buf: &mut [u8]) -> IoResult<usize> {
        let mut received = lock(&self.received);
        loop {
            let mut session = lock(&self.session);
            match session.reader().read(buf) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if received.is_empty() {
                drop(session);
                received.resize(READ, 0);
                let n = (&self.socket).read(&mut received)?;
                received.truncate(n);
                if n == 0 {
                    return Ok(0);
                }
                continue;
            }
            let mut left = &received[..];
            session.read_tls(&mut left)?;
            let taken = received.len() - left.len();
            let state = session
                .process_new_packets()
                .map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
            received.drain(..taken);
            let has_ended = state.peer_has_closed() && state.plaintext_bytes_to_read() == 0;
            drop(session);
            // An answer of TLS; a thread that is writing takes it along.
            if state.tls_bytes_to_write() > 0
                && let Ok(_sending) = self.sending.try_lock()
            {
                self.send()?;
            }
            if has_ended {
                return Ok(0);
            }
        }
    }

    fn write(&self, buf: &[u8]) -> IoResult<usize> {
        let _sending = lock(&self.sending);
        let n = lock(&self.session).writer().write(buf)?;
        self.send()?;
        Ok(n)
    }

    /// Sends the bytes that the session has encrypted. The caller holds `sending`.
    fn send(&self) -> IoResult<()> {
        loop {
            let mut bytes = Vec::new();
            let mut session = lock(&self.session);
            while session.wants_write() {
                session.write_tls(&mut bytes)?;
            }
            drop(session);
            if bytes.is_empty() {
                return Ok(());
            }
            (&self.socket).write_all(&bytes)?;
        }
    }
}
