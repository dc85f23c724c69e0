//! The receiving end of a link by which another server sends messages of PUBLISH.
//!
//! A link is a connection to the clients' port. `CLUSTER LINK from to nonce proof` asks for a nonce of
//! this server; each `CLUSTER SPREAD number proof [channel message ...]` is proven with both nonces and
//! its number, so no batch counts twice, or on another connection. Batch 0 has no messages: with it, the
//! other side proves that it is there now, and until then the connection may send as little as any
//! client without a password.

use super::proof::{are_proven, is_proven, prove, prove_parts};
use super::{Cluster, Life};
use flagstone_storage::cluster::ClusterSecret;
use std::sync::PoisonError;

/// Reason why a command that only servers use is refused.
pub const UNPROVEN: &str = "ERR This is no command of a server of this cluster";

/// The facts of a link that both ends know: they are in every proof.
#[derive(Clone, Copy, Debug)]
pub struct LinkFacts {
    pub from: Life,
    pub to: Life,
    /// Nonce of the server that sends messages.
    pub asked: u64,
    /// Nonce of the one that receives them.
    pub given: u64,
}

impl LinkFacts {
    /// Returns the proof of the request for a link.
    pub fn prove_question(secret: &ClusterSecret, from: Life, to: Life, asked: u64) -> String {
        prove(secret, &question(from, to, asked))
    }

    /// Returns the proof of the answer to it.
    fn prove_answer(&self, secret: &ClusterSecret) -> String {
        prove(secret, &self.answer())
    }

    /// Returns true if the answer is proven.
    pub fn is_answer_proven(&self, secret: &ClusterSecret, proof: &[u8]) -> bool {
        is_proven(secret, &self.answer(), proof)
    }

    /// Returns the proof of a batch. `parts`: channels and messages by turns.
    pub fn prove_batch<'p>(
        &self,
        secret: &ClusterSecret,
        number: u64,
        parts: impl ExactSizeIterator<Item = &'p [u8]>,
    ) -> String {
        prove_parts(secret, &self.batch(number, parts.len()), parts)
    }

    fn answer(&self) -> Vec<u8> {
        let Self { from, to, asked, given } = self;
        format!("linked {from} {to} {asked} {given}").into_bytes()
    }

    fn batch(&self, number: u64, parts: usize) -> Vec<u8> {
        let Self { from, to, asked, given } = self;
        format!("batch {from} {to} {asked} {given} {number} {parts}\n").into_bytes()
    }
}

fn question(from: Life, to: Life, asked: u64) -> Vec<u8> {
    format!("link {from} {to} {asked}").into_bytes()
}

/// A link, as the session of its connection keeps it.
#[derive(Debug)]
pub struct IncomingLink {
    facts: LinkFacts,
    /// Number of the next batch.
    next: u64,
}

fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// Answers the request for a link: `from`, `to`, nonce and proof. Also returns the line of the reply: a
/// nonce and a proof.
///
/// # Errors
/// If it is not for this life, or not proven.
pub fn open_link(
    cluster: &Cluster,
    words: [&[u8]; 4],
) -> Result<(IncomingLink, String), &'static str> {
    let [from, to, asked] = [0, 1, 2].map(|at| number(words[at]));
    let (Some(from), Some(to), Some(asked)) = (from, to, asked) else { return Err(UNPROVEN) };
    let (from, to, map) = (Life(from), Life(to), cluster.map());
    if to != cluster.life() || !is_proven(map.secret(), &question(from, to, asked), words[3]) {
        return Err(UNPROVEN);
    }
    let given = rand::random();
    let facts = LinkFacts { from, to, asked, given };
    let reply = format!("{given} {}", facts.prove_answer(map.secret()));
    Ok((IncomingLink { facts, next: 0 }, reply))
}

impl IncomingLink {
    /// Returns true if the other side has proven that it is a server.
    pub fn is_proven(&self) -> bool {
        self.next > 0
    }

    /// Checks a batch before its messages are published. `parts`: channels and messages by turns.
    ///
    /// # Errors
    /// If it is not the next one, or not proven, or the other server has a newer link.
    pub fn accept<'p>(
        &mut self,
        cluster: &Cluster,
        words: [&[u8]; 2],
        parts: impl ExactSizeIterator<Item = &'p [u8]>,
    ) -> Result<(), &'static str> {
        let count = parts.len();
        // The first batch comes from a stranger: nothing but its proof is looked at.
        let is_next = number(words[0]) == Some(self.next) && (self.is_proven() || count == 0);
        let text = self.facts.batch(self.next, count);
        if !is_next || !are_proven(cluster.map().secret(), &text, parts, words[1]) {
            return Err(UNPROVEN);
        }
        if !self.is_proven() {
            cluster.replace_link(&self.facts);
        } else if !cluster.is_newest_link(&self.facts) {
            return Err(UNPROVEN);
        }
        self.next += 1;
        Ok(())
    }
}

impl Cluster {
    /// Notes the newest link of a server. Those of servers that are not in the map are forgotten.
    fn replace_link(&self, facts: &LinkFacts) {
        let map = self.map();
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|life, _| map.member(*life).is_some());
        links.insert(facts.from, facts.given);
    }

    /// Returns false if a server has a newer link: what is left in an older one would come too late.
    fn is_newest_link(&self, facts: &LinkFacts) -> bool {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.get(&facts.from) == Some(&facts.given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_storage::Layout;
    use flagstone_storage::cluster::{MapDraft, NodeId};
    use std::sync::Arc;

    const FROM: Life = Life(7);
    const TO: Life = Life(8);

    fn cluster() -> Cluster {
        let map = MapDraft::create(1, 1000).unwrap().map().clone();
        Cluster::new(NodeId(rand::random()), TO, Arc::new(Layout::new(1, 1)), Arc::new(map))
    }

    /// A link as its two ends see it.
    fn link(cluster: &Cluster, asked: u64) -> (LinkFacts, IncomingLink) {
        let map = cluster.map();
        let proof = LinkFacts::prove_question(map.secret(), FROM, TO, asked);
        let words = [FROM.to_string(), TO.to_string(), asked.to_string(), proof];
        let (incoming, reply) =
            open_link(cluster, words.each_ref().map(|it| it.as_bytes())).unwrap();
        let (given, proof) = reply.split_once(' ').unwrap();
        let facts = LinkFacts { from: FROM, to: TO, asked, given: given.parse().unwrap() };
        assert!(facts.is_answer_proven(map.secret(), proof.as_bytes()));
        let other = LinkFacts { given: facts.given ^ 1, ..facts };
        assert!(!other.is_answer_proven(map.secret(), proof.as_bytes()));
        (facts, incoming)
    }

    /// Sends a batch as one end, with a proof of other parts if these are given.
    fn send(
        cluster: &Cluster,
        (facts, incoming): &mut (LinkFacts, IncomingLink),
        number: u64,
        parts: &[&[u8]],
    ) -> bool {
        let proof = facts.prove_batch(cluster.map().secret(), number, parts.iter().copied());
        let words = [number.to_string(), proof];
        incoming
            .accept(cluster, words.each_ref().map(|it| it.as_bytes()), parts.iter().copied())
            .is_ok()
    }

    #[test]
    fn a_batch_counts_once_in_order_and_on_its_own_link() {
        let cluster = cluster();
        let mut one = link(&cluster, 1);
        assert!(!send(&cluster, &mut one, 0, &[b"ch", b"m"]), "a stranger sends no messages");
        assert!(!send(&cluster, &mut one, 1, &[]) && !one.1.is_proven());
        assert!(send(&cluster, &mut one, 0, &[]) && one.1.is_proven());
        assert!(!send(&cluster, &mut one, 0, &[]), "it was sent before");
        assert!(send(&cluster, &mut one, 1, &[b"ch", b"m"]));
        assert!(!send(&cluster, &mut one, 1, &[b"ch", b"m"]), "it was sent before");
        assert!(!send(&cluster, &mut one, 3, &[b"ch", b"m"]), "one is missing");
        // What was sent on one connection proves nothing on another, even with the same question.
        let mut replayed = (one.0, link(&cluster, 1).1);
        assert!(!send(&cluster, &mut replayed, 0, &[]));
        // A newer link ends an older one.
        assert!(send(&cluster, &mut one, 2, &[b"ch", b"m"]));
        let mut two = link(&cluster, 2);
        assert!(send(&cluster, &mut one, 3, &[]), "the newer one is not proven yet");
        assert!(send(&cluster, &mut two, 0, &[]));
        assert!(!send(&cluster, &mut one, 4, &[]) && send(&cluster, &mut two, 1, &[]));
    }

    #[test]
    fn a_link_is_refused_without_the_secret_or_to_another_life() {
        let (here, elsewhere) = (cluster(), cluster());
        let ask = |secret: &Cluster, to: Life, asked: &str| {
            let proof = LinkFacts::prove_question(secret.map().secret(), FROM, to, 5);
            let words = [FROM.to_string(), to.to_string(), asked.to_owned(), proof];
            open_link(&here, words.each_ref().map(|it| it.as_bytes())).map(|_| ())
        };
        assert_eq!(ask(&here, TO, "5"), Ok(()));
        assert_eq!(ask(&elsewhere, TO, "5"), Err(UNPROVEN));
        assert_eq!(ask(&here, Life(9), "5"), Err(UNPROVEN));
        assert_eq!(ask(&here, TO, "6"), Err(UNPROVEN));
        assert_eq!(ask(&here, TO, "x"), Err(UNPROVEN));
    }
}
