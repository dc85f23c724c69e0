//! Sends messages of PUBLISH to the other servers, by a link of its own to each ([`crate::cluster`]).
//!
//! A batch is sent once the one before is answered, so what is published meanwhile goes together. A
//! link that breaks takes what was queued for it along: each message arrives at most once.

use super::beats::{PeerConnection, ask, connect};
use super::{STEPS, Seated};
use crate::cluster::{LinkFacts, PeerQueue, SpreadMessage};
use flagstone_storage::cluster::{Life, MapMember, NodeAddress};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The tasks that send messages, one for each other server.
pub(super) struct Spreading {
    own: Seated,
    tasks: BTreeMap<Life, (NodeAddress, AbortHandle)>,
}

impl Spreading {
    pub(super) fn new(own: Seated) -> Self {
        Self { own, tasks: BTreeMap::new() }
    }

    /// Sends messages to these servers, and no others.
    pub(super) fn keep(&mut self, others: &[MapMember]) {
        let messages = &self.own.cluster.messages;
        let is_kept = |life: &Life, at: &NodeAddress| {
            others.iter().any(|member| member.life == *life && member.address == *at)
        };
        let gone = self.tasks.extract_if(.., |life, (at, _)| !is_kept(life, at));
        for (life, (_, task)) in gone {
            messages.remove(life);
            task.abort();
        }
        for member in others {
            if self.tasks.contains_key(&member.life) {
                continue;
            }
            let queue = messages.add(member.node, member.life);
            let spreading = spread(self.own.clone(), member.clone(), queue);
            let task = self.own.node.background.spawn(spreading);
            self.tasks.insert(member.life, (member.address.clone(), task.abort_handle()));
        }
    }
}

impl Drop for Spreading {
    fn drop(&mut self) {
        for (life, (_, task)) in &self.tasks {
            self.own.cluster.messages.remove(*life);
            task.abort();
        }
    }
}

/// Sends messages to a server until the task is ended.
async fn spread(own: Seated, to: MapMember, queue: Arc<PeerQueue>) {
    let lease = own.cluster.map().lease();
    loop {
        let linked = timeout(lease, MessageLink::begin(&own, &to)).await;
        let why = match linked.unwrap_or_else(|_| Err("no answer".to_owned())) {
            Ok(mut link) => {
                queue.open(own.node.clock.now_ms());
                let why = link.serve(&own, &queue).await;
                let lost = queue.close() + link.sent as u64;
                own.cluster.messages.dropped.fetch_add(lost, Ordering::Relaxed);
                why
            }
            Err(why) => why,
        };
        tracing::debug!(life = to.life.0, why, "no link for messages to a server of the cluster");
        tokio::time::sleep(lease / STEPS).await;
    }
}

/// A link to another server.
struct MessageLink {
    connection: PeerConnection,
    facts: LinkFacts,
    /// Number of the next batch.
    next: u64,
    /// Messages of the batch that is not answered.
    sent: usize,
}

impl MessageLink {
    /// Connects, and proves that this is a server of the cluster.
    async fn begin(own: &Seated, to: &MapMember) -> Result<Self, String> {
        let (map, from, asked) = (own.cluster.map(), own.cluster.life(), rand::random::<u64>());
        let proof = LinkFacts::prove_question(map.secret(), from, to.life, asked);
        let words = [&from.to_string(), &to.life.to_string(), &asked.to_string(), &proof];
        let mut connection = connect(own, to).await?;
        let mut request: Vec<&[u8]> = vec![b"CLUSTER", b"LINK"];
        request.extend(words.map(|word| word.as_bytes()));
        let line = ask(&mut connection, &request).await?;
        let (given, proof) = line.split_once(' ').ok_or_else(|| line.clone())?;
        let given = given.parse().map_err(|_| line.clone())?;
        let facts = LinkFacts { from, to: to.life, asked, given };
        if !facts.is_answer_proven(map.secret(), proof.as_bytes()) {
            return Err("the answer is not proven".to_owned());
        }
        let mut link = Self { connection, facts, next: 0, sent: 0 };
        link.send(own, &[]).await?;
        Ok(link)
    }

    /// Sends what is queued until the link breaks, and returns the reason.
    async fn serve(&mut self, own: &Seated, queue: &PeerQueue) -> String {
        let lease = own.cluster.map().lease();
        loop {
            // An empty batch shows that the link still stands.
            let batch = timeout(lease, queue.next_batch()).await.unwrap_or_default();
            match timeout(lease, self.send(own, &batch)).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => return why,
                Err(_) => return "no answer".to_owned(),
            }
        }
    }

    async fn send(&mut self, own: &Seated, batch: &[SpreadMessage]) -> Result<(), String> {
        self.sent = batch.len();
        let parts: Vec<&[u8]> = batch.iter().flat_map(|it| [&*it.channel, &*it.payload]).collect();
        let map = own.cluster.map();
        let proof = self.facts.prove_batch(map.secret(), self.next, parts.iter().copied());
        let number = self.next.to_string();
        let mut words: Vec<&[u8]> =
            vec![b"CLUSTER", b"SPREAD", number.as_bytes(), proof.as_bytes()];
        words.extend(parts);
        let line = ask(&mut self.connection, &words).await?;
        if line != number {
            return Err(line);
        }
        (self.next, self.sent) = (self.next + 1, 0);
        Ok(())
    }
}
