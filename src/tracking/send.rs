//! Invalidation messages.

use crate::clients::{Client, ClientState, Clients};
use crate::config::OutputBufferLimits;
use crate::pubsub::PubSub;
use bytes::Bytes;
use flagstone_wire::resp::{Proto, Reply};
use std::sync::Arc;

/// Channel of the messages in RESP2.
const CHANNEL: &[u8] = b"__redis__:invalidate";

/// Keys that are invalid.
enum Invalid {
    /// An array of keys, which both protocols render alike.
    Keys(Bytes),
    Everything,
}

impl Invalid {
    fn keys<'a>(keys: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let mut array = Reply::new(Proto::Resp2);
        array.array(keys.clone().count());
        keys.for_each(|key| array.bulk(key));
        Self::Keys(Bytes::from(array.into_bytes()))
    }

    fn body(&self, proto: Proto) -> Bytes {
        match self {
            Self::Keys(array) => array.clone(),
            Self::Everything => {
                let mut null = Reply::new(proto);
                null.null();
                Bytes::from(null.into_bytes())
            }
        }
    }
}

/// Clients that may receive invalidations.
pub struct Audience<'a> {
    pub clients: &'a Clients,
    pub pubsub: &'a PubSub,
    pub limits: &'a OutputBufferLimits,
    pub now_ms: u64,
}

impl Audience<'_> {
    /// Sends the invalidation of a key to clients that have read it.
    pub(crate) fn invalidate(&self, key: &[u8], readers: &[u64]) {
        let invalid = Invalid::keys(std::iter::once(key));
        for client in readers.iter().filter_map(|id| self.clients.get(*id)) {
            if client.is(ClientState::TRACKING) && !client.is(ClientState::BROADCAST) {
                self.send_invalid(&client, &invalid);
            }
        }
    }

    /// Sends the invalidation of some keys to clients, if there are any keys.
    pub(super) fn invalidate_all_of<'a, 'c>(
        &self,
        keys: impl Iterator<Item = &'a [u8]> + Clone,
        clients: impl Iterator<Item = &'c Arc<Client>>,
    ) {
        if keys.clone().next().is_none() {
            return;
        }
        let invalid = Invalid::keys(keys);
        clients.for_each(|client| self.send_invalid(client, &invalid));
    }

    /// Tells every tracking client that all keys have changed.
    pub(crate) fn invalidate_everything(&self) {
        self.invalidate_all(ClientState::TRACKING);
    }

    /// Tells every client that tracks prefixes that all keys have changed: nobody knows which it has read.
    pub(crate) fn invalidate_prefixes(&self) {
        self.invalidate_all(ClientState::BROADCAST);
    }

    fn invalidate_all(&self, of: ClientState) {
        for client in self.clients.all().iter().filter(|client| client.is(of)) {
            self.send_invalid(client, &Invalid::Everything);
        }
    }

    /// Sends a message to a tracking client, or to the one to which it redirects its messages.
    fn send_invalid(&self, client: &Client, invalid: &Invalid) {
        let redirect = client.redirect();
        if redirect == 0 {
            self.push_rendered(client, |proto| {
                (proto == Proto::Resp3).then(|| (invalidate_head(), invalid.body(proto)))
            });
            return;
        }
        if let Some(target) = self.clients.get(redirect).filter(|target| target.may_hear()) {
            let listens = target.is(ClientState::PUBSUB);
            self.push_rendered(&target, |proto| match proto {
                Proto::Resp3 => Some((invalidate_head(), invalid.body(proto))),
                Proto::Resp2 => listens.then(|| (message_head(), invalid.body(proto))),
            });
            return;
        }
        client.set(ClientState::BROKEN_REDIRECT, true);
        self.push_rendered(client, |proto| {
            (proto == Proto::Resp3).then(|| (broken_redirect(redirect), Bytes::new()))
        });
    }

    /// Pushes a message rendered in the client's protocol; `render` may return none.
    fn push_rendered(
        &self,
        client: &Client,
        render: impl FnOnce(Proto) -> Option<(Vec<u8>, Bytes)>,
    ) {
        // The protocol does not change until the message is in the outbox.
        let waker = self.pubsub.between_messages(|| {
            let proto = if client.resp() == 3 { Proto::Resp3 } else { Proto::Resp2 };
            let (head, body) = render(proto)?;
            client.put(&head, &body, self.limits, self.now_ms)
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Returns the bytes before the keys in RESP3.
fn invalidate_head() -> Vec<u8> {
    let mut head = Reply::new(Proto::Resp3);
    head.push(2);
    head.bulk(b"invalidate");
    head.into_bytes()
}

/// Returns the bytes before the keys in RESP2.
fn message_head() -> Vec<u8> {
    let mut head = Reply::new(Proto::Resp2);
    head.push(3);
    head.bulk(b"message");
    head.bulk(CHANNEL);
    head.into_bytes()
}

fn broken_redirect(redirect: u64) -> Vec<u8> {
    let mut out = Reply::new(Proto::Resp3);
    out.push(2);
    out.bulk(b"tracking-redir-broken");
    out.int(redirect.cast_signed());
    out.into_bytes()
}
