//! TLS by rustls: the certificates, keys and options of the configuration, as new connections get
//! them.

mod ciphers;
mod client;
mod files;
mod sessions;

pub use client::{TlsClientOptions, client};

use crate::config::{Settings, TlsClientAuth, TlsSettings};
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

/// Loads the files of the settings; `None` if no port needs them.
///
/// # Errors
/// A file cannot be read or used, or an option names nothing that is supported.
pub fn load(settings: &Settings) -> Result<Option<TlsServer>, TlsError> {
    if settings.tls_port == 0 { Ok(None) } else { load_server(&settings.tls).map(Some) }
}

fn load_server(settings: &TlsSettings) -> Result<TlsServer, TlsError> {
    let provider = Arc::new(CryptoProvider {
        cipher_suites: ciphers::chosen(settings)?,
        ..aws_lc_rs::default_provider()
    });
    let verifier = match settings.auth_clients {
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
    let (chain, key) = files::identity(settings)?;
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
    Ok(Arc::new(config))
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
pub struct TlsSlot(RwLock<Option<TlsServer>>);

impl TlsSlot {
    pub fn new(server: Option<TlsServer>) -> Self {
        Self(RwLock::new(server))
    }

    /// Returns it; `None` if no port needs it.
    pub fn get(&self) -> Option<TlsServer> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces it, and returns the one that was in effect.
    pub fn replace(&self, server: Option<TlsServer>) -> Option<TlsServer> {
        std::mem::replace(&mut self.0.write().unwrap_or_else(PoisonError::into_inner), server)
    }
}
