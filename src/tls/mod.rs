//! TLS by rustls: the certificates, keys and options of the configuration, as new connections get
//! them.

mod ciphers;
mod client;
mod files;
mod peer;
mod sessions;

use client::for_primary;
pub use client::{TlsClientOptions, client};
pub use peer::{PeerStream, secure};

use crate::config::{HttpTls, Settings, TlsClientAuth, TlsSettings};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};
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

/// TLS for each port, and for connections to other servers; `None` where there is none.
#[derive(Clone, Debug, Default)]
pub struct TlsConfigs {
    pub clients: Option<TlsServer>,
    pub http: Option<TlsServer>,
    /// The client's side, for the primary, the target of MIGRATE, and the servers of a cluster.
    pub peers: Option<Arc<ClientConfig>>,
}

impl TlsConfigs {
    /// Returns true if there is any.
    pub fn any(&self) -> bool {
        self.clients.is_some() || self.http.is_some() || self.peers.is_some()
    }
}

/// Protocol on the HTTP port.
const HTTP: &[u8] = b"http/1.1";

/// Loads the files of the settings that a port needs, or a connection to another server.
///
/// # Errors
/// A file cannot be read or used, or an option names nothing that is supported.
pub fn load(settings: &Settings) -> Result<TlsConfigs, TlsError> {
    let tls = &settings.tls;
    let mut servers = TlsConfigs::default();
    if settings.tls_replication || settings.tls_cluster {
        servers.peers = Some(for_primary(tls)?);
    }
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

/// TLS in effect, which may be replaced at any time. Connections keep the one
/// that they began with.
#[derive(Debug, Default)]
pub struct TlsSlot(RwLock<TlsConfigs>);

impl TlsSlot {
    pub fn new(configs: TlsConfigs) -> Self {
        Self(RwLock::new(configs))
    }

    pub fn get(&self) -> TlsConfigs {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces it, and returns the one that was in effect.
    pub fn replace(&self, configs: TlsConfigs) -> TlsConfigs {
        std::mem::replace(&mut self.0.write().unwrap_or_else(PoisonError::into_inner), configs)
    }
}
