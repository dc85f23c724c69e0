//! The file `addresses` in a data directory: where the server that has it open listens, so that the
//! subcommands find it. The lock of the directory tells if there is such a server.

use super::Endpoint;
use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{self, Path};

const NAME: &str = "addresses";

/// Writes the file, for its owner only. The server runs without it, too: a failure is logged.
pub fn write<'a>(dir: &Path, endpoints: impl Iterator<Item = &'a Endpoint>) {
    let lines: String = endpoints.map(|endpoint| format!("{}\n", absolute(endpoint))).collect();
    if let Err(error) = replace(dir, &lines) {
        let path = dir.join(NAME);
        tracing::warn!("the addresses cannot be written to {}: {error}", path.display());
    }
}

/// Returns the endpoint; the path of a Unix socket does not depend on the process's directory.
fn absolute(endpoint: &Endpoint) -> Endpoint {
    match endpoint {
        Endpoint::Unix(path) => {
            let path =
                path::absolute(path).ok().and_then(|path| path.into_os_string().into_string().ok());
            path.map_or_else(|| endpoint.clone(), Endpoint::Unix)
        }
        _ => endpoint.clone(),
    }
}

fn replace(dir: &Path, lines: &str) -> io::Result<()> {
    let (path, new) = (dir.join(NAME), dir.join(format!("{NAME}.new")));
    let mut file =
        fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(lines.as_bytes())?;
    drop(file);
    fs::rename(new, path)
}

/// Returns the endpoints at which the server of a data directory may be reached, the best one first:
/// Unix sockets, then addresses of this machine, then those without TLS.
pub fn read(dir: &Path) -> Vec<Endpoint> {
    let text = fs::read_to_string(dir.join(NAME)).unwrap_or_default();
    let mut found: Vec<Endpoint> = text.lines().filter_map(endpoint).collect();
    found.sort_by_key(|endpoint| match endpoint {
        Endpoint::Unix(_) => (0, false),
        Endpoint::Tcp(addr) => (1, !addr.ip().is_loopback()),
        Endpoint::Tls(addr) => (2, !addr.ip().is_loopback()),
    });
    found
}

/// Returns the endpoint of a line of the file.
fn endpoint(line: &str) -> Option<Endpoint> {
    let (kind, place) = line.split_once(' ')?;
    Some(match kind {
        "unix" => Endpoint::Unix(place.to_owned()),
        "tcp" => Endpoint::Tcp(reachable(place.parse().ok()?)),
        "tls" => Endpoint::Tls(reachable(place.parse().ok()?)),
        _ => return None,
    })
}

/// Returns the address to connect to for one that a server listens on.
fn reachable(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    (ip, addr.port()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_best_address_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()), []);
        let tcp = |text: &str| Endpoint::Tcp(text.parse().unwrap());
        let tls = |text: &str| Endpoint::Tls(text.parse().unwrap());
        let unix = |text: &str| Endpoint::Unix(text.to_owned());
        let here = path::absolute("s").unwrap();
        for (written, found) in [
            (
                vec![tcp("192.0.2.1:7"), tcp("127.0.0.1:7")],
                vec![tcp("127.0.0.1:7"), tcp("192.0.2.1:7")],
            ),
            (
                vec![tls("127.0.0.1:8"), tcp("0.0.0.0:9")],
                vec![tcp("127.0.0.1:9"), tls("127.0.0.1:8")],
            ),
            (vec![tcp("[::]:9"), unix("/a b")], vec![unix("/a b"), tcp("[::1]:9")]),
            (vec![unix("s")], vec![unix(here.to_str().unwrap())]),
        ] {
            write(dir.path(), written.iter());
            assert_eq!(read(dir.path()), found, "{written:?}");
        }
        fs::write(dir.path().join(NAME), "tcp\nudp 1.2.3.4:5\ntls here\n").unwrap();
        assert_eq!(read(dir.path()), []);
        let mode = fs::metadata(dir.path().join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
