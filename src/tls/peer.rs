//! TLS of connections that the server begins: to its primary, and to the target of MIGRATE.

use super::TlsSlot;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A stream of bytes in both directions, secured or not.
pub trait PeerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> PeerStream for T {}

/// Secures a connection to `host`.
///
/// # Errors
/// Returns the reason why the connection cannot be secured.
pub async fn secure(
    stream: TcpStream,
    host: &str,
    slot: &TlsSlot,
) -> Result<Box<dyn PeerStream>, String> {
    let config = slot.get().peers.ok_or("TLS for other servers has just been switched off")?;
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| format!("'{host}' is no name of a server"))?;
    let secured = TlsConnector::from(config).connect(name, stream).await;
    Ok(Box::new(secured.map_err(|error| format!("no TLS: {error}"))?))
}
