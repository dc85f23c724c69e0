//! `flagstone export`: writes the keys of a running server into an RDB file.

use super::connection::{Reply, Server, ServerConnection};
use super::progress;
use anyhow::{Context, Result, bail};
use clap::Args;
use flagstone_rdb::file::{FOOTER_LEN, Output, has_field_expiry};
use flagstone_rdb::{self as rdb, Limits, Object};
use flagstone_storage::clock::Clock;
use indicatif::ProgressBar;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufWriter, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Bytes that are written at a time.
const BUFFER_LEN: usize = 1 << 20;
/// Number of keys that one SCAN asks for.
const SCAN_COUNT: &[u8] = b"1000";
/// Maximum number of keys in a batch of values, and of bytes of their names.
const BATCH_KEYS: usize = 128;
const BATCH_BYTES: usize = 32 << 10;
/// Number of times that a key is asked for whose expiry changes meanwhile, before a transaction holds it still.
const ATTEMPTS: usize = 8;

/// Write an RDB file with the keys of a running server
///
/// All databases and libraries of functions are written, in a form that Valkey 8.1 and Redis 7.2 or newer
/// load. A file with hashes whose fields expire is of a version that only Redis 7.4 or newer loads;
/// --drop-field-expiry keeps it loadable by all.
///
/// Each key is written as it was when the command read it. If clients write meanwhile, the file is no
/// snapshot of one moment; stop them to get one.
///
/// A server of a cluster has the keys of its own slots, which the command shows at the end. It fails if
/// these change meanwhile.
///
/// The file gets its name when it is complete and on disk. The server holds one value at a time in memory
/// as a whole; the command needs a few MiB, however much data there is.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(super) struct ExportArguments {
    /// The file to write; an existing one is replaced
    file: PathBuf,
    /// The server, in place of the options for it; with a database, only that one is written
    #[arg(
        long,
        short = 'u',
        visible_alias = "uri",
        value_name = "redis[s]://[[user]:password@]host[:port][/database]|unix:///path"
    )]
    from: Option<String>,
    #[command(flatten)]
    server: Server,
    /// Write hash fields without their expiry: then they do not expire where the file is loaded
    #[arg(long)]
    drop_field_expiry: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the export.
///
/// # Errors
/// If the server cannot be reached, or the file cannot be written.
pub(super) fn run(arguments: &ExportArguments) -> Result<()> {
    let address = arguments.server.address(arguments.from.as_deref())?;
    let mut connection = address.connect()?;
    // A replica of a cluster shows its keys to those who ask so; others refuse that.
    let _ = connection.call(&[b"READONLY"]);
    let slots = OwnSlots::of(&mut connection)?;
    let databases = databases(&mut connection, address.database)?;
    let total = databases.iter().map(|database| database.keys).sum();
    let path = &target_of(&arguments.file)?;
    let part = Partial::create(path)?;
    let file = BufWriter::with_capacity(BUFFER_LEN, part.file.try_clone()?);
    let mut export = Export {
        connection,
        output: Output::new(file)?,
        bar: progress::keys(total, arguments.quiet),
        drop_field_expiry: arguments.drop_field_expiry,
        keys: 0,
        hashes: 0,
    };
    export.write(&databases).with_context(|| format!("{}", path.display()))?;
    export.bar.finish_and_clear();
    if OwnSlots::of(&mut export.connection)? != slots {
        bail!(
            "a shard of the cluster has come to the server, has left it or was split during the export, so keys may \
            be missing: no file is written. Start the command again"
        );
    }
    let (keys, hashes, bytes) = (export.keys, export.hashes, export.output.bytes());
    let (version, file) = export.output.finish().with_context(|| format!("{}", path.display()))?;
    drop(file);
    part.complete(path).with_context(|| format!("{}", path.display()))?;
    say!("{keys} keys written, {bytes} bytes, RDB version {version}");
    if let Some(slots) = slots {
        say!("of its cluster, the server has {}", slots.shown());
    }
    if hashes > 0 && arguments.drop_field_expiry {
        say!("{hashes} hashes have fields that expire: written without that");
    } else if hashes > 0 {
        say!(
            "{hashes} hashes have fields that expire: only Redis 7.4 or newer loads the file; \
             --drop-field-expiry writes one that Valkey 8.1 loads, too"
        );
    }
    Ok(())
}

/// The slots whose keys a server of a cluster has.
#[derive(Debug, PartialEq, Eq)]
struct OwnSlots {
    ranges: Vec<String>,
    /// The number of the change that gave it a shard last: one that has left may be back.
    epoch: String,
    /// True if it shows the keys of all others.
    is_replica: bool,
}

impl OwnSlots {
    /// Returns those of a server; `None`: it is in no cluster.
    fn of(connection: &mut ServerConnection) -> Result<Option<Self>> {
        let info = connection.call(&[b"INFO", b"cluster"])?.into_bulk()?;
        if !String::from_utf8_lossy(&info).lines().any(|line| line == "cluster_enabled:1") {
            return Ok(None);
        }
        let nodes = connection.call(&[b"CLUSTER", b"NODES"])?.into_bulk()?;
        let slots = Self::in_nodes(&String::from_utf8_lossy(&nodes));
        slots.context("a malformed reply to CLUSTER NODES").map(Some)
    }

    /// Finds them in the reply to CLUSTER NODES.
    fn in_nodes(nodes: &str) -> Option<Self> {
        let has_flag = |flags: &str, wanted| flags.split(',').any(|flag| flag == wanted);
        nodes.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let flags = words.nth(2).filter(|flags| has_flag(flags, "myself"))?;
            let epoch = words.nth(3)?.to_owned();
            // The state of its link is between them.
            let ranges = words.skip(1).map(str::to_owned).collect();
            Some(Self { ranges, epoch, is_replica: has_flag(flags, "slave") })
        })
    }

    fn shown(&self) -> String {
        match (self.is_replica, self.ranges.is_empty()) {
            (true, _) => "all slots, as a replica".to_owned(),
            (false, true) => "no slots".to_owned(),
            (false, false) => format!("the slots {}", self.ranges.join(" ")),
        }
    }
}

/// A database that has keys.
struct Database {
    number: u64,
    keys: u64,
    expiring: u64,
}

fn databases(connection: &mut ServerConnection, only: Option<u64>) -> Result<Vec<Database>> {
    let info = connection.call(&[b"INFO", b"keyspace"])?.into_bulk()?;
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&info).lines() {
        let Some((number, counts)) = line.strip_prefix("db").and_then(|l| l.split_once(':')) else {
            continue;
        };
        let count = |name: &str| {
            let part = counts.split(',').find_map(|part| part.strip_prefix(name));
            part.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let number = number.parse().context("a malformed reply to INFO")?;
        if only.is_none_or(|only| only == number) {
            found.push(Database { number, keys: count("keys="), expiring: count("expires=") });
        }
    }
    if found.is_empty() {
        // A server of a cluster may not serve its shards yet: SCAN waits for them, and INFO does not.
        found.push(Database { number: only.unwrap_or(0), keys: 0, expiring: 0 });
    }
    Ok(found)
}

/// Returns the file that is written or replaced: that behind a link.
fn target_of(path: &Path) -> Result<PathBuf> {
    if path == Path::new("-") {
        bail!("the beginning of an RDB file is written last: name a file instead of -");
    }
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => bail!("{} is no regular file", path.display()),
        Ok(_) => Ok(fs::canonicalize(path)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(path.to_owned()),
        Err(error) => Err(error).with_context(|| format!("{}", path.display())),
    }
}

/// A file under a temporary name until it is complete; an incomplete one is removed.
struct Partial {
    file: File,
    path: PathBuf,
}

impl Partial {
    fn create(path: &Path) -> Result<Self> {
        let name = path.file_name().with_context(|| format!("{} is no file", path.display()))?;
        let mut partial = OsString::from(name);
        partial.push(format!(".{}.part", std::process::id()));
        let path = path.with_file_name(partial);
        let file = File::create_new(&path).with_context(|| format!("{}", path.display()))?;
        Ok(Partial { file, path })
    }

    /// Renames the file once it is on disk.
    fn complete(mut self, path: &Path) -> Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, path)?;
        self.path = PathBuf::new();
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        Ok(File::open(directory)?.sync_all()?)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.path != Path::new("") {
            // The error that is under way says more.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Reply of PEXPIRETIME if there is no such key.
const NO_KEY: i64 = -2;

/// State of an export.
struct Export {
    connection: ServerConnection,
    output: Output<BufWriter<File>>,
    bar: ProgressBar,
    drop_field_expiry: bool,
    keys: u64,
    /// Number of hashes with fields that expire.
    hashes: u64,
}

impl Export {
    fn write(&mut self, databases: &[Database]) -> Result<()> {
        self.output.aux("flagstone-ver", env!("CARGO_PKG_VERSION"))?;
        self.output.aux("redis-bits", "64")?;
        self.output.aux("ctime", &(Clock::default().now_ms() / 1000).to_string())?;
        let functions = self.connection.call(&[b"FUNCTION", b"DUMP"])?.into_bulk()?;
        self.output.functions(&functions)?;
        for database in databases {
            self.output.database(database.number, database.keys, database.expiring)?;
            let number = database.number.to_string();
            self.connection.call(&[b"SELECT", number.as_bytes()])?;
            self.write_database()?;
        }
        Ok(())
    }

    fn write_database(&mut self) -> Result<()> {
        let mut cursor = b"0".to_vec();
        loop {
            let page = self.connection.call(&[b"SCAN", &cursor, b"COUNT", SCAN_COUNT])?;
            let Ok([next, keys]) = <[Reply; 2]>::try_from(page.into_array()?) else {
                bail!("a malformed reply to SCAN")
            };
            let keys = keys.into_array()?.into_iter().map(Reply::into_bulk);
            self.write_keys(&keys.collect::<Result<Vec<_>>>()?)?;
            cursor = next.into_bulk()?;
            if cursor == b"0" {
                return Ok(());
            }
        }
    }

    /// Writes the values of some keys, with the requests for the next ones under way.
    fn write_keys(&mut self, keys: &[Vec<u8>]) -> Result<()> {
        let mut asked: &[Vec<u8>] = &[];
        let mut rest = keys;
        let mut changed = Vec::new();
        while !rest.is_empty() || !asked.is_empty() {
            let mut bytes = 0;
            let fits = |key: &&Vec<u8>| {
                bytes += key.len();
                bytes <= BATCH_BYTES
            };
            let count = rest.iter().take(BATCH_KEYS).take_while(fits).count();
            let (batch, later) = rest.split_at(count.max(1).min(rest.len()));
            for key in batch {
                self.ask_for(key)?;
            }
            self.connection.flush()?;
            for key in asked {
                if !self.write_key(key).with_context(|| shown(key))? {
                    changed.push(key);
                }
            }
            (asked, rest) = (batch, later);
        }
        for key in changed {
            self.write_changing(key).with_context(|| shown(key))?;
        }
        self.bar.set_position(self.keys);
        Ok(())
    }

    /// Asks for a value, and for its expiry before and behind it: if that is the same, it is the value's. A
    /// transaction would make sure of it, too, but the server refuses one whose values take more memory than
    /// its budget, and may make a large value twice.
    fn ask_for(&mut self, key: &[u8]) -> Result<()> {
        self.connection.send(&[b"PEXPIRETIME", key])?;
        self.connection.send(&[b"DUMP", key])?;
        self.connection.send(&[b"PEXPIRETIME", key])
    }

    /// Writes a key by the replies to [`Export::ask_for`]. Returns false, and has written nothing, if its
    /// expiry has changed meanwhile.
    fn write_key(&mut self, key: &[u8]) -> Result<bool> {
        let (mark, hashes) = (self.output.mark(), self.hashes);
        let before = self.connection.receive()?.integer()?;
        let len = self.connection.receive_bulk_len()?;
        if let Some(len) = len {
            self.write_value(key, expiry_of(before), len)?;
        }
        let behind = self.connection.receive()?.integer()?;
        if len.is_none() {
            // The key was deleted since.
            return Ok(true);
        }
        // A key that is missing before and behind may have had any.
        if before == behind && before != NO_KEY {
            self.keys += 1;
            return Ok(true);
        }
        self.output.rewind(mark)?;
        self.hashes = hashes;
        let bytes = self.output.bytes();
        self.output.file_mut().get_ref().set_len(bytes)?;
        Ok(false)
    }

    /// Writes a key whose expiry changes: it is asked for again, and at last in a transaction.
    fn write_changing(&mut self, key: &[u8]) -> Result<()> {
        for _ in 0..ATTEMPTS {
            self.ask_for(key)?;
            self.connection.flush()?;
            if self.write_key(key)? {
                return Ok(());
            }
        }
        self.connection.call(&[b"MULTI"])?;
        self.connection.call(&[b"PEXPIRETIME", key])?;
        self.connection.call(&[b"DUMP", key])?;
        self.connection.send(&[b"EXEC"])?;
        self.connection.flush()?;
        match self.connection.receive_array_len()? {
            Some(2) => {}
            other => bail!("EXEC has {other:?} replies"),
        }
        let expiry = self.connection.receive()?.integer()?;
        if let Some(len) = self.connection.receive_bulk_len()? {
            self.write_value(key, expiry_of(expiry), len)?;
            self.keys += 1;
        }
        Ok(())
    }

    /// Copies the next payload, of so many bytes, without holding it in memory.
    fn write_value(&mut self, key: &[u8], expire_at_ms: Option<i64>, len: u64) -> Result<()> {
        const END: u64 = 2;
        let mut object_type = [0];
        self.connection.input.read_exact(&mut object_type)?;
        let [object_type] = object_type;
        let object_len = len.checked_sub(1 + FOOTER_LEN as u64).context("it is no payload")?;
        if has_field_expiry(object_type) {
            self.hashes += 1;
            if self.drop_field_expiry {
                let mut payload = vec![object_type];
                self.connection.input.by_ref().take(len - 1 + END).read_to_end(&mut payload)?;
                let payload = without_field_expiry(payload.strip_suffix(b"\r\n").unwrap_or(&[]))?;
                self.output.key(key, expire_at_ms, payload[0])?;
                return Ok(self.output.object(&payload[1..payload.len() - FOOTER_LEN])?);
            }
        }
        self.output.key(key, expire_at_ms, object_type)?;
        let mut left = object_len;
        while left > 0 {
            let next = self.connection.input.fill_buf()?;
            let part = next.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if part == 0 {
                bail!("the server has closed the connection");
            }
            self.output.object(&next[..part])?;
            self.connection.input.consume(part);
            left -= part as u64;
        }
        let mut rest = [0; FOOTER_LEN + END as usize];
        Ok(self.connection.input.read_exact(&mut rest)?)
    }
}

fn shown(key: &[u8]) -> String {
    format!("key \"{}\"", key.escape_ascii())
}

/// Returns the time that a reply of PEXPIRETIME names: negative ones say that there is none.
fn expiry_of(reply: i64) -> Option<i64> {
    Some(reply).filter(|at_ms| *at_ms >= 0)
}

/// Returns the payload of a hash without its fields' expiries.
fn without_field_expiry(payload: &[u8]) -> Result<Vec<u8>> {
    let mut object = rdb::restore(payload)?;
    if let Object::Hash(fields) = &mut object {
        fields.iter_mut().for_each(|field| field.expire_at_ms = None);
    }
    Ok(rdb::dump(&object, &Limits::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slots_of_a_server_are_in_its_line() {
        let other = "aa 127.0.0.1:7000@17000 master - 0 0 9 connected 5461-16383\n";
        let slots = |line: &str| OwnSlots::in_nodes(&format!("{other}{line}\n"));
        let own = slots("bb 127.0.0.1:7001@17001 myself,master - 0 0 7 connected 0-2730 5000-5460");
        let own = own.expect("its line");
        assert_eq!((own.shown().as_str(), own.epoch.as_str()), ("the slots 0-2730 5000-5460", "7"));
        // One has left, and is back.
        let later =
            slots("bb 127.0.0.1:7001@17001 myself,master - 0 0 8 connected 0-2730 5000-5460");
        assert_ne!(later, Some(own));
        let none =
            slots("bb 127.0.0.1:7001@17001 myself,master - 0 0 0 connected").expect("its line");
        assert_eq!(none.shown(), "no slots");
        let replica = slots("bb 127.0.0.1:7001@17001 myself,slave aa 0 0 0 connected");
        assert_eq!(replica.expect("its line").shown(), "all slots, as a replica");
        assert_eq!(OwnSlots::in_nodes(other), None);
    }
}
