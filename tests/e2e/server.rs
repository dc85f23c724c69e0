//! A server process of a test's own.

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a start or a stop may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// `FLAGSTONE_TEST_STORE=s3://bucket/prefix`: the data of each server lies below that, in a prefix of
/// its own that stays. Not for tests of the directory's files, or of the writes that `everysec`
/// keeps.
const STORE: &str = "FLAGSTONE_TEST_STORE";

/// Ports for servers: below those that systems give to outgoing connections, so that no client of
/// another test takes one between its choice and the start of its server.
const PORTS: Range<u16> = 10_000..30_000;

/// Ports between the first tries of two processes with consecutive numbers.
const STRIDE: u32 = 997;

/// A running server on a directory that outlives it.
pub struct Server {
    child: Option<Child>,
    port: u16,
    dir: TempDir,
    options: Vec<String>,
    /// Its configuration file, if any.
    file: Option<PathBuf>,
    environment: Vec<(String, String)>,
}

impl Server {
    /// Starts a server on a new directory.
    pub fn start(options: &[&str]) -> Self {
        Self::start_in(Vec::new(), options)
    }

    /// The same in an environment.
    pub fn start_in(environment: Vec<(String, String)>, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options = options.iter().map(ToString::to_string).collect();
        let mut server =
            Self { child: None, port: free_port(), dir, options, file: None, environment };
        server.spawn();
        server
    }

    /// The data directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
        command
            .args(&self.file)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--dir", &self.data().display().to_string()])
            .args(["--journal-segment-size", "4mb", "--memory-budget", "256mb"])
            .args(&self.options)
            // The default of machines with two CPUs is one.
            .env("FLAGSTONE_WORKERS", "2")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.dir.path());
        let has_place = self.options.iter().any(|option| option == "--store");
        if has_place {
            return command;
        }
        if let (Ok(url), Some(name)) = (std::env::var(STORE), self.dir.path().file_name()) {
            let name = name.to_string_lossy();
            command.args(["--store", &format!("{url}/{}-{name}", std::process::id())]);
        }
        command
    }

    fn spawn(&mut self) {
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .stderr(self.log_file())
            .spawn()
            .expect("the server's binary starts");
        let out = child.stdout.take().expect("its output");
        let ready = BufReader::new(out)
            .lines()
            .map_while(Result::ok)
            .any(|line| line.contains("Ready to accept connections"));
        assert!(ready, "the server ended before it was ready");
        self.child = Some(child);
    }

    fn log_file(&self) -> File {
        let log = File::options().create(true).append(true).open(self.dir.path().join("log"));
        log.expect("a file for the log")
    }

    /// Returns the log of all its lives so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("the log")
    }

    /// From now on its files may have so many bytes each; `None`: as many as they like.
    pub fn limit_files(&self, bytes: Option<u64>) {
        limit_files_of(self.child.as_ref().expect("running"), bytes);
    }

    /// Starts again with other options (the directory and the port stay).
    pub fn restart_with(&mut self, options: &[&str]) {
        self.options = options.iter().map(ToString::to_string).collect();
        self.restart();
    }

    /// Starts again with a configuration file, from now on.
    pub fn restart_from(&mut self, file: &Path) {
        self.file = Some(file.to_path_buf());
        self.restart();
    }

    /// Starts again.
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "still running");
        self.spawn();
    }

    /// Returns the output of a start that must fail.
    pub fn refused(&self, options: &[&str]) -> String {
        self.refusal(options).1
    }

    /// Returns the status of a start that must fail, and its output.
    pub fn refusal(&self, options: &[&str]) -> (Option<i32>, String) {
        let output = self.command().args(options).output().expect("the server's binary runs");
        assert!(!output.status.success(), "it started");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("running");
        kill_process(Pid::from_child(child), signal).expect("the signal is sent");
    }

    /// The same, of a start or a subcommand that must fail in time.
    pub fn fails_in_time(&self, subcommand: &[&str], within: Duration) -> String {
        let command = match subcommand {
            [] => self.command(),
            words => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
                command.args(words).current_dir(self.dir.path());
                command
            }
        };
        self.fails(command, None, within)
    }

    /// The same, of a start with these options, too, whose files may have so many bytes each.
    pub fn fails_with_files_of(&self, bytes: u64, options: &[&str], within: Duration) -> String {
        let mut command = self.command();
        command.args(options);
        self.fails(command, Some(bytes), within)
    }

    fn fails(&self, mut command: Command, files_of: Option<u64>, within: Duration) -> String {
        let errors = self.dir.path().join("errors");
        let file = File::create(&errors).expect("a file");
        let other = file.try_clone().expect("the same file");
        let mut child = command.stdout(file).stderr(other).spawn().expect("the binary starts");
        if files_of.is_some() {
            limit_files_of(&child, files_of);
        }
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = child.try_wait().expect("its status") {
                let text = std::fs::read_to_string(&errors).expect("what it says");
                assert!(!status.success(), "{command:?} succeeds: {text}");
                return text;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{command:?} does not end");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("running");
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }

    /// kill -9 while other threads use the server; [`Server::reap`] follows.
    pub fn kill_shared(&self) {
        self.signal(Signal::KILL);
    }

    /// Waits for the end of a server that was killed or told to end. Returns its exit status.
    pub fn reap(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("running");
        child.wait().expect("reaped").code()
    }

    /// SIGTERM, and a clean end.
    pub fn stop(&mut self) {
        self.stop_by(Signal::TERM);
    }

    /// A signal, and a clean end.
    pub fn stop_by(&mut self, signal: Signal) {
        self.signal(signal);
        let mut child = self.child.take().expect("running");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().expect("its status") {
                assert!(status.success(), "it ended with {status}");
                return;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A client of the `redis` crate.
    pub fn client(&self) -> redis::Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port));
        client.expect("an address").get_connection().expect("a connection")
    }

    /// A bare socket.
    pub fn socket(&self) -> TcpStream {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket
    }

    /// Bytes of memory the process holds.
    pub fn rss(&self) -> u64 {
        let pid = self.pid();
        let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("statm");
        statm.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).expect("pages") * 4096
    }

    /// The most that it has held so far.
    pub fn peak_rss(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("its status");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|text| text.trim().strip_suffix(" kB")).expect("its peak");
        kib.trim().parse::<u64>().expect("a number") << 10
    }
}

/// Sets how many bytes each file of a process may have; `None`: as many as it likes.
fn limit_files_of(child: &Child, bytes: Option<u64>) {
    // The server has inherited its maximum from this process.
    let maximum = getrlimit(Resource::Fsize).maximum;
    let limit = Rlimit { current: bytes.or(maximum), maximum };
    prlimit(Some(Pid::from_child(child)), Resource::Fsize, limit).expect("the limit is set");
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port that nobody listens on just now, and that no other test of this process gets.
pub fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(STRIDE);
    let mut ports = std::iter::repeat_with(|| {
        let tried = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed));
        PORTS.start + (tried % u32::from(PORTS.end - PORTS.start)) as u16
    });
    let free = ports
        .by_ref()
        .take(PORTS.len())
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.expect("a free port")
}
