//! Certificates for tests: an authority, and those that it issues. They have the parts of X.509
//! that TLS needs, in DER, with keys on the curve P-256.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 2;
const BIT_STRING: u8 = 3;
const OCTET_STRING: u8 = 4;
const OBJECT: u8 = 6;
const UTF8: u8 = 12;
const TIME: u8 = 23;

/// ecdsa-with-SHA256, id-ecPublicKey, prime256v1, commonName, basicConstraints, subjectAltName.
const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const EC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut out = vec![tag];
    match content.len() {
        len @ 0..128 => out.push(len as u8),
        len @ 128..256 => out.extend([0x81, len as u8]),
        len => {
            out.push(0x82);
            out.extend((len as u16).to_be_bytes());
        }
    }
    out.extend(content);
    out
}

fn algorithm() -> Vec<u8> {
    der(SEQUENCE, &[&der(OBJECT, &[ECDSA_SHA256])])
}

fn name(common: &str) -> Vec<u8> {
    let pair = der(SEQUENCE, &[&der(OBJECT, &[COMMON_NAME]), &der(UTF8, &[common.as_bytes()])]);
    der(SEQUENCE, &[&der(SET, &[&pair])])
}

fn pem(label: &str, der: &[u8]) -> String {
    let mut out = format!("-----BEGIN {label}-----\n");
    for line in STANDARD.encode(der).as_bytes().chunks(64) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    out + &format!("-----END {label}-----\n")
}

/// A key, and how it is stored.
struct Key {
    pair: EcdsaKeyPair,
    pkcs8: Vec<u8>,
}

impl Key {
    fn new() -> Self {
        let pkcs8 =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new());
        let pkcs8 = pkcs8.expect("a key").as_ref().to_vec();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &pkcs8);
        Self { pair: pair.expect("the same key"), pkcs8 }
    }
}

/// An authority.
pub(crate) struct Authority {
    name: String,
    key: Key,
    certificate: Vec<u8>,
}

/// A certificate and its key, in PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = Key::new();
        let certificate = certificate(name, name, &key, &key, true);
        Self { name: name.to_owned(), key, certificate }
    }

    pub(crate) fn pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    pub(crate) fn der(&self) -> Vec<u8> {
        self.certificate.clone()
    }

    /// Issues a certificate for localhost and 127.0.0.1.
    pub(crate) fn issue(&self, name: &str) -> Issued {
        let key = Key::new();
        let certificate = certificate(name, &self.name, &key, &self.key, false);
        Issued {
            certificate: pem("CERTIFICATE", &certificate),
            key: pem("PRIVATE KEY", &key.pkcs8),
        }
    }
}

fn certificate(
    subject: &str,
    issuer: &str,
    key: &Key,
    signer: &Key,
    is_authority: bool,
) -> Vec<u8> {
    static SERIAL: AtomicU8 = AtomicU8::new(1);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed) & 0x7f;
    let of_key = der(SEQUENCE, &[&der(OBJECT, &[EC_KEY]), &der(OBJECT, &[P256])]);
    let point = der(BIT_STRING, &[&[0], key.pair.public_key().as_ref()]);
    let extension = if is_authority {
        // CA: true.
        let value = der(SEQUENCE, &[&[1, 1, 0xff]]);
        let critical: &[u8] = &[1, 1, 0xff];
        let value = der(OCTET_STRING, &[&value]);
        der(SEQUENCE, &[&der(OBJECT, &[BASIC_CONSTRAINTS]), critical, &value])
    } else {
        let value = der(SEQUENCE, &[&der(0x82, &[b"localhost"]), &der(0x87, &[&[127, 0, 0, 1]])]);
        der(SEQUENCE, &[&der(OBJECT, &[ALT_NAME]), &der(OCTET_STRING, &[&value])])
    };
    let valid = der(SEQUENCE, &[&der(TIME, &[b"200101000000Z"]), &der(TIME, &[b"491231235959Z"])]);
    let signed = der(
        SEQUENCE,
        &[
            &der(0xa0, &[&der(INTEGER, &[&[2]])]),
            &der(INTEGER, &[&[serial.max(1)]]),
            &algorithm(),
            &name(issuer),
            &valid,
            &name(subject),
            &der(SEQUENCE, &[&of_key, &point]),
            &der(0xa3, &[&der(SEQUENCE, &[&extension])]),
        ],
    );
    let signature = signer.pair.sign(&SystemRandom::new(), &signed).expect("a signature");
    der(SEQUENCE, &[&signed, &algorithm(), &der(BIT_STRING, &[&[0], signature.as_ref()])])
}

/// Files with the certificates of a server and of a client.
pub(crate) struct Files {
    dir: PathBuf,
    pub(crate) authority: Authority,
    pub(crate) client: Issued,
}

impl Files {
    /// Writes `ca.crt`, `server.crt` and `server.key`.
    pub(crate) fn in_dir(dir: &Path) -> Self {
        let authority = Authority::new("authority");
        let client = authority.issue("client");
        let files = Self { dir: dir.to_owned(), authority, client };
        fs::write(files.path("ca.crt"), files.authority.pem()).expect("written");
        files.renew();
        for (name, text) in
            [("client.crt", &files.client.certificate), ("client.key", &files.client.key)]
        {
            fs::write(files.path(name), text).expect("written");
        }
        files
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Gives the server another certificate.
    pub(crate) fn renew(&self) {
        let server = self.authority.issue("server");
        fs::write(self.path("server.crt"), server.certificate).expect("written");
        fs::write(self.path("server.key"), server.key).expect("written");
    }
}
