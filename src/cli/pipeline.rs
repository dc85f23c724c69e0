//! Sends commands ahead of their replies, within bounds.
//!
//! A separate thread reads the replies, so that neither side waits for the other to read.

use super::connection::{self, Input, Output, Reply, ServerConnection};
use super::link::Link;
use anyhow::{Result, anyhow};
use flagstone_rdb::{CommandSink, Expect};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Maximum number of commands without a reply, and their maximum total size in bytes.
const WINDOW_COMMANDS: usize = 4096;
const WINDOW_BYTES: usize = 8 << 20;

/// A command without a reply yet.
struct Sent {
    expect: Expect,
    bytes: usize,
    /// Purpose of the command, for error messages.
    about: About,
}

/// Purpose of a command.
#[derive(Debug, Clone, Default)]
pub(super) struct About {
    /// Its offset in the file.
    pub(super) offset: u64,
    pub(super) database: u64,
    pub(super) key: Option<Vec<u8>>,
}

/// Sender of several commands with one purpose.
pub(super) struct Purposeful<'a> {
    pub(super) pipeline: &'a mut Pipeline,
    pub(super) about: About,
}

impl CommandSink for Purposeful<'_> {
    type Error = anyhow::Error;

    fn command(&mut self, words: &[&[u8]], expect: Expect) -> Result<()> {
        self.pipeline.send(words, expect, self.about.clone())
    }
}

/// Counts of the replies so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) done: u64,
    pub(super) skipped: u64,
    /// Number of empty arrays.
    pub(super) without: u64,
}

#[derive(Default)]
struct PipelineState {
    sent: VecDeque<Sent>,
    bytes: usize,
    counts: Counts,
    failure: Option<String>,
    /// True once the connection is lost: then the failure is final.
    is_lost: bool,
    asked: Option<Reply>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<PipelineState>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, PipelineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, PipelineState>) -> MutexGuard<'a, PipelineState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that sends commands ahead of their replies.
pub(super) struct Pipeline {
    output: Output,
    link: Link,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

impl Pipeline {
    /// Takes over a connection.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn new(connection: ServerConnection) -> Result<Self> {
        let ServerConnection { input, output } = connection;
        let link = output.get_ref().clone();
        let shared = Arc::new(Shared::default());
        let for_reader = Arc::clone(&shared);
        let reader = std::thread::Builder::new()
            .name("replies".to_owned())
            .spawn(move || read_replies(input, &for_reader))?;
        Ok(Pipeline { output, link, shared, reader: Some(reader) })
    }

    /// Sends a command, once there is room for it.
    ///
    /// # Errors
    /// If an earlier command has failed, or the connection is lost.
    pub(super) fn send(&mut self, command: &[&[u8]], expect: Expect, about: About) -> Result<()> {
        let bytes = command.iter().map(|word| word.len() + 16).sum();
        self.make_room(bytes)?;
        let mut state = self.shared.lock();
        state.bytes += bytes;
        state.sent.push_back(Sent { expect, bytes, about });
        drop(state);
        if connection::write_command(&mut self.output, command).is_err() {
            return self.lost();
        }
        Ok(())
    }

    /// Waits until a command of so many bytes fits.
    fn make_room(&mut self, bytes: usize) -> Result<()> {
        let has_room = |state: &PipelineState, part: usize| {
            state.sent.len() < WINDOW_COMMANDS / part
                && (state.bytes + bytes <= WINDOW_BYTES / part || state.sent.is_empty())
        };
        let state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Err(anyhow!("{failure}"));
        }
        if has_room(&state, 1) {
            return Ok(());
        }
        drop(state);
        if self.output.flush().is_err() {
            return self.lost();
        }
        let mut state = self.shared.lock();
        // Half of it, so that commands go out in large pieces.
        while !has_room(&state, 2) && state.failure.is_none() {
            state = self.shared.wait(state);
        }
        match &state.failure {
            Some(failure) => Err(anyhow!("{failure}")),
            None => Ok(()),
        }
    }

    /// Returns the error of a failed write: the reader may have a better one.
    fn lost(&self) -> Result<()> {
        let mut state = self.shared.lock();
        while state.failure.is_none() && !state.sent.is_empty() {
            state = self.shared.wait(state);
        }
        let failure = state.failure.clone();
        Err(anyhow!("{}", failure.unwrap_or_else(|| "the connection is lost".to_owned())))
    }

    /// Waits for the replies to everything that was sent.
    ///
    /// # Errors
    /// As [`Pipeline::send`].
    pub(super) fn settle(&mut self) -> Result<()> {
        if self.output.flush().is_err() {
            return self.lost();
        }
        let mut state = self.shared.lock();
        while !state.sent.is_empty() && state.failure.is_none() {
            state = self.shared.wait(state);
        }
        match &state.failure {
            Some(failure) => Err(anyhow!("{failure}")),
            None => Ok(()),
        }
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    /// As [`Pipeline::send`]; if it is an error.
    pub(super) fn ask(&mut self, command: &[&[u8]], about: About) -> Result<Reply> {
        match self.ask_whatever(command, about)? {
            Reply::Error(error) => Err(anyhow!("the server refuses it: {error}")),
            reply => Ok(reply),
        }
    }

    /// Sends a command and waits for its reply, which may be an error.
    ///
    /// # Errors
    /// As [`Pipeline::send`].
    pub(super) fn ask_whatever(&mut self, command: &[&[u8]], about: About) -> Result<Reply> {
        self.send(command, Expect::Asked, about)?;
        self.settle()?;
        self.shared.lock().asked.take().ok_or_else(|| anyhow!("there is no reply"))
    }

    /// Counts an existing key or library that was left out.
    pub(super) fn count_skipped(&self) {
        self.shared.lock().counts.skipped += 1;
    }

    /// Returns the counts of the replies so far.
    pub(super) fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Waits for the replies to all commands, and continues even if some are errors.
    pub(super) fn recover(&mut self) {
        let _ = self.output.flush();
        let mut state = self.shared.lock();
        while !state.sent.is_empty() {
            state = self.shared.wait(state);
        }
        if !state.is_lost {
            state.failure = None;
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // The reader ends with the connection.
        self.link.end();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn read_replies(mut input: Input, shared: &Shared) {
    loop {
        let reply = connection::receive(&mut input);
        let mut state = shared.lock();
        match reply {
            Ok(reply) => {
                if let Some(sent) = state.sent.pop_front() {
                    state.bytes -= sent.bytes;
                    take(&mut state, reply, sent);
                }
            }
            Err(error) => {
                state.sent.clear();
                state.bytes = 0;
                state.is_lost = true;
                state.failure.get_or_insert(format!("{error:#}"));
                shared.changed.notify_all();
                return;
            }
        }
        shared.changed.notify_all();
    }
}

/// Compares a reply with the expected one.
fn take(state: &mut PipelineState, reply: Reply, sent: Sent) {
    let failure = match (sent.expect, reply) {
        (Expect::Done { may_exist: true }, Reply::Error(error)) if says_exists(&error) => {
            state.counts.skipped += 1;
            return;
        }
        (Expect::Asked, reply) => {
            state.asked = Some(reply);
            return;
        }
        (_, Reply::Error(error)) => error,
        (Expect::Done { .. }, _) => {
            state.counts.done += 1;
            return;
        }
        (Expect::Integer(expected), Reply::Integer(found)) if found == expected => return,
        (Expect::Integer(expected), reply) => {
            format!("{expected} elements are expected to be added, but the reply is {reply:?}")
        }
        (Expect::Some, Reply::Array(elements)) => {
            state.counts.without += u64::from(elements.is_empty());
            return;
        }
        (Expect::Some, reply) => format!("an array is expected, but the reply is {reply:?}"),
        (Expect::Any, Reply::Array(replies)) => {
            // One of the commands of a transaction may have failed.
            let error = replies.into_iter().find_map(|reply| match reply {
                Reply::Error(error) => Some(error),
                _ => None,
            });
            let Some(error) = error else { return };
            error
        }
        (Expect::Any, _) => return,
    };
    let About { offset, database, key } = &sent.about;
    let what = match key {
        Some(key) => format!("key \"{}\" (database {database}, ", key.escape_ascii()),
        None => "a command (".to_owned(),
    };
    let text = format!("{what}offset {offset} of the file) is refused: {failure}");
    state.failure.get_or_insert(text);
}

/// Returns true if an error says that a key or a library exists already.
fn says_exists(error: &str) -> bool {
    error.starts_with("BUSYKEY")
        || (error.starts_with("ERR Library ") && error.ends_with(" already exists"))
}
