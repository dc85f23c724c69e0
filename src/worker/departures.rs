//! Keys on their way to another server (MIGRATE): they are locked until that server has answered.

use super::{LockKey, Shown, Worker};
use crate::command::RoundError;
use flagstone_commands::generic::payload_of;
use flagstone_commands::{Ctx, Stop};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::Need;
use flagstone_wire::resp::{Proto, Reply};
use std::rc::Rc;
use tokio::sync::oneshot;

/// Bytes of payloads after which further keys wait for the next turn.
const DEPARTING_BYTES: usize = 16 << 20;

/// A key that another server is to get.
#[derive(Debug)]
pub struct DepartingKey {
    pub key: Box<[u8]>,
    /// Its value in the form of DUMP.
    pub payload: Vec<u8>,
    /// Milliseconds until it expires; 0: never.
    pub ttl_ms: u64,
}

/// The keys of a turn.
#[derive(Debug, Default)]
pub struct DepartingKeys {
    /// Those that exist.
    pub keys: Vec<DepartingKey>,
    /// Number of names that were looked up; the others wait for the next turn.
    pub taken: usize,
}

impl Worker {
    /// Locks keys of this worker, sends their values to the caller, and waits for the names of the
    /// keys to delete; then deletes these, and waits until that is stored. If the caller does not
    /// answer, no key is deleted.
    pub(crate) async fn depart(
        self: Rc<Self>,
        db: u32,
        names: Vec<Box<[u8]>>,
        tell: oneshot::Sender<Result<DepartingKeys, RoundError>>,
        arrived: oneshot::Receiver<Vec<Box<[u8]>>>,
    ) -> Result<(), RoundError> {
        let keys: Vec<LockKey> = names.iter().map(|name| (db, name.clone())).collect();
        let (_lock, granted) = self.lock(&keys);
        granted.await.map_err(|_| "ERR the command was abandoned".to_owned())?;
        // The caller may have ended.
        let _ = tell.send(self.look_up(db, &names).await);
        let Ok(gone) = arrived.await else { return Ok(()) };
        if gone.is_empty() {
            return Ok(());
        }
        let shown = self.remove_departed(db, &gone);
        self.wait_shown(&shown).await
    }

    /// Deletes keys that have arrived elsewhere.
    fn remove_departed(self: &Rc<Self>, db: u32, gone: &[Box<[u8]>]) -> Shown {
        let mut partition = self.partition.borrow_mut();
        let store = &mut partition.store;
        store.begin(self.node.clock.now_ms(), false);
        store.notes.want(self.node.interest(&self.settings()));
        let mut removed: Vec<&[u8]> = Vec::new();
        for name in gone {
            // It is in memory, and locked: it cannot be missing.
            if store.remove(db, name).unwrap_or(false) {
                store.notes.event(db, name, NotifyFlags::GENERIC, "del");
                removed.push(name);
            }
        }
        if !removed.is_empty() {
            store.words.deletion(db, &removed);
        }
        store.see_open_round();
        let shown = self.rounds.seen(store.seen());
        self.take_notes(partition, 0);
        self.commit();
        shown
    }

    async fn look_up(
        self: &Rc<Self>,
        db: u32,
        names: &[Box<[u8]>],
    ) -> Result<DepartingKeys, RoundError> {
        let mut departure = DepartingKeys::default();
        let mut bytes = 0;
        for name in names {
            if bytes > DEPARTING_BYTES {
                break;
            }
            departure.taken += 1;
            if let Some(found) = self.whole_payload(db, name).await? {
                bytes += found.payload.len() + found.key.len();
                departure.keys.push(found);
            }
        }
        Ok(departure)
    }

    /// Returns a key's value, and loads its missing parts; `None` if there is none.
    async fn whole_payload(
        self: &Rc<Self>,
        db: u32,
        name: &[u8],
    ) -> Result<Option<DepartingKey>, RoundError> {
        loop {
            let missing: Vec<Need> = {
                let settings = self.settings();
                let now_ms = self.node.clock.now_ms();
                let mut partition = self.partition.borrow_mut();
                partition.store.begin(now_ms, false);
                let mut out = Reply::new(Proto::Resp2);
                let mut cx = Ctx::new(&mut partition.store, &mut out, db, &settings.data);
                match payload_of(&mut cx, name) {
                    Ok(None) => return Ok(None),
                    Ok(Some((payload, expire_at_ms))) => {
                        let ttl_ms = match expire_at_ms {
                            0 => 0,
                            at_ms => at_ms.saturating_sub(now_ms).max(1),
                        };
                        return Ok(Some(DepartingKey { key: name.into(), payload, ttl_ms }));
                    }
                    Err(Stop::Miss(needs)) => needs,
                    Err(_) => return Err("ERR the value cannot be read".to_owned().into()),
                }
            };
            self.load(missing).await?;
        }
    }
}
