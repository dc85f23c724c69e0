//! Beats: each server asks each other one, several times in a lease, whether it is there, and tells it
//! the number of the newest map that it knows. Both sides prove that they know the cluster's secret.
//!
//! A beat is the command `CLUSTER BEAT from to number nonce given proof`; the reply is a line with a number,
//! the state of the server, and a proof. `given`: the slots that the server has given away in this life. A server whose journal cannot reach its store is there in
//! vain: it counts as silent.

use super::{STEPS, Seated};
use crate::cluster::{Cluster, GivenSlots, Heard, SaidOfJournal, UNPROVEN, is_proven, prove};
use crate::tls::{self, PeerStream};
use flagstone_storage::cluster::{ClusterMap, Life, MapMember, MemberState, NodeAddress};
use flagstone_storage::journal::Lsn;
use flagstone_wire::resp::reply::write_request;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

/// Maximum length of the line of a reply in bytes.
const LINE_MAX: u64 = 256;

/// Parts of a lease that an answer may take.
const PATIENCE: u32 = 3;

/// Interval of beats to replicas while clients wait for them.
const AWAITED: Duration = Duration::from_millis(20);

/// The states of a server: its journal's store answers, as far as is known, or it does not.
const WELL: &str = "well";
const CUT_OFF: &str = "cut-off";
/// Well, and a shard is being given away: nothing can be said of its records.
const GIVING: &str = "giving";

/// The tasks that send beats, one for each other server.
pub(super) struct Beats {
    own: Seated,
    tasks: BTreeMap<Life, (NodeAddress, AbortHandle)>,
}

impl Beats {
    pub(super) fn new(own: Seated) -> Self {
        Self { own, tasks: BTreeMap::new() }
    }

    pub(super) fn heard(&self) -> &Heard {
        &self.own.cluster.sight.heard
    }

    /// Sends beats to these servers, and no others. A new one counts as heard for now.
    pub(super) fn keep(&mut self, others: &[MapMember]) {
        let is_kept = |life: &Life, at: &NodeAddress| {
            others.iter().any(|member| member.life == *life && member.address == *at)
        };
        let gone = self.tasks.extract_if(.., |life, (at, _)| !is_kept(life, at));
        for (life, (_, task)) in gone {
            task.abort();
            self.own.cluster.sight.heard.forget(life);
            self.own.cluster.copies.forget(life);
        }
        for member in others {
            if !member.is_replica() {
                self.own.cluster.copies.forget(member.life);
            }
            if self.tasks.contains_key(&member.life) {
                continue;
            }
            self.own.cluster.sight.heard.note(member.life);
            let beating = beat(self.own.clone(), member.clone());
            let task = self.own.node.background.spawn(beating);
            self.tasks.insert(member.life, (member.address.clone(), task.abort_handle()));
        }
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        self.tasks.values().for_each(|(_, task)| task.abort());
    }
}

/// Sends beats to a server until the task is ended.
async fn beat(own: Seated, to: MapMember) {
    let lease = own.cluster.map().lease();
    let mut link = None;
    loop {
        let (told, asked_at) = (own.cluster.map().number(), Instant::now());
        let asked = timeout(lease / PATIENCE, ask_whether_there(&own, &to, link.take())).await;
        if let Ok(Ok((answered, said))) = asked {
            link = Some(answered);
            if said.is_well {
                let heard = &own.cluster.sight.heard;
                heard.note(to.life);
                if !said.is_giving {
                    let (published, map) = (said.published, said.map);
                    heard
                        .note_published(to.life, SaidOfJournal { asked: asked_at, published, map });
                }
            }
            if is_replica(&own, to.life) {
                own.cluster.copies.note(to.life, told, said.applied);
            }
            own.node.followers.acknowledged.notify_waiters();
            own.cluster.hear(said.map);
        }
        // Others hear of a newer map at once, and replicas are asked often while clients wait for them.
        let began = Instant::now();
        let is_awaited = || is_replica(&own, to.life) && own.cluster.copies.are_awaited();
        let until = || began + if is_awaited() { AWAITED } else { lease / STEPS };
        while Instant::now() < until() && own.cluster.map().number() == told {
            let _ = tokio::time::timeout_at(until(), own.cluster.change()).await;
        }
    }
}

fn is_replica(own: &Seated, life: Life) -> bool {
    own.cluster.map().member(life).is_some_and(MapMember::is_replica)
}

/// A connection to another server.
pub(super) type PeerConnection = BufReader<Box<dyn PeerStream>>;

/// The answer to a beat.
struct BeatAnswer {
    /// The number of the newest map that the other server knows.
    map: u64,
    is_well: bool,
    is_giving: bool,
    /// The number up to which all objects of its journal are stored.
    published: u64,
    /// The lsn up to which it has all records of the server that asks, if it is a replica; else 0.
    applied: Lsn,
}

/// Sends one beat; returns the connection and the answer.
async fn ask_whether_there(
    own: &Seated,
    to: &MapMember,
    link: Option<PeerConnection>,
) -> Result<(PeerConnection, BeatAnswer), String> {
    let mut link = match link {
        Some(link) => link,
        None => connect(own, to).await?,
    };
    let (map, given) = (own.cluster.map(), own.cluster.given());
    let lives = (own.cluster.life(), to.life);
    let mut said = send_beat(&mut link, &map, lives, &given).await?;
    said.applied = own.cluster.proven_by(&given, said.applied);
    Ok((link, said))
}

/// Sends one beat on a connection.
async fn send_beat(
    link: &mut PeerConnection,
    map: &ClusterMap,
    (from, to): (Life, Life),
    given: &GivenSlots,
) -> Result<BeatAnswer, String> {
    let (nonce, number, given) = (rand::random::<u64>(), map.number(), given.word());
    let proof = prove(map.secret(), &question(from, to, (number, nonce), &given));
    let numbers = [from.to_string(), to.to_string(), number.to_string(), nonce.to_string()];
    let mut request: Vec<&[u8]> = vec![b"CLUSTER", b"BEAT"];
    request.extend(numbers.iter().map(|word| word.as_bytes()));
    request.extend([given.as_bytes(), proof.as_bytes()]);
    let line = ask(link, &request).await?;
    let mut words = line.split(' ');
    let mut next = || words.next().ok_or_else(|| line.clone());
    let (known, state, published, applied, proof) = (next()?, next()?, next()?, next()?, next()?);
    let number = |word: &str| word.parse::<u64>().map_err(|_| line.clone());
    let said = BeatAnswer {
        map: number(known)?,
        is_well: state == WELL || state == GIVING,
        is_giving: state == GIVING,
        published: number(published)?,
        applied: number(applied)?,
    };
    let told = answer(to, (said.map, said.published, said.applied), (state, nonce));
    match is_proven(map.secret(), &told, proof.as_bytes()) {
        true => Ok(said),
        false => Err("the answer is not proven".to_owned()),
    }
}

/// Sends a command, and returns the line of its reply.
pub(super) async fn ask(
    connection: &mut PeerConnection,
    words: &[&[u8]],
) -> Result<String, String> {
    let broken = |error: std::io::Error| error.to_string();
    let mut request = Vec::new();
    write_request(&mut request, words.iter().copied());
    connection.write_all(&request).await.map_err(broken)?;
    connection.flush().await.map_err(broken)?;
    let mut line = String::new();
    (&mut *connection).take(LINE_MAX).read_line(&mut line).await.map_err(broken)?;
    match line.strip_prefix('+') {
        Some(answer) => Ok(answer.trim_end().to_owned()),
        None => Err(line),
    }
}

/// Connects to the port for clients of another server.
pub(super) async fn connect(own: &Seated, to: &MapMember) -> Result<PeerConnection, String> {
    let settings = own.node.config.settings();
    let address = &to.address;
    let port = address.tls_port.filter(|_| settings.tls_cluster).unwrap_or(address.port);
    let stream = TcpStream::connect((&*address.host, port)).await.map_err(|e| e.to_string())?;
    let _ = stream.set_nodelay(true);
    let stream = match settings.tls_cluster {
        true => tls::secure(stream, &address.host, &own.node.ports.tls).await?,
        false => Box::new(stream),
    };
    Ok(BufReader::new(stream))
}

/// Time limit for telling a server of a map.
const TELLING: Duration = Duration::from_secs(1);

/// Tells the servers of a cluster that there is a newer map, for a command that has changed it: else each
/// finds out at its next look. One that cannot be reached without TLS is not told.
pub(crate) async fn tell_of(map: &Arc<ClusterMap>) {
    let open = map.members().iter().filter(|member| member.state == MemberState::Open);
    let telling: JoinSet<_> = open.map(|member| tell(map.clone(), member.clone())).collect();
    let _ = timeout(TELLING, telling.join_all()).await;
}

/// Returns true if a life answers, for a command that needs to know if its process runs. A life that listens by
/// TLS only does not answer.
pub(crate) async fn answers(map: &Arc<ClusterMap>, member: &MapMember) -> bool {
    let told = timeout(TELLING, tell(map.clone(), member.clone())).await;
    matches!(told, Ok(Ok(())))
}

/// Tells the next owner of a shard of the newest map.
pub(super) async fn tell_next(own: &Seated, next: &MapMember) -> Result<(), String> {
    let told = ask_whether_there(own, next, None).await;
    told.map(drop)
}

async fn tell(map: Arc<ClusterMap>, member: MapMember) -> Result<(), String> {
    let address = (&*member.address.host, member.address.port);
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let nobody = Life(0);
    let mut connection: PeerConnection = BufReader::new(Box::new(stream));
    let given = GivenSlots::default();
    send_beat(&mut connection, &map, (nobody, member.life), &given).await.map(drop)
}

fn question(from: Life, to: Life, (number, nonce): (u64, u64), given: &str) -> Vec<u8> {
    format!("beat {from} {to} {number} {nonce} {given}").into_bytes()
}

fn answer(
    life: Life,
    (number, published, applied): (u64, u64, Lsn),
    (state, nonce): (&str, u64),
) -> Vec<u8> {
    format!("here {life} {number} {state} {published} {applied} {nonce}").into_bytes()
}

/// Answers a beat: `from`, `to`, number, nonce, given slots and proof. Returns the line of the reply. `is_well`: the
/// journal of this server reaches its store, as far as is known; `published`: the number up to which all
/// objects of that journal are stored.
///
/// # Errors
/// If it is not for this life, or not proven.
pub(crate) fn answer_beat(
    cluster: &Cluster,
    words: [&[u8]; 6],
    (is_well, published): (bool, u64),
) -> Result<String, &'static str> {
    let [from, to, number, nonce] = [0, 1, 2, 3]
        .map(|at| std::str::from_utf8(words[at]).ok().and_then(|word| word.parse::<u64>().ok()));
    let given = std::str::from_utf8(words[4]).ok();
    let (Some(from), Some(to), Some(number), Some(nonce), Some(given)) =
        (from, to, number, nonce, given)
    else {
        return Err(UNPROVEN);
    };
    let map = cluster.map();
    let asked = question(Life(from), Life(to), (number, nonce), given);
    if Life(to) != cluster.life() || !is_proven(map.secret(), &asked, words[5]) {
        return Err(UNPROVEN);
    }
    let given = GivenSlots::parse(given).ok_or(UNPROVEN)?;
    cluster.hear(number);
    let state = match (is_well, cluster.is_giving()) {
        (false, _) => CUT_OFF,
        (true, true) => GIVING,
        (true, false) => WELL,
    };
    // Read after that: it gives this server no shard that has been given away before.
    let map = cluster.map();
    let applied = cluster.mirrors.tell(Life(from), (number, &given), &map);
    let known = map.number();
    let told = answer(cluster.life(), (known, published, applied), (state, nonce));
    let proof = prove(map.secret(), &told);
    Ok(format!("{known} {state} {published} {applied} {proof}"))
}
