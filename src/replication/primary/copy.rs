//! The data set for a replica: an RDB of the data at one record of the journal.
//!
//! A checkpoint is taken, and a branch of it opened, as a start would open it, beside the data. All of
//! its keys are written in the order of their slots, with what has expired: the replica leaves expiry
//! to this server. Writers go on meanwhile.

use crate::checkpoints::branch_at;
use crate::config::Settings;
use crate::followers::Follower;
use crate::node::Node;
use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use flagstone_commands::generic::old_payload_of;
use flagstone_commands::{Ctx, DataSettings, Stop};
use flagstone_rdb::dump_functions;
use flagstone_rdb::file::{FOOTER_LEN, Output};
use flagstone_storage::checkpoint::{COPYING, discard_branch, offline_options};
use flagstone_storage::directory::{Directory, Location};
use flagstone_storage::journal::Lsn;
use flagstone_storage::partition::Partition;
use flagstone_storage::place::Place;
use flagstone_storage::scan::Cursor;
use flagstone_storage::store::Need;
use flagstone_wire::resp::Reply;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

/// File that holds a data set for a replica that has to know its length, in the data directory.
const COPY_FILE: &str = "replica-copy.rdb";

/// Number of keys that are read at a time.
const PAGE: usize = 512;

/// Bytes that are sent at a time.
const CHUNK: usize = 64 << 10;

/// Memory in bytes for caches, and for rows that are replayed.
const CACHE: u64 = 8 << 20;
const ROWS: usize = 16 << 20;

/// A part of a data set.
pub(super) enum DataPart {
    /// The data is that of this record.
    At(Lsn),
    /// Number of its bytes, if they are known.
    Length(u64),
    Bytes(Bytes),
    End,
}

/// Makes a data set for a replica. `with_length`: its length comes before its bytes.
pub(super) async fn make(
    node: Arc<Node>,
    follower: Arc<Follower>,
    with_length: bool,
    to: mpsc::Sender<DataPart>,
) {
    // One at a time: each takes disk and memory.
    let turn = node.followers.copying.lock().await;
    if to.is_closed() {
        return;
    }
    if !follower.facts.data_set_only {
        // The stream for it begins behind a later record.
        node.followers.keep_for(&follower);
    }
    let store = node.checkpoints.source.store.join(COPYING);
    let made = make_in(&node, &store, with_length, &to).await;
    remove(&node, &store).await;
    drop(turn);
    // A slow replica lets others go on.
    let made = match made {
        Ok(file) => send_rest(file, &to).await,
        Err(error) => Err(error),
    };
    // A replica that has gone needs no data, and no line in the log.
    if let Err(error) = made
        && !to.is_closed()
    {
        tracing::error!("there is no data set for a replica: {error:#}");
    }
}

/// Removes what a killed process has left.
pub(crate) async fn clean(node: &Node) {
    // A replica may ask for a data set already.
    let _turn = node.followers.copying.lock().await;
    remove(node, &node.checkpoints.source.store.join(COPYING)).await;
    // Usually there is none.
    let _ = fs::remove_file(copy_file(&node.config.settings()));
}

/// Removes the branch from which a data set was made, whole or not.
async fn remove(node: &Node, store: &Place) {
    if let Err(error) = discard_branch(&node.checkpoints.source.engines(), store).await {
        tracing::warn!("the copy of the data for a replica cannot be removed: {error:#}");
    }
}

fn copy_file(settings: &Settings) -> PathBuf {
    settings.dir.join(COPY_FILE)
}

/// The beginning of a data set.
struct DataSetHead<'a> {
    /// Code of the libraries of functions.
    libraries: &'a [&'a [u8]],
    /// Database that the stream behind it has selected.
    selected: u32,
}

async fn make_in(
    node: &Arc<Node>,
    store: &Place,
    with_length: bool,
    to: &mpsc::Sender<DataPart>,
) -> Result<Option<File>> {
    discard_branch(&node.checkpoints.source.engines(), store).await?;
    let lsn = branch_at(node, store.clone()).await.map_err(|what| anyhow!(what))?;
    send(to, DataPart::At(lsn)).await?;
    let (.., selected) = node.followers.reached(lsn).await.context("the stream has ended")?;
    let settings = node.config.settings();
    let location = Location { store: store.clone(), journal: None };
    let mut options = offline_options(&location).await?;
    options.databases = settings.databases;
    (options.block_cache_bytes, options.meta_cache_bytes) = (CACHE, CACHE);
    (options.memtable_bytes, options.replay_bytes) = (ROWS, ROWS);
    let mut opened = Directory::open(options, node.clock.clone()).await?;
    let (engines, libraries) = (opened.engines(), std::mem::take(&mut opened.libraries));
    let (mut partitions, locks) = opened.into_partitions(1, 1);
    let mut partition = partitions.pop().context("a directory without a partition")?;
    let libraries: Vec<&[u8]> = libraries.iter().map(|library| &*library.code).collect();
    let head = DataSetHead { libraries: &libraries, selected };
    let copied = match with_length {
        false => {
            let sink = DataSink::Replica(to);
            write(node, &settings, &mut partition, &head, sink).await.map(|()| None)
        }
        true => write_file(node, &settings, &mut partition, &head, to).await.map(Some),
    };
    drop(partition);
    for engine in engines {
        // It is about to be removed.
        let _ = engine.close().await;
    }
    drop(locks);
    copied
}

/// Writes the data set to a file, which has no name any more.
async fn write_file(
    node: &Node,
    settings: &Settings,
    partition: &mut Partition,
    head: &DataSetHead<'_>,
    to: &mpsc::Sender<DataPart>,
) -> Result<File> {
    let path = copy_file(settings);
    let file = File::create(&path).with_context(|| format!("{}", path.display()))?;
    let sink = DataSink::File(file, to);
    let written = write(node, settings, partition, head, sink).await;
    let opened = File::open(&path);
    let _ = fs::remove_file(&path);
    written?;
    opened.with_context(|| format!("{}", path.display()))
}

/// Sends the file of the data set, if it is in one, and its end.
async fn send_rest(file: Option<File>, to: &mpsc::Sender<DataPart>) -> Result<()> {
    if let Some(file) = file {
        send_file(file, to).await?;
    }
    send(to, DataPart::End).await
}

async fn send(to: &mpsc::Sender<DataPart>, part: DataPart) -> Result<()> {
    to.send(part).await.map_err(|_| anyhow!("the replica has gone"))
}

async fn send_file(mut file: File, to: &mpsc::Sender<DataPart>) -> Result<()> {
    send(to, DataPart::Length(file.metadata()?.len())).await?;
    loop {
        let mut chunk = vec![0; CHUNK];
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok(());
        }
        chunk.truncate(read);
        send(to, DataPart::Bytes(chunk.into())).await?;
    }
}

/// Receiver of the bytes of a data set.
enum DataSink<'a> {
    Replica(&'a mpsc::Sender<DataPart>),
    /// A file, as long as the replica is there.
    File(File, &'a mpsc::Sender<DataPart>),
}

impl DataSink<'_> {
    async fn take(&mut self, bytes: &mut Vec<u8>, least: usize) -> Result<()> {
        if bytes.len() < least {
            return Ok(());
        }
        let bytes = std::mem::take(bytes);
        match self {
            Self::Replica(to) => send(to, DataPart::Bytes(bytes.into())).await,
            Self::File(_, to) if to.is_closed() => bail!("the replica has gone"),
            Self::File(file, _) => Ok(file.write_all(&bytes)?),
        }
    }
}

/// Writes the RDB.
async fn write(
    node: &Node,
    settings: &Settings,
    partition: &mut Partition,
    head: &DataSetHead<'_>,
    mut sink: DataSink<'_>,
) -> Result<()> {
    let mut output = Output::of_old_types(Vec::new())?;
    output.aux("flagstone-ver", env!("CARGO_PKG_VERSION"))?;
    output.aux("redis-bits", "64")?;
    output.aux("ctime", &(node.clock.now_ms() / 1000).to_string())?;
    output.aux("repl-stream-db", &head.selected.to_string())?;
    output
        .functions(&dump_functions(head.libraries.iter().copied(), settings.data.rdbcompression))?;
    let shards: Vec<u16> = partition.shards.keys().copied().collect();
    for db in 0..settings.databases {
        let (keys, expires) = partition.totals(db);
        if keys == 0 {
            continue;
        }
        output.database(u64::from(db), keys, expires)?;
        for &shard in &shards {
            let mut from = Some(Cursor::default());
            while let Some(cursor) = from {
                let plan = partition.plan_scan(db, shard, cursor, PAGE);
                let page = plan.context("a shard is missing")?.run().await?;
                let keys: Vec<Box<[u8]>> = page.keys.into_iter().map(|found| found.key).collect();
                load(node, partition, needs_of(db, &keys)).await?;
                for key in &keys {
                    write_key(node, &settings.data, partition, (db, key), &mut output).await?;
                    // Nobody reads it again.
                    partition.store.forget(db, key);
                    sink.take(output.file_mut(), CHUNK).await?;
                }
                from = page.next;
            }
        }
    }
    let mut rest = output.finish_sent()?;
    sink.take(&mut rest, 0).await
}

fn needs_of(db: u32, keys: &[Box<[u8]>]) -> Vec<Need> {
    keys.iter().map(|key| Need { db, key: key.clone(), part: None }).collect()
}

async fn load(node: &Node, partition: &mut Partition, needs: Vec<Need>) -> Result<()> {
    let mut cold = needs;
    cold.retain(|need| need.part.is_some() || !partition.store.is_hot(need.db, &need.key));
    let loaded = partition.plan_load(cold)?.run(&node.background).await;
    partition.finish_load(loaded)
}

async fn write_key(
    node: &Node,
    settings: &DataSettings,
    partition: &mut Partition,
    (db, key): (u32, &[u8]),
    output: &mut Output<Vec<u8>>,
) -> Result<()> {
    let (payload, expire_at_ms) = loop {
        partition.store.begin(node.clock.now_ms(), false);
        partition.store.see_expired();
        let found = {
            let mut out = Reply::default();
            let mut cx = Ctx::new(&mut partition.store, &mut out, db, settings);
            old_payload_of(&mut cx, key)
        };
        match found {
            Ok(Some(found)) => break found,
            Ok(None) => bail!("the key {} has no value", key.escape_ascii()),
            Err(Stop::Miss(needs)) => load(node, partition, needs).await?,
            Err(Stop::Error(text)) => bail!("{text}"),
            Err(Stop::Block(_) | Stop::Unsettled | Stop::NotOwned(_)) => {
                bail!("a value cannot be read")
            }
        }
    };
    let (&object_type, object) = payload.split_first().context("an empty payload")?;
    let expire_at_ms = (expire_at_ms != 0).then_some(expire_at_ms.cast_signed());
    output.key(key, expire_at_ms, object_type)?;
    output.object(&object[..object.len() - FOOTER_LEN])?;
    Ok(())
}
