//! Asking a running server something.

use anyhow::{Context, Result, bail};
use clap::Args;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// Longest reply that is taken.
const MAX_REPLY: usize = 64 << 10;

/// Where the server is.
#[derive(Args, Debug)]
pub(super) struct ServerArgs {
    /// Address of the server that has the data directory open, if one has
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    server: String,
    /// Its password
    #[arg(long, env = "FLAGSTONE_PASSWORD", hide_env_values = true)]
    password: Option<String>,
}

impl ServerArgs {
    /// Sends a command, and waits for its reply: one line, or one string.
    pub(super) fn ask(&self, command: &[&str]) -> Result<String> {
        let stream = TcpStream::connect(&self.server)
            .with_context(|| format!("connecting to the server at {}", self.server))?;
        let mut line = BufReader::new(stream);
        if let Some(password) = &self.password {
            ask(&mut line, &["AUTH", password])?;
        }
        ask(&mut line, command).with_context(|| format!("the server at {}", self.server))
    }
}

fn ask(stream: &mut BufReader<TcpStream>, command: &[&str]) -> Result<String> {
    let mut request = format!("*{}\r\n", command.len());
    for word in command {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.get_mut().write_all(request.as_bytes())?;
    let mut line = String::new();
    stream.by_ref().take(MAX_REPLY as u64).read_line(&mut line)?;
    let line = line.trim_end();
    match line.split_at_checked(1) {
        Some(("+", text)) => Ok(text.to_owned()),
        Some(("-", text)) => bail!("{text}"),
        Some(("$", length)) => {
            let length: usize = length.parse().context("the length of a reply")?;
            if length > MAX_REPLY {
                bail!("a reply of {length} bytes");
            }
            let mut text = vec![0; length + 2];
            stream.read_exact(&mut text)?;
            text.truncate(length);
            Ok(String::from_utf8(text)?)
        }
        _ => bail!("an answer that was not expected: {line:?}"),
    }
}
