//! Networks by address and prefix, such as `10.0.0.0/8`.

use std::net::IpAddr;

/// Maximum number of networks in a list.
const MAX_NETWORKS: usize = 256;

/// Addresses with a common prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    /// Number of leading bits that count.
    bits: u32,
}

/// Returns the bits of an address, and how many an address of its kind has.
fn bits_of(address: IpAddr) -> (u128, u32) {
    match address.to_canonical() {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl Network {
    fn parse(word: &str) -> Option<Self> {
        let (address, bits) = word.split_once('/').map_or((word, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().ok()?;
        let all = bits_of(address).1;
        let bits = bits.map_or(Some(all), |bits| bits.parse().ok())?;
        (bits <= all).then_some(Self { address, bits })
    }

    /// Returns true if the address is one of the network.
    pub fn has(&self, address: IpAddr) -> bool {
        let ((own, all), (other, other_all)) = (bits_of(self.address), bits_of(address));
        let rest = all - self.bits;
        all == other_all && (own ^ other).checked_shr(rest).unwrap_or(0) == 0
    }
}

/// Returns the networks of a list; an unreadable word stands for none.
pub(super) fn networks(list: &str) -> Vec<Network> {
    list.split_whitespace().filter_map(Network::parse).collect()
}

/// Returns the canonical form of a list of networks: empty for `no`.
pub(super) fn canonical(words: &[&str]) -> Result<String, String> {
    match words {
        [] | [""] => return Ok(String::new()),
        [word] if word.eq_ignore_ascii_case("no") => return Ok(String::new()),
        [word] if word.eq_ignore_ascii_case("yes") => {
            return Err(
                "name the addresses or networks of the proxies: with 'yes' any client could \
                        choose its address"
                    .to_owned(),
            );
        }
        _ => {}
    }
    if words.len() > MAX_NETWORKS {
        return Err(format!("at most {MAX_NETWORKS} networks are allowed"));
    }
    match words.iter().find(|word| Network::parse(word).is_none()) {
        Some(word) => Err(format!("'{word}' is neither an address nor a network")),
        None => Ok(words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_addresses_with_its_prefix() {
        let has = |network: &str, address: &str| {
            Network::parse(network).expect("a network").has(address.parse().expect("an address"))
        };
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("127.0.0.1", "127.0.0.1") && !has("127.0.0.1", "127.0.0.2"));
        assert!(has("0.0.0.0/0", "1.2.3.4") && !has("0.0.0.0/0", "::1"));
        assert!(has("fd00::/8", "fd12::1") && !has("fd00::/8", "fe00::1"));
        assert!(has("::/0", "::1") && has("::1", "::1"));
        // As a socket for both families shows it.
        assert!(has("10.0.0.0/8", "::ffff:10.1.2.3"));
    }

    #[test]
    fn lists_are_checked_and_trust_nobody_by_default() {
        assert_eq!(canonical(&["no"]).as_deref(), Ok(""));
        assert_eq!(canonical(&["10.0.0.0/8", "::1"]).as_deref(), Ok("10.0.0.0/8 ::1"));
        assert!(canonical(&["yes"]).is_err_and(|reason| reason.contains("choose its address")));
        for wrong in ["10.0.0.0/33", "example.com", "::1/129", "10.0.0.0/", "/8"] {
            assert!(canonical(&[wrong]).is_err(), "{wrong}");
        }
    }
}
