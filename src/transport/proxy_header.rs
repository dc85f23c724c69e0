//! The header of the PROXY protocol, versions 1 and 2, which names the client behind a proxy.

use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Beginning of a header of version 2.
const SIGNATURE: [u8; 12] = [13, 10, 13, 10, 0, 13, 10, b'Q', b'U', b'I', b'T', 10];

/// Beginning of a header of version 1.
const WORD: &[u8] = b"PROXY ";

/// Maximum length of a header of version 1, with the end of its line.
const MAX_LINE: usize = 107;

/// Maximum length of a header of version 2 behind its first 16 bytes.
const MAX_REST: usize = 4096;

/// The end of a line.
const END: &[u8] = &[13, 10];

/// Reads the header, and nothing behind it. Returns the client's address; `None` if the proxy speaks
/// for itself, or does not tell.
///
/// # Errors
/// There is no such header, or the stream is broken.
pub async fn read_header(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<SocketAddr>> {
    // Every header is longer.
    let mut head = [0; SIGNATURE.len()];
    stream.read_exact(&mut head).await?;
    if head == SIGNATURE {
        return read_binary(stream).await;
    }
    if !head.starts_with(WORD) {
        return Err(invalid("it does not begin with a PROXY header"));
    }
    let mut line = head.to_vec();
    while !line.ends_with(END) {
        if line.len() == MAX_LINE {
            return Err(invalid("the line of its PROXY header is too long"));
        }
        line.push(stream.read_u8().await?);
    }
    line.truncate(line.len() - END.len());
    parse_line(&line).ok_or_else(|| invalid("the line of its PROXY header is malformed"))
}

fn invalid(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidData, reason)
}

/// Parses a line without its end.
fn parse_line(line: &[u8]) -> Option<Option<SocketAddr>> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ').skip(1);
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let (source, _target) = (words.next()?, words.next()?);
    let (port, _target_port) = (words.next()?, words.next()?);
    let source: IpAddr = match family {
        "TCP4" => IpAddr::V4(source.parse().ok()?),
        "TCP6" => IpAddr::V6(source.parse().ok()?),
        _ => return None,
    };
    words.next().is_none().then_some(Some(SocketAddr::new(source, port.parse().ok()?)))
}

async fn read_binary(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<SocketAddr>> {
    let (version_and_command, family) = (stream.read_u8().await?, stream.read_u8().await?);
    let len = usize::from(stream.read_u16().await?);
    if len > MAX_REST {
        return Err(invalid("its PROXY header is too long"));
    }
    let mut rest = vec![0; len];
    stream.read_exact(&mut rest).await?;
    match version_and_command {
        // The proxy itself, as for a check of health.
        0x20 => return Ok(None),
        0x21 => {}
        _ => return Err(invalid("its PROXY header is of another version")),
    }
    let address = match family {
        // TCP over IPv4: two addresses, two ports. Others may follow.
        0x11 => rest.first_chunk::<12>().map(|parts| {
            let source = Ipv4Addr::new(parts[0], parts[1], parts[2], parts[3]);
            SocketAddr::from((source, u16::from_be_bytes([parts[8], parts[9]])))
        }),
        0x21 => rest.first_chunk::<36>().map(|parts| {
            let source = u128::from_be_bytes(parts[..16].try_into().unwrap_or_default());
            let port = u16::from_be_bytes([parts[32], parts[33]]);
            SocketAddr::from((Ipv6Addr::from_bits(source), port))
        }),
        // Unspecified, datagrams, or a Unix socket: there is no address to show.
        _ => return Ok(None),
    };
    address.map(Some).ok_or_else(|| invalid("its PROXY header is too short"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a header from bytes, with something behind it.
    fn read(bytes: &[u8]) -> std::result::Result<Option<SocketAddr>, String> {
        let all = [bytes, b"PING"].concat();
        let mut stream = &all[..];
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let read = std::pin::pin!(read_header(&mut stream)).poll(&mut cx);
        let std::task::Poll::Ready(read) = read else { panic!("bytes are there at once") };
        if read.is_ok() {
            assert_eq!(stream, b"PING");
        }
        read.map_err(|error| error.to_string())
    }

    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let len = (rest.len() as u16).to_be_bytes();
        [&SIGNATURE[..], &[command, family], &len, rest].concat()
    }

    #[test]
    fn both_versions_name_the_client() {
        let client = |text: &str| Ok(Some(text.parse().expect("an address")));
        let line = |text: &str| [text.as_bytes(), END].concat();
        assert_eq!(read(&line("PROXY TCP4 1.2.3.4 5.6.7.8 1111 6379")), client("1.2.3.4:1111"));
        assert_eq!(read(&line("PROXY TCP6 fd00::1 ::1 1111 6379")), client("[fd00::1]:1111"));
        assert_eq!(read(&line("PROXY UNKNOWN")), Ok(None));
        assert_eq!(read(&line("PROXY UNKNOWN ffff::1 ffff::2 1 2")), Ok(None));
        let four = [1, 2, 3, 4, 5, 6, 7, 8, 0x04, 0x57, 0x18, 0xeb];
        assert_eq!(read(&binary(0x21, 0x11, &four)), client("1.2.3.4:1111"));
        // With further values, as some proxies send them.
        assert_eq!(
            read(&binary(0x21, 0x11, &[&four[..], &[3, 0, 1, 7]].concat())),
            client("1.2.3.4:1111")
        );
        let mut six = [0; 36];
        (six[15], six[32], six[33]) = (1, 0x04, 0x57);
        assert_eq!(read(&binary(0x21, 0x21, &six)), client("[::1]:1111"));
        assert_eq!(read(&binary(0x20, 0, &[])), Ok(None));
        assert_eq!(read(&binary(0x21, 0x31, &[0; 216])), Ok(None));
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let cases: [(&[u8], &str); 9] = [
            (&b"*1\r\n$4\r\nPING\r\n"[..], "does not begin with"),
            (b"PROXY TCP4 1.2.3.4 5.6.7.8 1111\r\n", "malformed"),
            (b"PROXY TCP4 ::1 5.6.7.8 1111 6379\r\n", "malformed"),
            (b"PROXY TCP4 1.2.3.4 5.6.7.8 99999 6379\r\n", "malformed"),
            (b"PROXY UDP4 1.2.3.4 5.6.7.8 1111 6379\r\n", "malformed"),
            (&[&b"PROXY "[..], &[b'x'; 200]].concat(), "too long"),
            (&binary(0x11, 0x11, &[0; 12]), "another version"),
            (&binary(0x21, 0x11, &[0; 11]), "too short"),
            (&binary(0x21, 0x11, &[0; MAX_REST + 1]), "too long"),
        ];
        for (bytes, reason) in cases {
            let error = read(bytes).expect_err("no header");
            assert!(error.contains(reason), "{error}: {}", bytes.escape_ascii());
        }
    }
}
