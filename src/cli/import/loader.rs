//! Sends the keys of RDB files.

use super::shift::{self, Shift, now_ms};
use crate::cli::connection::{Address, Reply};
use crate::cli::pipeline::{About, Pipeline, Purposeful};
use anyhow::{Context, Result, bail};
use flagstone_rdb::file::{self, FileError, Item, Key, Value};
use flagstone_rdb::{Expect, LargeValue, Part, Sink, with_restore};
use indicatif::ProgressBar;
use std::collections::BTreeMap;
use std::io::Read;

/// Bytes beyond which values are sent in pieces.
const PAYLOAD_MAX: usize = 1 << 20;
/// The same bound for streams: it is larger, because commands cannot restore everything in their
/// payload.
const STREAM_PAYLOAD_MAX: usize = 4 << 20;
/// Items between two updates of the progress.
const PROGRESS_EVERY: u64 = 256;

/// Treatment of keys that exist already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    Refuse,
    Replace,
    Skip,
}

/// Counts of data that was left out, by reason.
#[derive(Debug, Default)]
struct LeftOut {
    expired: u64,
    empty: u64,
    /// Values of modules, by the name of their type.
    modules: BTreeMap<String, u64>,
    /// Data of modules beside keys.
    module_data: BTreeMap<String, u64>,
}

/// The position of a file in an append-only log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The only file, or no part of a log.
    Alone,
    /// A file with successors.
    Before,
    /// The last file: the server may have stopped while writing it.
    Last,
}

/// Sends the contents of files to a server.
pub(super) struct ImportLoader {
    pub(super) pipeline: Pipeline,
    pub(super) existing: Existing,
    /// Database for all keys; `None`: that of the file.
    into: Option<u64>,
    /// The file's present database, and the one last selected on the server.
    database: u64,
    selected: u64,
    role: Role,
    /// Bytes of the files before this one, and the offset in the present one.
    before: u64,
    offset: u64,
    items: u64,
    bar: ProgressBar,
    left_out: LeftOut,
    /// Counts of keys sent in pieces, of libraries, and of commands of append-only files.
    large: u64,
    libraries: u64,
    pub(super) commands: u64,
    /// Remarks on the files, each once.
    notes: Vec<String>,
    pub(super) shift: Shift,
}

impl ImportLoader {
    pub(super) fn new(pipeline: Pipeline, existing: Existing, into: Option<u64>) -> Self {
        ImportLoader {
            pipeline,
            existing,
            into,
            database: 0,
            selected: 0,
            role: Role::Alone,
            before: 0,
            offset: 0,
            items: 0,
            bar: ProgressBar::hidden(),
            left_out: LeftOut::default(),
            large: 0,
            libraries: 0,
            commands: 0,
            notes: Vec::new(),
            shift: Shift::default(),
        }
    }

    /// Prepares for a file that follows `before` bytes of others.
    pub(super) fn begin_file(&mut self, role: Role, before: u64, bar: &ProgressBar) -> Result<()> {
        (self.role, self.before, self.bar) = (role, before, bar.clone());
        self.offset = 0;
        self.database = 0;
        if role != Role::Alone { self.begin_commands() } else { Ok(()) }
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// Prepares for commands, which need the server without other clients.
    pub(super) fn begin_commands(&mut self) -> Result<()> {
        if self.shift.begun {
            return Ok(());
        }
        if self.existing == Existing::Skip || self.into.is_some() {
            bail!(
                "the commands of an append-only file cannot leave keys out, nor go into one database"
            );
        }
        if self.existing == Existing::Refuse {
            let about = self.about(None);
            let info = self.pipeline.ask(&[b"INFO", b"keyspace"], about)?.into_bulk()?;
            if info.windows(5).any(|part| part == b"keys=") {
                bail!("the server holds keys: --replace runs the commands over them");
            }
        }
        self.shift.begun = true;
        Ok(())
    }

    pub(super) fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    pub(super) fn about(&self, key: Option<&[u8]>) -> About {
        let key = key.map(<[u8]>::to_vec);
        About { offset: self.offset, database: self.database, key }
    }

    /// Updates the progress to an offset in the present file.
    pub(super) fn progress(&mut self, offset: u64) {
        self.offset = offset;
        self.items += 1;
        if self.items.is_multiple_of(PROGRESS_EVERY) {
            self.bar.set_position(self.before + offset);
            self.bar.set_message(format!("{} keys", self.pipeline.counts().done + self.large));
        }
    }

    /// Loads an RDB file to its end.
    pub(super) fn load_rdb<R: Read>(&mut self, file: &mut file::File<R>) -> Result<()> {
        loop {
            let item = file.next_item();
            self.progress(file.offset());
            match item.with_context(|| format!("damaged at offset {}", file.offset()))? {
                Item::Database(number) => self.database = number,
                Item::Key(key) => self.load_key(file, &key).map_err(|error| {
                    let is_damaged = error.is::<FileError>();
                    let name = key.name.escape_ascii();
                    let place = format!("damaged at offset {}, in key \"{name}\"", file.offset());
                    if is_damaged { error.context(place) } else { error }
                })?,
                Item::Function(code) => self.load_library(&code)?,
                Item::ModuleAux(name) => *self.left_out.module_data.entry(name).or_default() += 1,
                Item::Aux(name, value) if is_append_only(&name, &value) => self.begin_commands()?,
                Item::Aux(..) | Item::Keys(_) => {}
                Item::End => return self.pipeline.settle(),
            }
        }
    }

    fn load_library(&mut self, code: &[u8]) -> Result<()> {
        let mut command = vec![&b"FUNCTION"[..], b"LOAD"];
        if self.existing == Existing::Replace {
            command.push(b"REPLACE");
        }
        command.push(code);
        let about = self.about(None);
        let reply = self.pipeline.ask_whatever(&command, about)?;
        match reply {
            Reply::Error(error)
                if self.existing == Existing::Skip && error.ends_with(" already exists") =>
            {
                self.note(format!("left out: {}", error.trim_start_matches("ERR ")));
            }
            Reply::Error(error) => bail!("a library of functions is refused: {error}"),
            _ => self.libraries += 1,
        }
        Ok(())
    }

    /// Selects the present database on the server.
    fn select(&mut self) -> Result<()> {
        let wanted = self.into.unwrap_or(self.database);
        if wanted != self.selected {
            let about = self.about(None);
            let number = wanted.to_string();
            self.pipeline.send(&[b"SELECT", number.as_bytes()], Expect::Any, about)?;
            self.selected = wanted;
        }
        Ok(())
    }

    /// Forgets the selected database: the commands of a file may select one themselves.
    pub(super) fn forget_selected(&mut self) {
        self.selected = u64::MAX;
    }

    pub(super) fn select_first(&mut self) -> Result<()> {
        self.database = 0;
        self.select()
    }

    fn load_key<R: Read>(&mut self, file: &mut file::File<R>, key: &Key) -> Result<()> {
        let max_len = if key.is_stream() { STREAM_PAYLOAD_MAX } else { PAYLOAD_MAX };
        let value = file.value(key, max_len)?;
        // Later commands rely on keys that have expired since.
        let keeps_expired = self.shift.begun;
        let expire_at_ms = match key.expire_at_ms {
            Some(at_ms) if keeps_expired => Some(self.shift.later(at_ms)),
            other => other,
        };
        let is_expired = expire_at_ms.is_some_and(|at_ms| at_ms < now_ms());
        let kind = match value {
            Value::Empty => {
                self.left_out.empty += 1;
                return Ok(());
            }
            Value::Module(name) => {
                *self.left_out.modules.entry(name).or_default() += 1;
                return Ok(());
            }
            _ if is_expired => {
                self.left_out.expired += 1;
                return match value {
                    Value::Large(_) => file.parts::<anyhow::Error, _>(key, &mut Nobody),
                    _ => Ok(()),
                };
            }
            Value::Payload(payload) => {
                self.select()?;
                return self.restore(key, expire_at_ms, &payload);
            }
            Value::Large(kind) => kind,
        };
        self.select()?;
        if self.existing == Existing::Replace {
            let about = self.about(Some(&key.name));
            self.pipeline.send(&[b"UNLINK", &key.name], Expect::Any, about)?;
        } else if self.exists(&key.name)? {
            if self.existing == Existing::Refuse {
                bail!("key \"{}\" is there already", key.name.escape_ascii());
            }
            self.pipeline.count_skipped();
            return file.parts::<anyhow::Error, _>(key, &mut Nobody);
        }
        let about = self.about(Some(&key.name));
        let drop_before_ms = if keeps_expired { 0 } else { now_ms() };
        let mut sender = Purposeful { pipeline: &mut self.pipeline, about };
        let mut large = LargeValue::new(&mut sender, &key.name, kind, drop_before_ms);
        let sent = file
            .parts::<anyhow::Error, _>(key, &mut large)
            .and_then(|()| large.finish(expire_at_ms))
            .and_then(|()| self.pipeline.settle());
        if let Err(error) = sent {
            // A part of a value would be taken for the whole value.
            self.pipeline.recover();
            let about = self.about(Some(&key.name));
            self.pipeline.ask(&[b"UNLINK", &key.name], about).ok();
            return Err(error);
        }
        self.large += 1;
        Ok(())
    }

    fn exists(&mut self, name: &[u8]) -> Result<bool> {
        let about = self.about(Some(name));
        Ok(self.pipeline.ask(&[b"EXISTS", name], about)?.integer()? == 1)
    }

    fn restore(&mut self, key: &Key, expire_at_ms: Option<i64>, payload: &[u8]) -> Result<()> {
        let replaces = self.existing == Existing::Replace;
        let may_exist = self.existing == Existing::Skip;
        let about = self.about(Some(&key.name));
        with_restore(key, expire_at_ms, payload, replaces, |words| {
            self.pipeline.send(words, Expect::Done { may_exist }, about)
        })
    }

    /// Completes the steps that must wait for the end of all files.
    pub(super) fn finish(&mut self, address: &Address) -> Result<()> {
        self.pipeline.settle()?;
        if self.shift.is_used {
            shift::undo(address).context("giving keys the expiry that they had")?;
        }
        Ok(())
    }

    /// Returns a summary of loaded and skipped data.
    pub(super) fn summary(&self) -> String {
        let counts = self.pipeline.counts();
        let mut parts = vec![format!("{} keys loaded", counts.done + self.large)];
        let mut add = |count: u64, text: &str| {
            if count > 0 {
                parts.push(format!("{count} {text}"));
            }
        };
        add(self.commands, "commands run");
        add(self.libraries, "libraries of functions loaded");
        add(counts.skipped, "left out since they are there");
        add(self.left_out.expired, "left out since they have expired");
        add(self.left_out.empty, "left out since they are empty");
        add(counts.without, "pending entries of streams left out since the entries are deleted");
        for (name, count) in &self.left_out.modules {
            add(*count, &format!("left out since they are of module type {name}"));
        }
        for (name, count) in &self.left_out.module_data {
            add(*count, &format!("pieces of data of module {name} left out"));
        }
        let mut text = parts.join(", ");
        for note in &self.notes {
            text.push_str(&format!("\n{note}"));
        }
        text
    }
}

/// Returns true if an auxiliary field of a file says that commands follow.
fn is_append_only(name: &[u8], value: &[u8]) -> bool {
    matches!(name, b"aof-preamble" | b"aof-base") && value == b"1"
}

/// Discards parts.
struct Nobody;

impl Sink for Nobody {
    type Error = anyhow::Error;

    fn part(&mut self, _part: Part<'_>) -> Result<()> {
        Ok(())
    }
}
