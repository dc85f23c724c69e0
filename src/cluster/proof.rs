//! The proof that another server belongs to this cluster: an HMAC with SHA-256 (RFC 2104), by the
//! secret in the map.

use flagstone_storage::cluster::ClusterSecret;
use hmac::{Hmac, Mac};
use sha2::Sha256;

type ProofCode = Hmac<Sha256>;

/// Returns the code of a text and of the parts behind it, each with its length: the same bytes in other
/// parts have another code.
fn code<'p>(
    secret: &ClusterSecret,
    text: &[u8],
    parts: impl Iterator<Item = &'p [u8]>,
) -> Option<ProofCode> {
    // It takes keys of any length.
    let mut code = ProofCode::new_from_slice(secret.bytes()).ok()?;
    code.update(text);
    for part in parts {
        code.update(&(part.len() as u64).to_be_bytes());
        code.update(part);
    }
    Some(code)
}

/// Returns the proof for a text: 64 hexadecimal digits.
pub fn prove(secret: &ClusterSecret, text: &[u8]) -> String {
    prove_parts(secret, text, std::iter::empty())
}

/// Returns the proof for a text and the parts behind it: 64 hexadecimal digits.
pub(super) fn prove_parts<'p>(
    secret: &ClusterSecret,
    text: &[u8],
    parts: impl Iterator<Item = &'p [u8]>,
) -> String {
    let bytes = code(secret, text, parts).map(|code| code.finalize().into_bytes());
    bytes.iter().flatten().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns true if a proof is that of a text. It takes as long for a wrong one.
pub fn is_proven(secret: &ClusterSecret, text: &[u8], proof: &[u8]) -> bool {
    are_proven(secret, text, std::iter::empty(), proof)
}

/// Returns true if a proof is that of a text and the parts behind it. It takes as long for a wrong one.
pub(super) fn are_proven<'p>(
    secret: &ClusterSecret,
    text: &[u8],
    parts: impl Iterator<Item = &'p [u8]>,
    proof: &[u8],
) -> bool {
    let mut bytes = [0; 32];
    let (pairs, rest) = proof.as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return false;
    }
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        let digits = std::str::from_utf8(pair).ok();
        let Some(number) = digits.and_then(|it| u8::from_str_radix(it, 16).ok()) else {
            return false;
        };
        *byte = number;
    }
    code(secret, text, parts).is_some_and(|code| code.verify_slice(&bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_storage::cluster::MapDraft;

    #[test]
    fn a_proof_is_of_one_text_and_one_cluster() {
        let cluster = || MapDraft::create(1, 1000).unwrap().map().clone();
        let (one, other) = (cluster(), cluster());
        let proof = prove(one.secret(), b"beat 1");
        assert_eq!(proof.len(), 64);
        assert!(is_proven(one.secret(), b"beat 1", proof.as_bytes()));
        for (secret, text, proof) in [
            (one.secret(), &b"beat 2"[..], &proof[..]),
            (other.secret(), b"beat 1", &proof),
            (one.secret(), b"beat 1", &proof[1..]),
            (one.secret(), b"beat 1", ""),
            (one.secret(), b"beat 1", &"zz".repeat(32)),
        ] {
            assert!(!is_proven(secret, text, proof.as_bytes()), "{text:?} {proof}");
        }
    }

    #[test]
    fn a_proof_is_of_parts_and_not_only_of_their_bytes() {
        let map = MapDraft::create(1, 1000).unwrap().map().clone();
        let proof = |parts: &[&[u8]]| prove_parts(map.secret(), b"text", parts.iter().copied());
        let whole = proof(&[b"ab", b"c"]);
        let parts = [&b"ab"[..], b"c"];
        assert!(are_proven(map.secret(), b"text", parts.into_iter(), whole.as_bytes()));
        assert!(!are_proven(map.secret(), b"texx", parts.into_iter(), whole.as_bytes()));
        for other in [&[&b"a"[..], b"bc"][..], &[b"abc"], &[b"ab", b"c", b""], &[b"c", b"ab"], &[]]
        {
            assert_ne!(whole, proof(other), "{other:?}");
        }
        assert_eq!(proof(&[]), prove(map.secret(), b"text"));
    }
}
