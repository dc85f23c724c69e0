//! Ciphers by the names that the configuration gives them: those of OpenSSL and of the standards.
//!
//! A list for TLS 1.2 has OpenSSL's grammar: names and groups of names, joined by `+`, each with
//! `!`, `-` or `+` before it or nothing. Names of ciphers that are not supported are passed over, as
//! OpenSSL does with names it does not know, but a list that leaves no cipher is refused.

use super::TlsError;
use crate::config::TlsSettings;
use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::cipher_suite as suite;

/// A cipher of TLS 1.2: the suite, its name in OpenSSL and in the standard, and its groups.
type Cipher = (SupportedCipherSuite, [&'static str; 2], &'static [&'static str]);

/// Groups that every cipher of TLS 1.2 here belongs to.
const COMMON: &[&str] = &[
    "ALL",
    "DEFAULT",
    "COMPLEMENTOFDEFAULT",
    "HIGH",
    "TLSV1.2",
    "ECDHE",
    "EECDH",
    "KECDHE",
    "KEECDH",
    "AEAD",
    "ECDH",
    "FIPS",
];

const TLS12: &[Cipher] = &[
    (
        suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        ["ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"],
        &["ECDSA", "AECDSA", "AES", "AES256", "AESGCM", "SHA384"],
    ),
    (
        suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ["ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"],
        &["ECDSA", "AECDSA", "AES", "AES128", "AESGCM", "SHA256"],
    ),
    (
        suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ["ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"],
        &["ECDSA", "AECDSA", "CHACHA20", "SHA256"],
    ),
    (
        suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        ["ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"],
        &["RSA", "ARSA", "AES", "AES256", "AESGCM", "SHA384"],
    ),
    (
        suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ["ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
        &["RSA", "ARSA", "AES", "AES128", "AESGCM", "SHA256"],
    ),
    (
        suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ["ECDHE-RSA-CHACHA20-POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"],
        &["RSA", "ARSA", "CHACHA20", "SHA256"],
    ),
];

/// Ciphers of TLS 1.3 by their names.
const TLS13: &[(&str, SupportedCipherSuite)] = &[
    ("TLS_AES_256_GCM_SHA384", suite::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", suite::TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", suite::TLS13_CHACHA20_POLY1305_SHA256),
];

/// Returns the ciphers of the settings, the preferred ones first.
pub(super) fn chosen(settings: &TlsSettings) -> Result<Vec<SupportedCipherSuite>, TlsError> {
    let mut chosen = tls13(&settings.ciphersuites)?;
    chosen.extend(tls12(&settings.ciphers)?);
    Ok(chosen)
}

fn tls13(list: &str) -> Result<Vec<SupportedCipherSuite>, TlsError> {
    if list.is_empty() {
        return Ok(TLS13.iter().map(|(_, suite)| *suite).collect());
    }
    let find = |word: &str| TLS13.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
    list.split(':')
        .filter(|word| !word.is_empty())
        .map(|word| match find(word) {
            Some((_, suite)) => Ok(*suite),
            None => {
                let names: Vec<&str> = TLS13.iter().map(|(name, _)| *name).collect();
                let reason = format!("'{word}' is not supported, only {}", names.join(", "));
                Err(TlsError::new("tls-ciphersuites", reason))
            }
        })
        .collect()
}

fn matches((_, names, groups): &Cipher, element: &str) -> bool {
    element.split('+').all(|word| {
        let is = |name: &&str| name.eq_ignore_ascii_case(word);
        names.iter().any(is) || groups.iter().any(is) || COMMON.iter().any(is)
    })
}

fn tls12(list: &str) -> Result<Vec<SupportedCipherSuite>, TlsError> {
    if list.is_empty() {
        return Ok(TLS12.iter().map(|(suite, ..)| *suite).collect());
    }
    let mut chosen: Vec<&Cipher> = Vec::new();
    let mut never: Vec<&Cipher> = Vec::new();
    let elements = list.split([':', ',', ' ', ';']).filter(|element| !element.is_empty());
    // Levels and strengths: the ciphers that are supported are of one strength.
    for element in elements.filter(|element| !element.starts_with('@')) {
        let (sign, element) = match element.split_at(1) {
            (sign @ ("!" | "-" | "+"), rest) => (sign, rest),
            _ => ("", element),
        };
        let (matching, rest): (Vec<&Cipher>, Vec<&Cipher>) =
            chosen.iter().partition(|cipher| matches(cipher, element));
        match sign {
            "" => {
                let is_new = |cipher: &&Cipher| {
                    let same = |other: &&Cipher| other.1 == cipher.1;
                    !chosen.iter().any(same) && !never.iter().any(same)
                };
                let new = TLS12.iter().filter(|cipher| matches(cipher, element));
                let new: Vec<&Cipher> = new.filter(is_new).collect();
                chosen.extend(new);
            }
            "+" => chosen = [rest, matching].concat(),
            sign => {
                chosen = rest;
                if sign == "!" {
                    never.extend(TLS12.iter().filter(|cipher| matches(cipher, element)));
                }
            }
        }
    }
    if chosen.is_empty() {
        let names: Vec<&str> = TLS12.iter().map(|(_, [name, _], _)| *name).collect();
        let reason = format!("the list leaves no cipher; supported are {}", names.join(", "));
        return Err(TlsError::new("tls-ciphers", reason));
    }
    Ok(chosen.into_iter().map(|(suite, ..)| *suite).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<&'static str> {
        let chosen = tls12(list).expect("a list");
        let name = |suite: SupportedCipherSuite| {
            let found = TLS12.iter().find(|(other, ..)| *other == suite);
            found.map_or("", |(_, [name, _], _)| *name)
        };
        chosen.into_iter().map(name).collect()
    }

    #[test]
    fn lists_have_the_grammar_of_openssl() {
        assert_eq!(names("").len(), 6);
        assert_eq!(names("DEFAULT:!MEDIUM").len(), 6);
        assert_eq!(names("HIGH:!aNULL:!MD5:@STRENGTH").len(), 6);
        assert_eq!(
            names("ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA:ECDHE-RSA-AES256-GCM-SHA384"),
            ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"]
        );
        assert_eq!(names("EECDH+AESGCM+aRSA:-AES128"), ["ECDHE-RSA-AES256-GCM-SHA384"],);
        assert_eq!(names("!CHACHA20:ALL:CHACHA20:!ECDSA").len(), 2);
        assert_eq!(names("ecdhe+chacha20:+ECDSA")[1], "ECDHE-ECDSA-CHACHA20-POLY1305");
        assert_eq!(names("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256").len(), 1);
    }

    #[test]
    fn a_list_without_a_cipher_is_refused_by_name() {
        let error = tls12("AES128-SHA:RC4").expect_err("old ones").to_string();
        assert!(error.starts_with("tls-ciphers: the list leaves no cipher"), "{error}");
        let error = tls13("TLS_AES_128_CCM_SHA256").expect_err("unsupported").to_string();
        assert!(error.starts_with("tls-ciphersuites: 'TLS_AES_128_CCM_SHA256' is not"), "{error}");
        assert_eq!(tls13("TLS_AES_128_GCM_SHA256:").expect("one").len(), 1);
    }
}
