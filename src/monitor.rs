//! MONITOR: shows every command that runs to the monitoring clients.

use crate::clients::{Client, ClientState};
use crate::config::{OutputBufferLimits, quote_into};
use crate::secrets;
use bytes::Bytes;
use flagstone_wire::resp::{Args, Proto, Reply};
use fnv::FnvHashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Monitoring clients.
#[derive(Debug, Default)]
pub struct Monitors {
    any: AtomicBool,
    clients: Mutex<FnvHashMap<u64, Arc<Client>>>,
}

/// Registration of a monitoring connection, which ends when this is dropped.
#[derive(Debug)]
pub struct Monitoring {
    monitors: Arc<Monitors>,
    client: Arc<Client>,
}

/// A command to be shown.
pub struct Line<'a> {
    /// Time in microseconds since the Unix epoch.
    pub now_us: u64,
    pub db: u32,
    /// Source of the command: an address, or "lua".
    pub source: &'a str,
    pub args: Args<'a>,
}

impl Line<'_> {
    /// Returns its text, cut at `max` bytes, because no client may receive more.
    fn text(&self, max: u64) -> String {
        let secret = secrets::positions(self.args);
        let (seconds, micros) = (self.now_us / 1_000_000, self.now_us % 1_000_000);
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = write!(text, "{seconds}.{micros:06} [{} {}]", self.db, self.source);
        for (at, arg) in self.args.iter().enumerate() {
            let left = usize::try_from(max).unwrap_or(usize::MAX).saturating_sub(text.len());
            if left == 0 {
                break;
            }
            text.push(' ');
            let arg = if secret.contains(&at) { secrets::HIDDEN } else { arg };
            quote_into(&mut text, &arg[..arg.len().min(left)]);
        }
        text
    }
}

impl Monitors {
    fn lock(&self) -> MutexGuard<'_, FnvHashMap<u64, Arc<Client>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if any client monitors.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Registers a monitoring client.
    pub fn add(self: &Arc<Self>, client: &Arc<Client>) -> Monitoring {
        let mut clients = self.lock();
        clients.insert(client.id, client.clone());
        self.any.store(true, Ordering::Relaxed);
        client.set(ClientState::MONITOR, true);
        Monitoring { monitors: self.clone(), client: client.clone() }
    }

    /// Shows a command.
    #[cold]
    pub fn tell(&self, line: &Line<'_>, limits: &OutputBufferLimits, now_ms: u64) {
        let hard = [&limits.normal, &limits.pubsub].map(|limit| limit.hard_bytes);
        let max = if hard.contains(&0) { hard[1] } else { hard[0].max(hard[1]) };
        let text = line.text(if max == 0 { u64::MAX } else { max });
        let mut reply = Reply::new(Proto::Resp2);
        reply.simple(&text);
        let line = Bytes::from(reply.into_bytes());
        // Under the lock, so that all clients see the same order.
        let clients = self.lock();
        for client in clients.values() {
            client.push(line.clone(), limits, now_ms);
        }
    }
}

impl Drop for Monitoring {
    fn drop(&mut self) {
        let mut clients = self.monitors.lock();
        clients.remove(&self.client.id);
        self.monitors.any.store(!clients.is_empty(), Ordering::Relaxed);
        self.client.set(ClientState::MONITOR, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use crate::transport::PeerAddr;
    use flagstone_wire::resp::OwnedArgs;
    use std::net::{Ipv4Addr, SocketAddr};

    /// Returns the text of a command at a fixed time.
    fn text(words: &[&[u8]], max: u64) -> String {
        let words: OwnedArgs = words.iter().collect();
        let args = words.args();
        let line = Line { now_us: 1_339_518_083_007_412, db: 3, source: "1.2.3.4:5", args };
        line.text(max)
    }

    #[test]
    fn a_line_is_as_the_reference_writes_it() {
        assert_eq!(
            text(&[b"SET", b"a b", b"\"\\\n\r\t\x07\x08\x00\xff~"], 1000),
            r#"1339518083.007412 [3 1.2.3.4:5] "SET" "a b" "\"\\\n\r\t\a\b\x00\xff~""#
        );
        assert_eq!(text(&[b"PING", b""], 1000), r#"1339518083.007412 [3 1.2.3.4:5] "PING" """#);
    }

    #[test]
    fn secrets_are_hidden() {
        let hidden = |words: &[&[u8]]| text(words, 1000).split_once("] ").unwrap().1.to_owned();
        assert_eq!(hidden(&[b"auth", b"x"]), r#""auth" "(redacted)""#);
        assert_eq!(hidden(&[b"Auth", b"u", b"x"]), r#""Auth" "(redacted)" "(redacted)""#);
        assert_eq!(
            hidden(&[b"HELLO", b"3", b"AUTH", b"u", b"x", b"SETNAME", b"n"]),
            r#""HELLO" "3" "AUTH" "(redacted)" "(redacted)" "SETNAME" "n""#
        );
    }

    #[test]
    fn a_long_line_of_monitor_is_cut() {
        assert!(text(&[b"SET", b"k", &[b'x'; 5000], &[b'y'; 5000]], 100).len() < 120);
    }

    #[test]
    fn a_monitor_gets_lines_until_it_ends() {
        let addr = PeerAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        let client = Arc::new(Client::new(1, (addr.clone(), addr), 0, 0, 1));
        let monitors = Arc::new(Monitors::default());
        let limits = Settings::default().client_output_buffer_limit;
        let args = Args::new(b"ping", &[(0, 4)]);
        let line = Line { now_us: 5, db: 0, source: "lua", args };
        assert!(!monitors.any());
        let monitoring = monitors.add(&client);
        assert!(monitors.any() && client.is(ClientState::MONITOR));
        monitors.tell(&line, &limits, 1);
        assert_eq!(client.outbox.take().copied, b"+0.000005 [0 lua] \"ping\"\r\n");
        drop(monitoring);
        assert!(!monitors.any() && !client.is(ClientState::MONITOR));
        monitors.tell(&line, &limits, 1);
        assert_eq!(client.outbox.size().0, 0);
    }
}
