//! A client connection to a running server.

use anyhow::{Context, Result, anyhow, bail};
use std::io::{BufReader, BufWriter, Read, Write};
use std::net::TcpStream;

/// Bytes that are read and written at a time.
const BUFFER_LEN: usize = 64 << 10;
/// Maximum nesting depth of replies.
const DEPTH_MAX: usize = 8;
/// Maximum length of a reply's line in bytes.
const LINE_MAX: usize = 64 << 10;

/// Address and login of the server, with the options of redis-cli.
#[derive(clap::Args)]
pub(super) struct Server {
    /// Host of the server
    #[arg(short = 'h', long, default_value = "127.0.0.1")]
    host: String,
    /// Port of the server
    #[arg(short, long, default_value_t = 6379)]
    port: u16,
    /// User to log in as
    #[arg(long)]
    user: Option<String>,
    /// Password to log in with
    #[arg(short = 'a', long, env = "REDISCLI_AUTH", hide_env_values = true)]
    pass: Option<String>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A server's address, and how to log in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    host: String,
    port: u16,
    user: Option<String>,
    pass: Option<String>,
    /// The database that a URI names.
    pub(super) database: Option<u64>,
}

impl Server {
    /// Returns the address: that of the URI if there is one, else that of the options.
    ///
    /// # Errors
    /// If the URI is invalid.
    pub(super) fn address(&self, uri: Option<&str>) -> Result<Address> {
        let Some(uri) = uri else {
            return Ok(Address {
                host: self.host.clone(),
                port: self.port,
                user: self.user.clone(),
                pass: self.pass.clone(),
                database: None,
            });
        };
        let mut address = Address::parse(uri).with_context(|| {
            format!("'{uri}' is not of the form redis://[[user]:password@]host[:port][/database]")
        })?;
        address.user = address.user.or_else(|| self.user.clone());
        address.pass = address.pass.or_else(|| self.pass.clone());
        Ok(address)
    }
}

impl Address {
    fn parse(uri: &str) -> Result<Self> {
        let rest = uri.strip_prefix("redis://").context("it does not begin with redis://")?;
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(l, r)| (Some(l), r));
        let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, pass) = match login.map(|login| login.split_once(':').unwrap_or(("", login))) {
            None => (None, None),
            Some((user, pass)) => (Some(decoded(user)?), Some(decoded(pass)?)),
        };
        let (host, port) = match place.rsplit_once(':') {
            // An IPv6 address without a port.
            Some((_, port)) if port.ends_with(']') => (place, ""),
            Some(parts) => parts,
            None => (place, ""),
        };
        let port = if port.is_empty() { 6379 } else { port.parse().context("the port")? };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.is_empty() { "127.0.0.1" } else { host }.to_owned();
        let database = match database {
            "" => None,
            database => Some(database.parse().context("the database")?),
        };
        Ok(Address { host, port, user: user.filter(|user| !user.is_empty()), pass, database })
    }

    /// Connects and logs in.
    ///
    /// # Errors
    /// If there is no such server, or it refuses.
    pub(super) fn connect(&self) -> Result<ServerConnection> {
        let (host, port) = (&self.host, self.port);
        let stream = TcpStream::connect((host.as_str(), port))
            .with_context(|| format!("no connection to {host}:{port}"))?;
        stream.set_nodelay(true).context("the connection's options")?;
        let mut connection = ServerConnection {
            input: BufReader::with_capacity(BUFFER_LEN, stream.try_clone()?),
            output: BufWriter::with_capacity(BUFFER_LEN, stream),
        };
        if let Some(pass) = &self.pass {
            let mut login = vec![&b"AUTH"[..]];
            login.extend(self.user.as_ref().map(|user| user.as_bytes()));
            login.push(pass.as_bytes());
            connection.call(&login)?;
        }
        connection.call(&[b"CLIENT", b"SETNAME", b"flagstone"])?;
        Ok(connection)
    }
}

/// Decodes a part of a URI, in which `%` and two digits stand for a byte.
fn decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let (digits, tail) = rest.split_at_checked(2).context("a byte behind %")?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits)?, 16)?);
            rest = tail;
        } else {
            bytes.push(byte);
        }
    }
    Ok(String::from_utf8(bytes)?)
}

/// A reply of RESP2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the bytes of a bulk string.
    ///
    /// # Errors
    /// If it is another kind of reply.
    pub(super) fn into_bulk(self) -> Result<Vec<u8>> {
        match self {
            Reply::Bulk(bytes) => Ok(bytes),
            other => Err(anyhow!("unexpected reply {other:?}")),
        }
    }

    /// Returns the elements of an array.
    ///
    /// # Errors
    /// If it is another kind of reply.
    pub(super) fn into_array(self) -> Result<Vec<Reply>> {
        match self {
            Reply::Array(elements) => Ok(elements),
            other => Err(anyhow!("unexpected reply {other:?}")),
        }
    }

    /// Returns the integer.
    ///
    /// # Errors
    /// If it is another kind of reply.
    pub(super) fn integer(&self) -> Result<i64> {
        match self {
            Reply::Integer(integer) => Ok(*integer),
            other => Err(anyhow!("unexpected reply {other:?}")),
        }
    }
}

/// A connection.
pub(super) struct ServerConnection {
    pub(super) input: Input,
    pub(super) output: Output,
}

pub(super) type Input = BufReader<TcpStream>;
pub(super) type Output = BufWriter<TcpStream>;

impl ServerConnection {
    /// Runs one command.
    ///
    /// # Errors
    /// If the connection is lost, or the server answers with an error.
    pub(super) fn call(&mut self, command: &[&[u8]]) -> Result<Reply> {
        self.send(command)?;
        self.output.flush().context("the connection is lost")?;
        match self.receive()? {
            Reply::Error(error) => {
                let name = String::from_utf8_lossy(command.first().unwrap_or(&&b""[..]));
                bail!("the server answers {name} with: {error}")
            }
            reply => Ok(reply),
        }
    }

    /// Writes a command; [`ServerConnection::flush`] sends it.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(super) fn send(&mut self, command: &[&[u8]]) -> Result<()> {
        write_command(&mut self.output, command).context("the connection is lost")
    }

    /// Sends buffered commands.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.output.flush().context("the connection is lost")
    }

    /// Returns the number of bytes of the next reply; `None` if it is null. The caller reads the
    /// bytes, and the end of their line, from `input`.
    ///
    /// # Errors
    /// If the connection is lost, or the reply is of another kind.
    pub(super) fn receive_bulk_len(&mut self) -> Result<Option<u64>> {
        let line = read_line(&mut self.input)?;
        let len = line.strip_prefix('$').and_then(|text| text.parse::<i64>().ok());
        let len = len.with_context(|| format!("unexpected reply {line}"))?;
        Ok(u64::try_from(len).ok())
    }

    /// Returns the next reply.
    ///
    /// # Errors
    /// If the connection is lost, or the bytes are no reply.
    pub(super) fn receive(&mut self) -> Result<Reply> {
        read_reply(&mut self.input, DEPTH_MAX)
    }
}

/// Writes a command.
///
/// # Errors
/// If the connection is lost.
pub(super) fn write_command(output: &mut impl Write, command: &[&[u8]]) -> std::io::Result<()> {
    write!(output, "*{}\r\n", command.len())?;
    for word in command {
        write!(output, "${}\r\n", word.len())?;
        output.write_all(word)?;
        output.write_all(b"\r\n")?;
    }
    Ok(())
}

/// Reads a reply.
///
/// # Errors
/// If the connection is lost, or the bytes are no reply.
pub(super) fn receive(input: &mut Input) -> Result<Reply> {
    read_reply(input, DEPTH_MAX)
}

fn read_reply(input: &mut Input, depth: usize) -> Result<Reply> {
    let line = read_line(input)?;
    let (kind, text) = line.split_at_checked(1).context("an empty line for a reply")?;
    let number = || text.parse::<i64>().context("a malformed reply");
    Ok(match kind {
        "+" => Reply::Status(text.to_owned()),
        "-" => Reply::Error(text.to_owned()),
        ":" => Reply::Integer(number()?),
        "$" => match u64::try_from(number()?) {
            Err(_) => Reply::Null,
            Ok(len) => Reply::Bulk(read_bulk(input, len)?),
        },
        "*" if depth > 0 => match u64::try_from(number()?) {
            Err(_) => Reply::Null,
            Ok(len) => {
                let elements = (0..len).map(|_| read_reply(input, depth - 1));
                Reply::Array(elements.collect::<Result<_>>()?)
            }
        },
        _ => bail!("a malformed reply: {line}"),
    })
}

/// Returns a line, without its end.
fn read_line(input: &mut Input) -> Result<String> {
    use std::io::BufRead;
    let mut line = Vec::new();
    let limit = LINE_MAX as u64;
    input.by_ref().take(limit).read_until(b'\n', &mut line).context("the connection is lost")?;
    let Some(text) = line.strip_suffix(b"\r\n") else {
        bail!("the server has closed the connection")
    };
    Ok(String::from_utf8_lossy(text).into_owned())
}

fn read_bulk(input: &mut Input, len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The memory grows with the bytes that arrive.
    input.by_ref().take(len + 2).read_to_end(&mut bytes).context("the connection is lost")?;
    match bytes.strip_suffix(b"\r\n") {
        Some(text) if text.len() as u64 == len => {
            bytes.truncate(bytes.len() - 2);
            Ok(bytes)
        }
        _ => bail!("the server has closed the connection"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16, login: (&str, &str), database: Option<u64>) -> Address {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Address { host: host.into(), port, user: text(login.0), pass: text(login.1), database }
    }

    #[test]
    fn uris_are_read_as_redis_cli_does() {
        for (uri, expected) in [
            ("redis://", address("127.0.0.1", 6379, ("", ""), None)),
            ("redis://h", address("h", 6379, ("", ""), None)),
            ("redis://h:1/", address("h", 1, ("", ""), None)),
            ("redis://secret@h:1/3", address("h", 1, ("", "secret"), Some(3))),
            ("redis://:p%40x@h/3", address("h", 6379, ("", "p@x"), Some(3))),
            ("redis://u:p@[::1]:7", address("::1", 7, ("u", "p"), None)),
            ("redis://[::1]", address("::1", 6379, ("", ""), None)),
        ] {
            assert_eq!(Address::parse(uri).unwrap(), expected, "{uri}");
        }
        for wrong in ["h:1", "rediss://h", "redis://h:x", "redis://h/x", "redis://a%4@h"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
