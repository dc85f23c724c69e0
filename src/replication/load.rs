//! Loads a received data set.

use super::apply::{Applier, StreamCommand};
use anyhow::{Context, Result, anyhow, bail};
use flagstone_rdb::file::{self, Item, Key, Value};
use flagstone_rdb::{CommandSink, Expect, LargeValue, with_restore};
use std::fs::File;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Bytes beyond which values are loaded in pieces, and the same bound for streams, because commands
/// cannot restore everything in their payload.
const PAYLOAD_MAX: usize = 1 << 20;
const STREAM_PAYLOAD_MAX: usize = 4 << 20;

/// Number of commands, and of their bytes, that are loaded as one unit.
const UNIT_COMMANDS: usize = 256;
const UNIT_BYTES: usize = 1 << 20;

/// Number of units that are read ahead.
const AHEAD: usize = 2;

/// Facts of a data set that was loaded.
#[derive(Debug, Default)]
pub(super) struct LoadedDataSet {
    pub(super) keys: u64,
    /// Database that the stream behind it has selected.
    pub(super) db: u32,
}

/// Replaces all data by that of a file. If that fails, a part of it is there, and clients are
/// refused until it is deleted. The caller stores the position, and admits clients again.
///
/// # Errors
/// Returns the reason.
pub(super) async fn load(
    applier: &Applier,
    epoch: u64,
    path: &Path,
) -> Result<LoadedDataSet, String> {
    applier.begin_load(epoch).await?;
    applier.clear(Some(epoch)).await?;
    let (sender, mut units) = mpsc::channel(AHEAD);
    let settings = applier.node.config.settings();
    let path = PathBuf::from(path);
    let mut out = UnitSender::new(sender, settings.databases);
    let reading =
        applier.node.background.spawn_blocking(move || read(&path, &mut out).map(|()| out.loaded));
    while let Some(unit) = units.recv().await {
        applier.load(Some(epoch), unit).await?;
    }
    let read = reading.await.map_err(|error| error.to_string())?;
    read.map_err(|error| format!("the data set of the primary cannot be loaded: {error:#}"))
}

/// Reads a file, and sends the commands that load it.
fn read(path: &Path, out: &mut UnitSender) -> Result<()> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut file = file::File::open(file)?;
    loop {
        match file.next_item()? {
            Item::Database(number) => out.db = out.database(number)?,
            Item::Key(key) => load_key(&mut file, &key, out)
                .with_context(|| format!("key \"{}\"", key.name.escape_ascii()))?,
            Item::Function(code) => {
                out.send()?;
                out.command(&[b"FUNCTION", b"LOAD", &code], Expect::Any)?;
                out.send()?;
            }
            Item::ModuleAux(name) => bail!("it has data of the module {name}"),
            // A primary that is a replica itself passes on the stream of its own primary.
            Item::Aux(name, value) if name == b"repl-stream-db" => {
                let number = String::from_utf8_lossy(&value).parse().ok();
                out.loaded.db = number.map_or(Ok(0), |number| out.database(number))?;
            }
            Item::Aux(..) | Item::Keys(_) => {}
            Item::End => return out.send(),
        }
    }
}

fn load_key(file: &mut file::File<File>, key: &Key, out: &mut UnitSender) -> Result<()> {
    let max_len = if key.is_stream() { STREAM_PAYLOAD_MAX } else { PAYLOAD_MAX };
    out.loaded.keys += 1;
    match file.value(key, max_len)? {
        Value::Empty => Ok(()),
        Value::Module(name) => bail!("its value is of the module {name}"),
        Value::Payload(payload) => restore(key, &payload, out),
        Value::Large(kind) => {
            // Fields that have expired stay until the primary deletes them.
            let mut large = LargeValue::new(out, &key.name, kind, 0);
            file.parts::<anyhow::Error, _>(key, &mut large)?;
            large.finish(key.expire_at_ms)
        }
    }
}

fn restore(key: &Key, payload: &[u8], out: &mut UnitSender) -> Result<()> {
    with_restore(key, key.expire_at_ms, payload, false, |words| {
        out.command(words, Expect::Done { may_exist: false })
    })
}

/// Gathers commands to units, and sends them.
struct UnitSender {
    sender: mpsc::Sender<Vec<StreamCommand>>,
    /// Number of databases of this server.
    databases: u32,
    db: u32,
    unit: Vec<StreamCommand>,
    bytes: usize,
    loaded: LoadedDataSet,
}

impl UnitSender {
    fn new(sender: mpsc::Sender<Vec<StreamCommand>>, databases: u32) -> Self {
        Self {
            sender,
            databases,
            db: 0,
            unit: Vec::new(),
            bytes: 0,
            loaded: LoadedDataSet::default(),
        }
    }

    /// Returns the number of a database of the primary, if this server has it, too.
    fn database(&self, number: u64) -> Result<u32> {
        let db = u32::try_from(number).ok().filter(|db| *db < self.databases);
        db.with_context(|| {
            format!(
                "it has a database {number}, this server has {}: raise `databases`",
                self.databases
            )
        })
    }

    fn send(&mut self) -> Result<()> {
        self.bytes = 0;
        let unit = std::mem::take(&mut self.unit);
        if unit.is_empty() {
            return Ok(());
        }
        self.sender.blocking_send(unit).map_err(|_| anyhow!("loading has ended"))
    }
}

impl CommandSink for UnitSender {
    type Error = anyhow::Error;

    fn command(&mut self, words: &[&[u8]], _: Expect) -> Result<()> {
        let command = StreamCommand::new(self.db, words);
        self.bytes += command.args.memory();
        self.unit.push(command);
        if self.unit.len() >= UNIT_COMMANDS || self.bytes >= UNIT_BYTES {
            self.send()?;
        }
        Ok(())
    }
}
