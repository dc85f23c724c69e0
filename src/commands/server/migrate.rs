//! MIGRATE: sends keys to another server, and deletes them here once that has taken them.
//!
//! The keys are locked from the moment they are read until the other server has answered, so no
//! write between is lost. A key is deleted only after the reply to its RESTORE is there: if the
//! connection breaks before, both servers may have it, but never none.

use crate::command::RoundError;
use crate::config::Settings;
use crate::routing::{Call, CallStop, Waiting};
use crate::tls::{self, PeerStream, TlsSlot};
use crate::worker::{DepartingKey, DepartingKeys};
use flagstone_commands::{ErrorText, arg, error, int_arg, is_word};
use flagstone_wire::resp::{Args, Proto, Reply};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Maximum number of keys that are on their way at once.
const DEPARTING_KEYS: usize = 256;

/// Maximum length of a line of the other server's reply in bytes.
const TARGET_LINE: u64 = 1024;

const GONE: &str = "ERR a worker is gone";

/// Index of the key that MIGRATE sends if no keys are listed.
const KEY: usize = 3;

/// Index of the first option.
const OPTIONS: usize = 6;

/// Returns the index of the word KEYS among the options, if keys follow.
fn keys_word(args: Args<'_>) -> Option<usize> {
    let mut at = OPTIONS;
    loop {
        let word = args.get(at)?;
        if is_word(word, "keys") {
            return (at + 1 < args.len()).then_some(at);
        }
        at += match word {
            _ if is_word(word, "auth") => 2,
            _ if is_word(word, "auth2") => 3,
            _ => 1,
        };
    }
}

/// Appends the index of the key, unless keys are listed in its place.
pub(super) fn add_single_key(args: Args<'_>, out: &mut Vec<usize>) {
    if args.len() > KEY && keys_word(args).is_none() {
        out.push(KEY);
    }
}

/// Appends the indices of the listed keys. Beside a key, which is an error, they are none.
pub(super) fn add_listed_keys(args: Args<'_>, out: &mut Vec<usize>) {
    if let Some(word) = keys_word(args)
        && args.get(KEY).is_some_and(<[u8]>::is_empty)
    {
        out.extend(word + 1..args.len());
    }
}

/// A request to send keys.
struct Migration<'a> {
    host: &'a [u8],
    port: u16,
    db: i64,
    limit: Duration,
    copy: bool,
    replace: bool,
    /// User and password, or the password alone.
    login: Vec<&'a [u8]>,
    keys: Vec<&'a [u8]>,
}

impl<'a> Migration<'a> {
    fn parse(args: Args<'a>) -> Result<Self, ErrorText> {
        let key = arg(args, KEY)?;
        let mut this = Self {
            host: arg(args, 1)?,
            port: 0,
            db: 0,
            limit: Duration::from_secs(1),
            copy: false,
            replace: false,
            login: Vec::new(),
            keys: vec![key],
        };
        let mut at = OPTIONS;
        while let Some(word) = args.get(at) {
            let left = args.len() - 1 - at;
            if is_word(word, "copy") {
                this.copy = true;
            } else if is_word(word, "replace") {
                this.replace = true;
            } else if is_word(word, "auth") && left >= 1 {
                this.login = vec![arg(args, at + 1)?];
                at += 1;
            } else if is_word(word, "auth2") && left >= 2 {
                this.login = vec![arg(args, at + 1)?, arg(args, at + 2)?];
                at += 2;
            } else if is_word(word, "keys") {
                if !key.is_empty() {
                    return Err(
                        "ERR When using MIGRATE KEYS option, the key argument must be set \
                        to the empty string"
                            .into(),
                    );
                }
                this.keys = args.iter().skip(at + 1).collect();
                break;
            } else {
                return Err(error::SYNTAX.into());
            }
            at += 1;
        }
        let wait_ms = int_arg(args, 5)?;
        this.db = int_arg(args, 4)?;
        if let Some(ms) = u64::try_from(wait_ms).ok().filter(|ms| *ms > 0) {
            this.limit = Duration::from_millis(ms);
        }
        this.port = u16::try_from(int_arg(args, 2)?).unwrap_or(0);
        Ok(this)
    }

    /// Returns the commands that come before all keys.
    fn greeting(&self) -> (Vec<u8>, usize) {
        let mut out = Reply::new(Proto::Resp2);
        let mut count = 1;
        if !self.login.is_empty() {
            out.array(1 + self.login.len());
            out.bulk_str("AUTH");
            self.login.iter().for_each(|word| out.bulk(word));
            count += 1;
        }
        out.array(2);
        out.bulk_str("SELECT");
        out.bulk_str(&self.db.to_string());
        (out.into_bytes(), count)
    }

    /// Returns the command that stores a key there.
    fn restore(&self, key: &DepartingKey, in_cluster: bool) -> Vec<u8> {
        let mut out = Reply::new(Proto::Resp2);
        out.array(4 + usize::from(self.replace));
        out.bulk_str(if in_cluster { "RESTORE-ASKING" } else { "RESTORE" });
        out.bulk(&key.key);
        out.bulk_str(&key.ttl_ms.to_string());
        out.bulk(&key.payload);
        if self.replace {
            out.bulk_str("REPLACE");
        }
        out.into_bytes()
    }
}

/// Reason why a migration has ended.
enum Broken {
    Connecting,
    Writing,
    Reading,
    /// The other server has answered with an error.
    Refused(Vec<u8>),
}

impl From<Broken> for ErrorText {
    fn from(broken: Broken) -> Self {
        let to_instance = |what: &str| format!("IOERR error or timeout {what} to target instance");
        match broken {
            Broken::Connecting => "IOERR error or timeout connecting to the client".into(),
            Broken::Writing => to_instance("writing").into(),
            Broken::Reading => to_instance("reading").into(),
            Broken::Refused(text) => {
                [b"ERR Target instance replied with error: ", &text[..]].concat().into()
            }
        }
    }
}

/// The connection to the other server.
struct MigrationTarget {
    stream: BufReader<Box<dyn PeerStream>>,
    limit: Duration,
}

impl MigrationTarget {
    async fn connect(
        migration: &Migration<'_>,
        (settings, tls): (&Settings, &TlsSlot),
    ) -> Result<Self, Broken> {
        let host = String::from_utf8_lossy(migration.host).into_owned();
        let connecting = async {
            let stream = TcpStream::connect((host.as_str(), migration.port)).await;
            let stream = stream.map_err(|_| Broken::Connecting)?;
            if !settings.tls_cluster {
                return Ok(Box::new(stream) as Box<dyn PeerStream>);
            }
            tls::secure(stream, &host, tls).await.map_err(|reason| {
                tracing::warn!(target_server = %host, reason, "MIGRATE has no connection");
                Broken::Connecting
            })
        };
        let stream = timeout(migration.limit, connecting).await;
        let stream = stream.map_err(|_| Broken::Connecting)??;
        let mut this = Self { stream: BufReader::new(stream), limit: migration.limit };
        let (greeting, replies) = migration.greeting();
        this.send(&greeting).await?;
        for _ in 0..replies {
            this.reply().await?.map_err(Broken::Refused)?;
        }
        Ok(this)
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let sending = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        let sent = timeout(self.limit, sending).await;
        sent.map_err(|_| Broken::Writing)?.map_err(|_| Broken::Writing)
    }

    /// Reads a status, or the text of an error.
    async fn reply(&mut self) -> Result<Result<(), Vec<u8>>, Broken> {
        let mut line = Vec::new();
        let mut within = (&mut self.stream).take(TARGET_LINE);
        let read = timeout(self.limit, within.read_until(b'\n', &mut line)).await;
        read.map_err(|_| Broken::Reading)?.map_err(|_| Broken::Reading)?;
        match line.trim_ascii_end().split_first() {
            Some((b'+', _)) => Ok(Ok(())),
            Some((b'-', text)) => Ok(Err(text.to_vec())),
            _ => Err(Broken::Reading),
        }
    }

    /// Sends keys, and adds those that the server has taken to `arrived`. The first error that it
    /// answers is noted, and the others go on.
    async fn take(
        &mut self,
        migration: &Migration<'_>,
        in_cluster: bool,
        keys: &[DepartingKey],
        arrived: &mut Vec<Box<[u8]>>,
        refused: &mut Option<Vec<u8>>,
    ) -> Result<(), Broken> {
        for key in keys {
            self.send(&migration.restore(key, in_cluster)).await?;
            match self.reply().await? {
                Ok(()) => arrived.push(key.key.clone()),
                Err(text) => {
                    refused.get_or_insert(text);
                }
            }
        }
        Ok(())
    }
}

/// `MIGRATE host port key|"" destination-db timeout [COPY] [REPLACE] [AUTH password |
/// AUTH2 username password] [KEYS key …]`
pub(super) fn migrate<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let migration = Migration::parse(args)?;
        let mut by_worker: BTreeMap<usize, Vec<Box<[u8]>>> = BTreeMap::new();
        for key in &migration.keys {
            by_worker.entry(cx.node.owner(key)).or_default().push((*key).into());
        }
        let (mut target, mut refused) = (None, None);
        for (worker, mut names) in by_worker {
            while !names.is_empty() {
                let batch = names.len().min(DEPARTING_KEYS);
                let batch = names[..batch].to_vec();
                let taken = turn(cx, &migration, worker, batch, &mut target, &mut refused).await?;
                names.drain(..taken);
            }
        }
        match (target, refused) {
            (_, Some(text)) => return Err(ErrorText::from(Broken::Refused(text)).into()),
            (None, None) => cx.out.simple("NOKEY"),
            (Some(_), None) => cx.out.ok(),
        }
        Ok(())
    })
}

/// Sends the keys of a turn, all of one worker, and returns how many names it has taken.
async fn turn(
    cx: &Call<'_>,
    migration: &Migration<'_>,
    worker: usize,
    names: Vec<Box<[u8]>>,
    target: &mut Option<MigrationTarget>,
    refused: &mut Option<Vec<u8>>,
) -> Result<usize, CallStop> {
    let (tell, told) = oneshot::channel::<Result<DepartingKeys, RoundError>>();
    let (answer, arrived) = oneshot::channel();
    let (peers, db) = (cx.worker.peers.clone(), cx.session.db);
    let departing = tokio::task::spawn_local(async move {
        let job = move |worker: std::rc::Rc<crate::worker::Worker>| {
            worker.depart(db, names, tell, arrived)
        };
        peers.on_worker(worker, false, job).await
    });
    let departure = told.await.map_err(|_| GONE)??;
    let mut gone = Vec::new();
    let sent = async {
        if departure.keys.is_empty() {
            return Ok(());
        }
        let settings = cx.worker.settings();
        if target.is_none() {
            let tls = &cx.node.ports.tls;
            *target = Some(MigrationTarget::connect(migration, (&settings, tls)).await?);
        }
        let Some(target) = target.as_mut() else { return Ok(()) };
        let in_cluster = settings.cluster_enabled;
        target.take(migration, in_cluster, &departure.keys, &mut gone, refused).await
    };
    let sent = sent.await;
    if migration.copy {
        gone.clear();
    }
    // The worker may have ended.
    let _ = answer.send(gone);
    departing.await.map_err(|_| GONE)?.map_err(|_| GONE)??;
    sent.map_err(ErrorText::from)?;
    Ok(departure.taken.max(1))
}
