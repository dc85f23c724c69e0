//! Files with certificates and keys, in PEM.

use super::TlsError;
use crate::config::TlsSettings;
use crate::open_files::open_regular;
use rustls::RootCertStore;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::io::{Read, Result};
use std::path::Path;

/// Maximum size of a file with certificates or a key in bytes.
const MAX_FILE: u64 = 16 << 20;

/// Maximum number of files of `tls-ca-cert-dir`.
const MAX_FILES: usize = 10_000;

/// Marks of a key with a password, in its two forms.
const ENCRYPTED: [&str; 2] = ["BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED"];

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    // The memory grows with the bytes that are there.
    open_regular(path)?.take(MAX_FILE).read_to_end(&mut text)?;
    Ok(text)
}

/// Returns the reason without the number that Rust appends.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Reads the file of a directive.
fn read_for(directive: &'static str, path: &str) -> std::result::Result<Vec<u8>, TlsError> {
    read(Path::new(path))
        .map_err(|error| TlsError::new(directive, format!("{path}: {}", reason(&error))))
}

/// Returns the certificates of a text.
fn certificates(text: &[u8]) -> std::result::Result<Vec<CertificateDer<'static>>, String> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    found.map_err(|error| pem_reason(&error))
}

/// Returns the reason why a text cannot be parsed.
fn pem_reason(error: &Error) -> String {
    match error {
        Error::MissingSectionEnd { .. } => "a section of it has no end".to_owned(),
        Error::IllegalSectionStart { .. } => "a section of it has no right beginning".to_owned(),
        error => error.to_string(),
    }
}

type TlsResult<T> = std::result::Result<T, TlsError>;

/// An error about a file.
fn of<T>(directive: &'static str, path: &str, reason: &str) -> TlsResult<T> {
    Err(TlsError::new(directive, format!("{path}: {reason}")))
}

/// Returns a certificate, and those between it and its authority.
pub(super) fn chain(
    directive: &'static str,
    path: &str,
) -> TlsResult<Vec<CertificateDer<'static>>> {
    match certificates(&read_for(directive, path)?) {
        Ok(chain) if chain.is_empty() => of(directive, path, "it has no certificate in PEM"),
        Ok(chain) => Ok(chain),
        Err(error) => of(directive, path, &error),
    }
}

/// Returns a private key.
pub(super) fn key(directive: &'static str, path: &str) -> TlsResult<PrivateKeyDer<'static>> {
    let text = read_for(directive, path)?;
    let has = |mark: &&str| text.windows(mark.len()).any(|part| part == mark.as_bytes());
    if ENCRYPTED.iter().any(has) {
        return of(directive, path, "the key is encrypted, which is not supported: decrypt it");
    }
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(private) => Ok(private),
        Err(Error::NoItemsFound) => of(directive, path, "it has no private key in PEM"),
        Err(error) => of(directive, path, &pem_reason(&error)),
    }
}

/// The server's certificate, with those between it and its authority, and its key.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Returns the server's certificates and its key.
pub(super) fn identity(settings: &TlsSettings) -> TlsResult<Identity> {
    let Some(cert_path) = &settings.cert_file else {
        return Err(TlsError::new("tls-cert-file", "No tls-cert-file configured!"));
    };
    let Some(key_path) = &settings.key_file else {
        return Err(TlsError::new("tls-key-file", "No tls-key-file configured!"));
    };
    Ok((chain("tls-cert-file", cert_path)?, key("tls-key-file", key_path)?))
}

/// Returns the error of a certificate and a key that cannot be used together.
pub(super) fn mismatch(settings: &TlsSettings, error: &rustls::Error) -> TlsError {
    let name = |path: &Option<String>| path.clone().unwrap_or_default();
    let (cert, key) = (name(&settings.cert_file), name(&settings.key_file));
    match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsError::new("tls-key-file", format!("{key}: it is not the key of {cert}"))
        }
        rustls::Error::InvalidCertificate(_) => {
            TlsError::new("tls-cert-file", format!("{cert}: {error}"))
        }
        error => TlsError::new("tls-key-file", format!("{key}: {error}")),
    }
}

/// Adds the authorities of a file.
pub(super) fn add_authorities(
    roots: &mut RootCertStore,
    directive: &'static str,
    path: &str,
) -> TlsResult<()> {
    let found = chain(directive, path)?;
    let (added, ignored) = roots.add_parsable_certificates(found);
    if added == 0 {
        return of(directive, path, "it has no certificate of an authority that can be used");
    }
    if ignored > 0 {
        tracing::warn!("{directive} {path}: {ignored} certificates cannot be used");
    }
    Ok(())
}

/// Adds the authorities of all files of a directory.
pub(super) fn add_directory(
    roots: &mut RootCertStore,
    directive: &'static str,
    path: &str,
) -> TlsResult<()> {
    let fails =
        |error: std::io::Error| TlsError::new(directive, format!("{path}: {}", reason(&error)));
    let before = roots.len();
    for entry in fs::read_dir(path).map_err(fails)?.take(MAX_FILES) {
        let file = entry.map_err(fails)?.path();
        if !file.is_file() {
            continue;
        }
        // Files of another kind may lie beside the certificates.
        let text = read(&file).map_err(|error| error.to_string());
        match text.and_then(|text| certificates(&text)) {
            Ok(found) => _ = roots.add_parsable_certificates(found),
            Err(error) => tracing::warn!("{directive}: {}: {error}", file.display()),
        }
    }
    if roots.len() == before {
        return of(directive, path, "no file in it has a certificate that can be used");
    }
    Ok(())
}

/// Returns the authorities that vouch for clients.
pub(super) fn authorities(settings: &TlsSettings) -> TlsResult<RootCertStore> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &settings.ca_cert_file {
        add_authorities(&mut roots, "tls-ca-cert-file", path)?;
    }
    if let Some(path) = &settings.ca_cert_dir {
        add_directory(&mut roots, "tls-ca-cert-dir", path)?;
    }
    if roots.is_empty() {
        let reason = "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when \
            tls-auth-clients is enabled!";
        return Err(TlsError::new("tls-ca-cert-file", reason));
    }
    Ok(roots)
}
