//! A client connection to a running server.

use super::link::Link;
use crate::listen::{Endpoint, addresses};
use crate::tls::{self, TlsClientOptions};
use anyhow::{Context, Result, anyhow, bail};
use std::fmt;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Address of a server that is not named.
const HOST: &str = "127.0.0.1";
const PORT: u16 = 6379;

/// Bytes that are read and written at a time.
const BUFFER_LEN: usize = 64 << 10;
/// Maximum nesting depth of replies.
const DEPTH_MAX: usize = 8;
/// Maximum length of a reply's line in bytes.
const LINE_MAX: usize = 64 << 10;

/// Address and login of the server, with the options of redis-cli.
#[derive(clap::Args)]
pub(super) struct Server {
    /// Host of the server [default: 127.0.0.1]
    #[arg(short = 'h', long)]
    host: Option<String>,
    /// Port of the server [default: 6379]
    #[arg(short, long)]
    port: Option<u16>,
    /// Unix socket of the server, in place of host and port
    #[arg(short, long, value_name = "PATH")]
    socket: Option<String>,
    /// User to log in as
    #[arg(long)]
    user: Option<String>,
    /// Password to log in with
    #[arg(short = 'a', long, env = "REDISCLI_AUTH", hide_env_values = true)]
    pass: Option<String>,
    /// Speak TLS
    #[arg(long)]
    tls: bool,
    /// Authorities that may vouch for the server; without, those of the system
    #[arg(long, value_name = "FILE")]
    cacert: Option<String>,
    /// Directory with such files
    #[arg(long, value_name = "DIR")]
    cacertdir: Option<String>,
    /// Certificate to log in with
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<String>,
    /// Private key of that certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<String>,
    /// Name that the server's certificate has to have; without, the host
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// Trust any certificate
    #[arg(long)]
    insecure: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A server's address, and how to log in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    place: ServerPlace,
    user: Option<String>,
    pass: Option<String>,
    /// The database that a URI names.
    pub(super) database: Option<u64>,
    tls: TlsClientOptions,
    /// Name that the server's certificate has to have, if it is not that of the host.
    sni: Option<String>,
}

/// Where a server is.
#[derive(Debug, PartialEq, Eq)]
enum ServerPlace {
    Tcp { host: String, port: u16, is_secure: bool },
    Unix(String),
}

/// The form of URIs.
const FORM: &str = "redis://[[user]:password@]host[:port][/database], rediss://… for TLS, or \
    unix://[[user]:password@]/path[?db=database]";

impl Server {
    /// Returns the address: that of the URI if there is one, else that of the options.
    ///
    /// # Errors
    /// If the URI is invalid.
    pub(super) fn address(&self, uri: Option<&str>) -> Result<Address> {
        let address = match uri {
            // The URI may have a password.
            Some(uri) => {
                Address::parse(uri).with_context(|| format!("it is not of the form {FORM}"))
            }
            None => Ok(Address::at(self.place())),
        }?;
        Ok(self.completed(address))
    }

    /// Returns the address of another server: that of the URI, with the options of TLS. The name of the
    /// certificate is that server's if this one is reached without TLS.
    ///
    /// # Errors
    /// If the URI is invalid.
    pub(super) fn elsewhere(&self, uri: &str) -> Result<Address> {
        let address =
            Address::parse(uri).with_context(|| format!("it is not of the form {FORM}"))?;
        let sni = self.sni.clone().filter(|_| !self.tls);
        Ok(Address { tls: self.tls_options(), sni, ..address })
    }

    fn tls_options(&self) -> TlsClientOptions {
        TlsClientOptions {
            cacert: self.cacert.clone(),
            cacertdir: self.cacertdir.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            insecure: self.insecure,
        }
    }

    /// Returns the address of the server that has a data directory open: that of the options if they
    /// have one, else one that the server has written there.
    pub(super) fn of_directory(&self, dir: Option<&Path>) -> Address {
        let is_named = self.host.is_some() || self.port.is_some() || self.socket.is_some();
        let written = dir.filter(|_| !is_named).map(addresses::read).unwrap_or_default();
        let is_usable = |found: &&Endpoint| !self.tls || matches!(found, Endpoint::Tls(_));
        let place = match written.iter().find(is_usable) {
            Some(Endpoint::Unix(path)) => ServerPlace::Unix(path.clone()),
            Some(Endpoint::Tcp(addr)) => ServerPlace::of(*addr, false),
            Some(Endpoint::Tls(addr)) => ServerPlace::of(*addr, true),
            None => self.place(),
        };
        self.completed(Address::at(place))
    }

    /// Returns the place that the options name.
    fn place(&self) -> ServerPlace {
        match &self.socket {
            Some(path) => ServerPlace::Unix(path.clone()),
            None => ServerPlace::Tcp {
                host: self.host.clone().unwrap_or_else(|| HOST.to_owned()),
                port: self.port.unwrap_or(PORT),
                is_secure: false,
            },
        }
    }

    /// Returns the address, completed by the options that do not name the place.
    fn completed(&self, mut address: Address) -> Address {
        if let ServerPlace::Tcp { is_secure, .. } = &mut address.place {
            *is_secure |= self.tls;
        }
        address.user = address.user.or_else(|| self.user.clone());
        address.pass = address.pass.or_else(|| self.pass.clone());
        address.sni.clone_from(&self.sni);
        address.tls = self.tls_options();
        address
    }
}

impl ServerPlace {
    fn of(addr: SocketAddr, is_secure: bool) -> Self {
        Self::Tcp { host: addr.ip().to_string(), port: addr.port(), is_secure }
    }
}

impl Address {
    fn at(place: ServerPlace) -> Self {
        let tls = TlsClientOptions::default();
        Self { place, user: None, pass: None, database: None, tls, sni: None }
    }

    fn parse(uri: &str) -> Result<Self> {
        let (scheme, rest) = uri.split_once("://").context("it has no scheme")?;
        let is_secure = match scheme {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            "unix" => return Self::parse_unix(rest),
            _ => bail!("its scheme is neither redis nor rediss nor unix"),
        };
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(l, r)| (Some(l), r));
        let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match place.rsplit_once(':') {
            // An IPv6 address without a port.
            Some((_, port)) if port.ends_with(']') => (place, ""),
            Some(parts) => parts,
            None => (place, ""),
        };
        let port = if port.is_empty() { PORT } else { port.parse().context("the port")? };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.is_empty() { HOST } else { host }.to_owned();
        let mut address = Self::at(ServerPlace::Tcp { host, port, is_secure }).with_login(login)?;
        if !database.is_empty() {
            address.database = Some(database.parse().context("the database")?);
        }
        Ok(address)
    }

    fn parse_unix(rest: &str) -> Result<Self> {
        let (login, rest) = match rest.split_once('/') {
            Some(("", _)) => (None, rest),
            Some((login, _)) => {
                let login = login.strip_suffix('@').context("the path")?;
                (Some(login), &rest[login.len() + 1..])
            }
            None => bail!("it has no path"),
        };
        let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
        let mut address = Self::at(ServerPlace::Unix(decoded(path)?)).with_login(login)?;
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let database = option.strip_prefix("db=").context("there is no option but db")?;
            address.database = Some(database.parse().context("the database")?);
        }
        Ok(address)
    }

    fn with_login(mut self, login: Option<&str>) -> Result<Self> {
        if let Some((user, pass)) = login.map(|login| login.split_once(':').unwrap_or(("", login)))
        {
            self.user = Some(decoded(user)?).filter(|user| !user.is_empty());
            self.pass = Some(decoded(pass)?);
        }
        Ok(self)
    }

    fn link(&self) -> Result<Link> {
        match &self.place {
            ServerPlace::Unix(path) => Link::unix(path),
            ServerPlace::Tcp { host, port, is_secure: false } => Link::tcp(host, *port),
            ServerPlace::Tcp { host, port, is_secure: true } => {
                let name = self.sni.as_ref().unwrap_or(host);
                Link::tls(host, *port, tls::client(&self.tls)?, name)
            }
        }
    }

    /// Returns host and port, and true for TLS; `None` for a Unix socket.
    pub(super) fn tcp(&self) -> Option<(&str, u16, bool)> {
        match &self.place {
            ServerPlace::Tcp { host, port, is_secure } => Some((host, *port, *is_secure)),
            ServerPlace::Unix(_) => None,
        }
    }

    /// Returns the user and the password; empty if there is none.
    pub(super) fn login(&self) -> (&str, &str) {
        (self.user.as_deref().unwrap_or_default(), self.pass.as_deref().unwrap_or_default())
    }

    /// Connects and logs in.
    ///
    /// # Errors
    /// If there is no such server, or it refuses.
    pub(super) fn connect(&self) -> Result<ServerConnection> {
        self.greeted(self.link()?)
    }

    /// The same; from then on reads fail when the server says nothing for so long.
    ///
    /// # Errors
    /// As [`Address::connect`].
    pub(super) fn connect_within(&self, limit: Duration) -> Result<ServerConnection> {
        let link = self.link()?;
        link.limit_silence(limit).context("the connection's options")?;
        self.greeted(link)
    }

    fn greeted(&self, link: Link) -> Result<ServerConnection> {
        let mut connection = ServerConnection {
            input: BufReader::with_capacity(BUFFER_LEN, link.clone()),
            output: BufWriter::with_capacity(BUFFER_LEN, link),
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

impl fmt::Display for Address {
    /// Writes the place, without the login.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            ServerPlace::Tcp { host, port, .. } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            ServerPlace::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            ServerPlace::Unix(path) => f.write_str(path),
        }
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

pub(super) type Input = BufReader<Link>;
pub(super) type Output = BufWriter<Link>;

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
        self.receive_len('$')
    }

    /// Returns the number of elements of the next reply, an array; `None` if it is null. The caller
    /// receives the elements.
    ///
    /// # Errors
    /// If the connection is lost, or the reply is of another kind.
    pub(super) fn receive_array_len(&mut self) -> Result<Option<u64>> {
        self.receive_len('*')
    }

    fn receive_len(&mut self, kind: char) -> Result<Option<u64>> {
        let line = read_line(&mut self.input)?;
        let len = line.strip_prefix(kind).and_then(|text| text.parse::<i64>().ok());
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

/// Explains why a read has failed.
fn lost(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => anyhow!("the server does not answer"),
        _ => anyhow::Error::from(error).context("the connection is lost"),
    }
}

/// Returns a line, without its end.
fn read_line(input: &mut Input) -> Result<String> {
    use std::io::BufRead;
    let mut line = Vec::new();
    let limit = LINE_MAX as u64;
    input.by_ref().take(limit).read_until(b'\n', &mut line).map_err(lost)?;
    let Some(text) = line.strip_suffix(b"\r\n") else {
        bail!("the server has closed the connection")
    };
    Ok(String::from_utf8_lossy(text).into_owned())
}

fn read_bulk(input: &mut Input, len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The memory grows with the bytes that arrive.
    input.by_ref().take(len + 2).read_to_end(&mut bytes).map_err(lost)?;
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

    fn with(place: ServerPlace, login: (&str, &str), database: Option<u64>) -> Address {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Address { user: text(login.0), pass: text(login.1), database, ..Address::at(place) }
    }

    fn address(host: &str, port: u16, login: (&str, &str), database: Option<u64>) -> Address {
        with(ServerPlace::Tcp { host: host.into(), port, is_secure: false }, login, database)
    }

    #[test]
    fn uris_are_read_as_redis_cli_does() {
        let secure =
            |host: &str, port| ServerPlace::Tcp { host: host.into(), port, is_secure: true };
        let unix = |path: &str| ServerPlace::Unix(path.into());
        for (uri, expected) in [
            ("redis://", address("127.0.0.1", 6379, ("", ""), None)),
            ("redis://h", address("h", 6379, ("", ""), None)),
            ("redis://h:1/", address("h", 1, ("", ""), None)),
            ("redis://secret@h:1/3", address("h", 1, ("", "secret"), Some(3))),
            ("redis://:p%40x@h/3", address("h", 6379, ("", "p@x"), Some(3))),
            ("redis://u:p@[::1]:7", address("::1", 7, ("u", "p"), None)),
            ("redis://[::1]", address("::1", 6379, ("", ""), None)),
            ("valkey://h", address("h", 6379, ("", ""), None)),
            ("rediss://u:p@h:7/2", with(secure("h", 7), ("u", "p"), Some(2))),
            ("unix:///run/f.sock", with(unix("/run/f.sock"), ("", ""), None)),
            ("unix://u:p@/run/f.sock?db=4", with(unix("/run/f.sock"), ("u", "p"), Some(4))),
            ("unix://:p@/a%20b", with(unix("/a b"), ("", "p"), None)),
        ] {
            assert_eq!(Address::parse(uri).unwrap(), expected, "{uri}");
        }
        for wrong in [
            "h:1",
            "http://h",
            "redis://h:x",
            "redis://h/x",
            "redis://a%4@h",
            "unix://run/f.sock",
            "unix://",
            "unix:///run?x=1",
        ] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
