//! The connection to the primary: TCP, or TLS over it, with buffers and limits of time.

use crate::config::Settings;
use crate::followers::LeaseQuestion;
use crate::replica::Primary;
use crate::tls::{self, PeerStream, TlsSlot};
use bytes::BytesMut;
use flagstone_wire::resp::{Proto, Reply};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// Maximum length of a line of the handshake in bytes.
const LINE_MAX: usize = 64 << 10;

/// Maximum number of bytes that are read at a time, and that may wait to be parsed beside a command
/// that is larger by itself.
pub(super) const READ: usize = 64 << 10;

/// Bytes of an empty buffer that is kept; a large command leaves no larger one behind.
const KEPT: usize = 1 << 20;

/// The connection.
pub(super) struct PrimaryWire {
    stream: Box<dyn PeerStream>,
    /// Bytes that are read and not used yet.
    pub(super) buf: BytesMut,
    /// Time without a byte after which the primary is taken for dead.
    pub(super) limit: Duration,
    /// When the last bytes came.
    heard: Instant,
    /// Bytes that have come, of all connections.
    bytes_in: Arc<AtomicU64>,
}

impl PrimaryWire {
    /// Connects to the primary. `bytes_in`: counts the bytes that come.
    ///
    /// # Errors
    /// Returns the reason why there is no connection.
    pub(super) async fn connect(
        primary: &Primary,
        (settings, tls): (&Settings, &TlsSlot),
        bytes_in: &Arc<AtomicU64>,
    ) -> Result<Self, String> {
        let limit = Duration::from_secs(settings.repl_timeout_seconds);
        let address = (primary.host.as_str(), primary.port);
        let stream = in_time(limit, TcpStream::connect(address)).await?;
        let stream = stream.map_err(|error| format!("no connection: {error}"))?;
        let _ = stream.set_nodelay(true);
        let stream = if settings.tls_replication {
            in_time(limit, tls::secure(stream, &primary.host, tls)).await??
        } else {
            Box::new(stream)
        };
        let (buf, bytes_in) = (BytesMut::new(), bytes_in.clone());
        Ok(Self { stream, buf, limit, heard: Instant::now(), bytes_in })
    }

    /// Reads more bytes. May be dropped before it is done: no byte is lost.
    pub(super) async fn read(&mut self, bytes: usize) -> Result<(), String> {
        if self.buf.is_empty() && self.buf.capacity() > KEPT {
            self.buf = BytesMut::new();
        }
        self.buf.reserve(bytes);
        match timeout(self.limit, self.stream.read_buf(&mut self.buf)).await {
            Err(_) => Err(self.silence()),
            Ok(Err(error)) => Err(broken(&error)),
            Ok(Ok(0)) => Err("the primary has closed the connection".to_owned()),
            Ok(Ok(read)) => {
                self.bytes_in.fetch_add(read as u64, Ordering::Relaxed);
                self.heard = Instant::now();
                Ok(())
            }
        }
    }

    fn silence(&self) -> String {
        format!("nothing has come for {} s (repl-timeout)", self.limit.as_secs())
    }

    /// Begins to count the primary's silence now: nothing was read for some time.
    pub(super) fn listen_again(&mut self) {
        self.heard = Instant::now();
    }

    /// Fails if nothing has come for too long.
    pub(super) fn check_alive(&self) -> Result<(), String> {
        let is_alive = self.heard.elapsed() <= self.limit;
        is_alive.then_some(()).ok_or_else(|| self.silence())
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let sending = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        let sent = timeout(self.limit, sending).await;
        let sent = sent.map_err(|_| "the primary does not read".to_owned())?;
        sent.map_err(|error| broken(&error))
    }

    /// Returns the next line that is not empty, without its end: empty ones are signs of life.
    pub(super) async fn line(&mut self) -> Result<String, String> {
        loop {
            if let Some(end) = self.buf.iter().position(|byte| *byte == b'\n') {
                let line = self.buf.split_to(end + 1);
                let line = String::from_utf8_lossy(line.trim_ascii()).into_owned();
                if !line.is_empty() {
                    return Ok(line);
                }
                continue;
            }
            if self.buf.len() > LINE_MAX {
                return Err("a line of the primary is too long".to_owned());
            }
            self.read(READ).await?;
        }
    }

    /// Sends a command and returns the line of its reply.
    pub(super) async fn ask(&mut self, words: &[&[u8]]) -> Result<String, String> {
        self.send(&request(words)).await?;
        self.line().await
    }

    /// Tells the primary how much of the stream is applied, and how much is on disk. `question`: one of
    /// the primary that this answers.
    pub(super) async fn acknowledge(
        &mut self,
        (applied, stored): (u64, u64),
        question: Option<&LeaseQuestion>,
    ) -> Result<(), String> {
        let [applied, stored] = [applied, stored].map(|offset| offset.to_string());
        let mut words: Vec<&[u8]> =
            vec![b"REPLCONF", b"ACK", applied.as_bytes(), b"FACK", stored.as_bytes()];
        if let Some(question) = question {
            words.extend([b"LEASE", question.text().as_bytes()]);
        }
        self.send(&request(&words)).await
    }
}

async fn in_time<F: Future>(limit: Duration, future: F) -> Result<F::Output, String> {
    timeout(limit, future).await.map_err(|_| "it does not answer".to_owned())
}

fn broken(error: &std::io::Error) -> String {
    format!("the connection is broken: {error}")
}

/// Returns a command as it is sent.
fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut out = Reply::new(Proto::Resp2);
    out.array(words.len());
    words.iter().for_each(|word| out.bulk(word));
    out.into_bytes()
}
