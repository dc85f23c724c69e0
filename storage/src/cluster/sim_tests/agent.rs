//! The agent of a server: what the real one does in steps, and at random what it would do if it were
//! wrong about other servers.

use super::LEASE;
use super::server::SimServer;
use crate::cluster::{ClusterMap, Life, MapDraft, MapMember, MapRefusal, MapShard, MemberState};
use crate::encoding::{Function, Library};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::Instant;

/// Number of shards from which on no more are split.
const MOST_SHARDS: usize = 8;

/// Leases that leaving may take.
const LEAVING: u32 = 20;

/// Runs the agent, until the server leaves or can go on no more.
pub(super) async fn run(server: &Rc<SimServer>) -> Result<()> {
    loop {
        server.rest().await;
        if server.is_leaving.get() {
            leave(server).await?;
            return server.release().await;
        }
        step(server).await?;
    }
}

/// Returns true once in so many times, while there is trouble.
fn happens(server: &SimServer, once_in: u64) -> bool {
    !server.world.is_healing() && server.world.sim.below(once_in) == 0
}

async fn step(server: &Rc<SimServer>) -> Result<()> {
    // Else it acts by an old map.
    if !happens(server, 4) {
        look(server).await;
    }
    let map = server.map.borrow().clone();
    if let Some(reason) = server.journal.failed() {
        bail!("its journal has failed: {reason}");
    }
    if !map.is_open(server.life()) {
        bail!("it is sealed");
    }
    // A process that slept while it opened the engine has begun merges there, after this one has.
    if let Some(shard) = server.closed_engine() {
        bail!("the engine of shard {shard} has closed");
    }
    take_given(server, &map);
    take_parked(server, &map).await?;
    flush_some(server);
    unlist_flushed(server, &map).await?;
    split_some(server, &map).await?;
    move_some(server, &map);
    suspect(server, &map).await?;
    forget_ended(server, &map);
    if happens(server, 80) {
        load_library(server).await?;
    }
    Ok(())
}

/// Reads the newest map.
async fn look(server: &SimServer) {
    if let Ok(Some(map)) = server.seat.maps().newest().await {
        server.learn(&map);
    }
}

/// Changes the map. Returns true if the change counts.
async fn change(
    server: &SimServer,
    steps: impl FnMut(&mut MapDraft) -> Result<(), MapRefusal>,
) -> Result<bool> {
    let changed = server.seat.amend(steps).await?;
    if let Ok(map) = &changed {
        server.learn(map);
    }
    Ok(changed.is_ok())
}

/// Runs a task of the server; if it fails, the server ends.
fn spawn(server: &Rc<SimServer>, work: impl Future<Output = Result<()>> + 'static) {
    let own = server.clone();
    let task = server.host.process.task(async move {
        if let Err(error) = work.await {
            own.note(format_args!("ends: {error:#}"));
            own.host.end();
        }
    });
    server.world.spawn(async move {
        task.await;
    });
}

/// Begins to take what the map gives to this life: shards with the same journals together, or not.
fn take_given(server: &Rc<SimServer>, map: &ClusterMap) {
    server.follow_division(map);
    let mut groups: BTreeMap<(&[Life], u16), Vec<MapShard>> = BTreeMap::new();
    for entry in map.owned_by(server.life()) {
        if !server.has(entry.id) && server.busy.borrow_mut().insert(entry.id) {
            let alone = if happens(server, 3) { entry.id } else { 0 };
            groups.entry((&entry.journals, alone)).or_default().push(entry.clone());
        }
    }
    for entries in groups.into_values() {
        let own = server.clone();
        spawn(server, async move {
            // It tries again.
            if let Err(error) = own.take(&entries).await {
                own.note(format_args!("takes nothing: {error:#}"));
            }
            own.busy.borrow_mut().retain(|id| entries.iter().all(|entry| entry.id != *id));
            Ok(())
        });
    }
}

async fn take_parked(server: &SimServer, map: &ClusterMap) -> Result<()> {
    let life = server.life();
    let lack = map.balance().iter().find(|one| one.life == life).map_or(0, |one| one.lack());
    if lack == 0 || map.shards().iter().all(|it| it.owner.is_some()) {
        return Ok(());
    }
    let taken = change(server, |draft| {
        let parked = draft.map().shards().iter().filter(|it| it.owner.is_none());
        let parked: Vec<u16> = parked.map(|it| it.id).take(lack).collect();
        if parked.is_empty() {
            return Err(MapRefusal::NoChange);
        }
        parked.into_iter().try_for_each(|shard| draft.take_parked(shard, life))
    });
    taken.await.map(drop)
}

/// Flushes some shards beside the commands.
fn flush_some(server: &Rc<SimServer>) {
    let here: Vec<u16> = server.partition.borrow().shards.keys().copied().collect();
    for id in here {
        let is_due = server.world.is_healing() && server.adopted.borrow().contains_key(&id);
        if is_due || happens(server, 5) {
            let own = server.clone();
            spawn(server, async move {
                // It is tried again.
                let _ = own.flush(id).await;
                Ok(())
            });
        }
    }
}

/// Takes the journals of other lives from the lists of shards whose engines have it all.
async fn unlist_flushed(server: &SimServer, map: &ClusterMap) -> Result<()> {
    let life = server.life();
    let mut flushed = Vec::new();
    let adopted = server.adopted.borrow().clone();
    for (id, lsn) in adopted {
        // One that is being given away may stay.
        if server.busy.borrow().contains(&id) {
            continue;
        }
        match server.flushed(id) {
            Some(reached) if reached >= lsn => flushed.push(id),
            Some(_) => {}
            None => drop(server.adopted.borrow_mut().remove(&id)),
        }
    }
    let is_listed = |id: &u16| {
        let entry = &map.shards()[usize::from(*id)];
        entry.owner == Some(life) && !(entry.is_begun && entry.journals.len() == 1)
    };
    for id in &flushed {
        server.adopted.borrow_mut().remove(id);
    }
    flushed.retain(is_listed);
    if flushed.is_empty() {
        return Ok(());
    }
    let noted = change(server, |draft| {
        // A shard that the newest map does not allow keeps no other one listed.
        let noted = flushed.iter().filter(|id| draft.note_flushed(**id, life).is_ok());
        if noted.count() > 0 { Ok(()) } else { Err(MapRefusal::NoChange) }
    });
    noted.await.map(drop)
}

/// Asks for the split of a shard now and then, and splits one for which a user asks.
async fn split_some(server: &Rc<SimServer>, map: &ClusterMap) -> Result<()> {
    let sim = &server.world.sim;
    if map.shards().len() < MOST_SHARDS && happens(server, 60) {
        change(server, |draft| {
            let shard = sim.below(draft.map().shards().len() as u64) as u16;
            let slots = draft.map().slots_of(shard);
            let at = slots.start + 1 + sim.below((slots.len() as u64 - 1).max(1)) as u16;
            draft.want_split(shard, Some(at))
        })
        .await?;
    }
    let asked = |entry: &&MapShard| entry.split_at.is_some() && server.has(entry.id);
    let asked = map.owned_by(server.life()).find(asked).map(|entry| entry.id);
    let Some(id) = asked.filter(|_| server.busy.borrow().is_empty()) else { return Ok(()) };
    server.busy.borrow_mut().insert(id);
    let own = server.clone();
    spawn(server, async move {
        let split = own.split(id).await;
        own.busy.borrow_mut().remove(&id);
        split
    });
    Ok(())
}

fn begin_giving(server: &Rc<SimServer>, id: u16, to: Option<Life>) {
    if !server.has(id) || !server.busy.borrow_mut().insert(id) {
        return;
    }
    let own = server.clone();
    spawn(server, async move {
        let given = own.give(id, to).await;
        own.busy.borrow_mut().remove(&id);
        given
    });
}

/// Returns the other lives that may get shards.
fn heirs(server: &SimServer, map: &ClusterMap) -> Vec<Life> {
    let stays = |member: &&MapMember| {
        member.state == MemberState::Open && member.takes_shards() && member.life != server.life()
    };
    map.members().iter().filter(stays).map(|member| member.life).collect()
}

/// Gives a shard away, now and then.
fn move_some(server: &Rc<SimServer>, map: &ClusterMap) {
    if !happens(server, 8) {
        return;
    }
    let owned: Vec<u16> = map.owned_by(server.life()).map(|entry| entry.id).collect();
    if owned.is_empty() {
        return;
    }
    let sim = &server.world.sim;
    let id = owned[sim.below(owned.len() as u64) as usize];
    let heirs = heirs(server, map);
    let to = (!heirs.is_empty() && sim.below(5) > 0)
        .then(|| heirs[sim.below(heirs.len() as u64) as usize]);
    begin_giving(server, id, to);
}

/// Takes servers over that have ended, and now and then one that has not.
async fn suspect(server: &SimServer, map: &ClusterMap) -> Result<()> {
    if !map.member(server.life()).is_some_and(MapMember::takes_shards) {
        return Ok(());
    }
    let others = map.members().iter().filter(|it| it.state == MemberState::Open);
    for life in others.map(|it| it.life).filter(|life| *life != server.life()) {
        let is_silent = server.world.is_silent(life);
        if happens(server, 4) {
            // Whenever that was: what was seen counts only if nothing came behind it.
            let _ = server.seat.progress_of(life).await;
        }
        let is_overdue = is_silent && server.world.sim.below(4) == 0;
        if !is_overdue && !happens(server, 250) {
            continue;
        }
        take_over(server, life, is_silent).await?;
    }
    Ok(())
}

async fn take_over(server: &SimServer, ended: Life, is_silent: bool) -> Result<()> {
    look(server).await;
    let (map, own) = (server.map.borrow().clone(), server.life());
    if !map.is_open(own) || !map.is_open(ended) {
        return Ok(());
    }
    if let Err(error) = server.seat.seal(ended).await {
        server.note(format_args!("cannot seal life {ended}: {error:#}"));
        return Ok(());
    }
    let world = &server.world;
    let answers = |life: Life| life == own || !world.is_silent(life) && world.sim.below(3) > 0;
    let sealed = change(server, |draft| {
        draft.map().is_open(own).then_some(()).ok_or(MapRefusal::NotOpen(own))?;
        let lives = draft.map().members().iter().filter(|it| it.takes_shards());
        let lives = lives.map(|it| it.life).filter(|life| *life != ended && answers(*life));
        let lives: Vec<Life> = lives.collect();
        let owned: Vec<u16> = draft.map().owned_by(ended).map(|it| it.id).collect();
        let heirs = owned.into_iter().zip(lives.into_iter().cycle());
        draft.seal(ended, &heirs.collect::<Vec<_>>())
    });
    if sealed.await? {
        server.note(format_args!("has taken over life {ended}, silent: {is_silent}"));
        world.count(|seen| match is_silent {
            true => seen.takeovers += 1,
            false => seen.wrong_takeovers += 1,
        });
    }
    Ok(())
}

/// Deletes the journals of ended lives that no list names, and takes these from the map.
fn forget_ended(server: &Rc<SimServer>, map: &Arc<ClusterMap>) {
    if map.ended().is_empty() || server.is_forgetting.replace(true) {
        return;
    }
    let (own, map) = (server.clone(), map.clone());
    spawn(server, async move {
        match own.seat.forget(&map).await {
            Ok(newest) => own.learn(&newest),
            Err(error) => own.note(format_args!("forgets nothing: {error:#}")),
        }
        let _ = own.seat.maps().prune().await;
        own.is_forgetting.set(false);
        Ok(())
    });
}

/// Adds a library of functions.
async fn load_library(server: &SimServer) -> Result<()> {
    let newest = server.map.borrow().clone();
    let from = newest.functions();
    let libraries = server.seat.libraries();
    let mut all = match from {
        None => Vec::new(),
        Some(id) => match libraries.read(id).await {
            Ok(Some(all)) => all,
            // Others have changed them, or the store is away.
            Ok(None) | Err(_) => return Ok(()),
        },
    };
    let name: Box<[u8]> = format!("lib{}", server.world.next()).into_bytes().into();
    let function = Function { name: name.clone(), description: None, flags: 0 };
    let (engine, code) = (b"LUA"[..].into(), b"-"[..].into());
    all.push(Library { name: name.clone(), engine, code, functions: vec![function] });
    let Ok(to) = libraries.put(&newest, all.iter()).await else { return Ok(()) };
    if change(server, |draft| draft.replace_functions(from, Some(to))).await? {
        server.world.libraries.borrow_mut().insert(name);
        if let Some(from) = from {
            let _ = libraries.remove(from).await;
        }
        let newest = server.map.borrow().clone();
        let _ = libraries.prune(&newest).await;
    }
    Ok(())
}

/// Gives all shards away, or leaves them to nobody.
async fn leave(server: &Rc<SimServer>) -> Result<()> {
    let (life, begun) = (server.life(), Instant::now());
    change(server, |draft| draft.leave(life)).await?;
    loop {
        look(server).await;
        let map = server.map.borrow().clone();
        if !map.is_open(life) {
            bail!("it is sealed");
        }
        if map.owned_by(life).next().is_none() && server.busy.borrow().is_empty() {
            return Ok(());
        }
        if begun.elapsed() > LEAVING * LEASE {
            bail!("it leaves before all its shards");
        }
        take_given(server, &map);
        let heirs = heirs(server, &map);
        let entries: Vec<u16> = map.owned_by(life).map(|entry| entry.id).collect();
        for (at, id) in entries.into_iter().enumerate() {
            begin_giving(server, id, heirs.get(at % heirs.len().max(1)).copied());
        }
        server.rest().await;
    }
}

/// Reads the libraries that the newest map names.
pub(super) async fn read_libraries(server: &SimServer) -> Result<Vec<Library>> {
    let map = server.seat.maps().newest().await?.context("there is no map")?;
    let Some(id) = map.functions() else { return Ok(Vec::new()) };
    server.seat.libraries().read(id).await?.context("the libraries are gone")
}
