//! TLS by rustls: the certificates, keys and options of the configuration, as new connections get
//! them.

mod ciphers;
mod client;
mod files;
mod peer;
mod sessions;

pub use client::{TlsClientOptions, client, for_primary};
pub use peer::{PeerStream, secure};

use crate::config::{HttpTls, Settings, TlsClientAuth, TlsSettings};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};
use sessions::SessionCache;
use std::fmt::{Display, Formatter};
use std::sync::{Arc, PoisonError, RwLock};

/// Reason why the options of TLS cannot be used.
#[derive(Debug)]
pub struct TlsError {
    /// The directive that the error is about.
    pub directive: &'static str,
    pub reason: String,
}

impl TlsError {
    fn new(directive: &'static str, reason: impl Display) -> Self {
        Self { directive, reason: reason.to_string() }
    }
}

impl Display for TlsError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.directive, self.reason)
    }
}

impl std::error::Error for TlsError {}

/// The server's side of TLS for new connections.
pub type TlsServer = Arc<ServerConfig>;

/// The server's side of TLS for each port; `None` for one without it.
#[derive(Clone, Debug, Default)]
pub struct TlsServers {
    pub clients: Option<TlsServer>,
    pub http: Option<TlsServer>,
}

impl TlsServers {
    /// Returns true if a port has TLS.
    pub fn any(&self) -> bool {
        self.clients.is_some() || self.http.is_some()
    }
}

/// Protocol on the HTTP port.
const HTTP: &[u8] = b"http/1.1";

/// Loads the files of the settings that a port needs.
///
/// # Errors
/// A file cannot be read or used, or an option names nothing that is supported.
pub fn load(settings: &Settings) -> Result<TlsServers, TlsError> {
    let tls = &settings.tls;
    let mut servers = TlsServers::default();
    if settings.tls_port != 0 {
        servers.clients = Some(Arc::new(load_server(tls, tls.auth_clients)?));
    }
    let auth = match settings.http_tls {
        HttpTls::No => return Ok(servers),
        HttpTls::Yes => TlsClientAuth::No,
        HttpTls::Mutual => TlsClientAuth::Yes,
    };
    if settings.http_port != 0 {
        let mut server = load_server(tls, auth)?;
        server.alpn_protocols = vec![HTTP.to_vec()];
        servers.http = Some(Arc::new(server));
    }
    Ok(servers)
}

fn load_server(settings: &TlsSettings, auth: TlsClientAuth) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(CryptoProvider {
        cipher_suites: ciphers::chosen(settings)?,
        ..aws_lc_rs::default_provider()
    });
    let (chain, key) = files::identity(settings)?;
    let verifier = match auth {
        TlsClientAuth::No => WebPkiClientVerifier::no_client_auth(),
        asked => {
            let roots = Arc::new(files::authorities(settings)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
            let verifier = match asked {
                TlsClientAuth::Optional => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            verifier.build().map_err(|error| TlsError::new("tls-ca-cert-file", error))?
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(&settings.protocols))
        .map_err(|error| TlsError::new("tls-protocols", error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| files::mismatch(settings, &error))?;
    config.ignore_client_order = settings.prefer_server_ciphers;
    if settings.session_caching {
        config.session_storage = Arc::new(SessionCache::new(settings));
    } else {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

fn versions(protocols: &str) -> Vec<&'static SupportedProtocolVersion> {
    let has = |name: &str| protocols.split_whitespace().any(|w| w.eq_ignore_ascii_case(name));
    let all = protocols.trim().is_empty();
    let versions = [("TLSv1.3", &TLS13), ("TLSv1.2", &TLS12)];
    versions.into_iter().filter(|(name, _)| all || has(name)).map(|(_, version)| version).collect()
}

/// The server's side of TLS in effect, which may be replaced at any time. Connections keep the one
/// that they began with.
#[derive(Debug, Default)]
pub struct TlsSlot(RwLock<TlsServers>);

impl TlsSlot {
    pub fn new(servers: TlsServers) -> Self {
        Self(RwLock::new(servers))
    }

    pub fn get(&self) -> TlsServers {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces it, and returns the one that was in effect.
    pub fn replace(&self, servers: TlsServers) -> TlsServers {
        std::mem::replace(&mut self.0.write().unwrap_or_else(PoisonError::into_inner), servers)
    }
}
