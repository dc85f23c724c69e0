//! The client's side of TLS: for the subcommands, and for the connection to a primary.

use super::{TlsError, ciphers, files, versions};
use crate::config::TlsSettings;
use anyhow::{Context, Result, bail};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use std::sync::Arc;

/// How a client of a server with TLS behaves.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TlsClientOptions {
    /// File with the authorities that may vouch for the server.
    pub cacert: Option<String>,
    /// Directory with such files. Without both, the authorities of the system.
    pub cacertdir: Option<String>,
    /// Certificate of the client, and its key.
    pub cert: Option<String>,
    pub key: Option<String>,
    /// True if any certificate of the server will do.
    pub insecure: bool,
}

/// Returns the client's side of TLS.
///
/// # Errors
/// A file cannot be read or used.
pub fn client(options: &TlsClientOptions) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .context("TLS")?;
    let builder = if options.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
    } else {
        let roots = Arc::new(authorities(options)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        builder.with_webpki_verifier(verifier.context("--cacert")?)
    };
    Ok(Arc::new(match (&options.cert, &options.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let chain = files::chain("--cert", cert)?;
            let key = files::key("--key", key)?;
            builder.with_client_auth_cert(chain, key).context("--cert and --key")?
        }
        _ => bail!("--cert and --key belong together"),
    }))
}

fn authorities(options: &TlsClientOptions) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &options.cacert {
        files::add_authorities(&mut roots, "--cacert", path)?;
    }
    if let Some(path) = &options.cacertdir {
        files::add_directory(&mut roots, "--cacertdir", path)?;
    }
    if options.cacert.is_none() && options.cacertdir.is_none() {
        let system = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(system.certs);
        if roots.is_empty() {
            bail!("this system has no certificates of authorities: use --cacert");
        }
    }
    Ok(roots)
}

/// Returns the client's side of TLS for connections to a primary, and to the target of MIGRATE. As in the reference, one of the
/// authorities has to vouch for the other server's certificate, whatever names are in it.
///
/// # Errors
/// A file cannot be read or used, or an option names nothing that is supported.
pub(super) fn for_primary(settings: &TlsSettings) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(CryptoProvider {
        cipher_suites: ciphers::chosen(settings)?,
        ..aws_lc_rs::default_provider()
    });
    let roots = Arc::new(files::authorities(settings)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
    let verifier = verifier.map_err(|error| TlsError::new("tls-ca-cert-file", error))?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(&settings.protocols))
        .map_err(|error| TlsError::new("tls-protocols", error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyName(verifier)));
    let identity = match (&settings.client_cert_file, &settings.client_key_file) {
        (None, None) if settings.cert_file.is_none() => None,
        (None, None) => Some(files::identity(settings)?),
        (Some(cert), Some(key)) => {
            let chain = files::chain("tls-client-cert-file", cert)?;
            Some((chain, files::key("tls-client-key-file", key)?))
        }
        _ => {
            let reason = "tls-client-cert-file and tls-client-key-file belong together";
            return Err(TlsError::new("tls-client-cert-file", reason));
        }
    };
    Ok(Arc::new(match identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| TlsError::new("tls-client-cert-file", error))?,
    }))
}

/// Trusts the certificates that an authority vouches for, whatever names they have.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        // The name is checked last.
        match self.0.verify_server_cert(certificate, between, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Trusts every certificate; its owner must still have the key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
