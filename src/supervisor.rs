//! The service manager (systemd): tells it when the server is ready, stops, and is alive.

use std::env;
use std::io::Result;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Environment variable with the socket of the service manager.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Environment variables with the microseconds in which it wants to hear from the server, and the
/// process that they are for.
const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";

/// The service manager that has started this process.
#[derive(Debug)]
pub struct Supervisor {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Supervisor {
    /// Returns the manager of this process; `None` if there is none.
    ///
    /// # Errors
    /// Its socket cannot be used.
    pub fn of_process() -> Result<Option<Self>> {
        let Ok(path) = env::var(SOCKET) else { return Ok(None) };
        Self::at(&path).map(Some)
    }

    /// Returns the manager with a socket: a path, or `@` and a name that is in no file system.
    fn at(path: &str) -> Result<Self> {
        let address = match path.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not stop the server.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }

    /// Tells a state, lines of `NAME=value`. It is lost if the manager does not read.
    pub fn tell(&self, state: &str) {
        if let Err(error) = self.socket.send_to_addr(state.as_bytes(), &self.address) {
            tracing::debug!(%error, "the service manager does not hear: {state}");
        }
    }

    /// Returns the time in which the manager wants to hear that the server is alive.
    pub fn watchdog() -> Option<Duration> {
        let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let is_other = |process: u64| process != u64::from(std::process::id());
        if number(WATCHDOG_PROCESS).is_some_and(is_other) {
            return None;
        }
        number(WATCHDOG).filter(|us| *us > 0).map(Duration::from_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_arrive_at_sockets_of_both_kinds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify").display().to_string();
        let abstract_name = format!("flagstone-test-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let at_name = UnixDatagram::bind_addr(&address).unwrap();
        for (name, socket) in [(path.clone(), at_path), (format!("@{abstract_name}"), at_name)] {
            let supervisor = Supervisor::at(&name).unwrap();
            supervisor.tell("READY=1");
            let mut bytes = [0; 100];
            let n = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..n], b"READY=1");
            drop(socket);
            // It is gone, and nothing happens.
            supervisor.tell("STOPPING=1");
        }
    }
}
