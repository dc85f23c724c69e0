//! Random histories, killed at random points.

use crate::image::Pick;
use crate::model::{Item, Model, V};
use crate::world::{World, fresh};
use flagstone_storage::encoding::Library;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::{Hash, Str, Value};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::sync::Arc;

pub(crate) const DATABASES: usize = 3;
const CYCLES: u32 = 3;
const STEPS: u32 = 70;

/// One run of a seed.
pub(crate) struct History {
    pub(crate) world: World,
    pub(crate) random: StdRng,
}

fn pick_some(random: &mut StdRng) -> Pick {
    let mut random = StdRng::seed_from_u64(random.next_u64());
    let mut left = 3;
    Box::new(move |_| {
        let picked = left > 0 && random.random_range(0..60) == 0;
        left -= u32::from(picked);
        picked
    })
}

pub(crate) fn key(random: &mut StdRng) -> Vec<u8> {
    let n = random.random_range(0..8);
    // Half of the keys share a slot.
    if random.random() { format!("{{t}}{n}").into() } else { format!("key{n}").into() }
}

/// Returns the memory that a start has for replayed rows: enough for all, or for few.
fn replay_bytes(random: &mut StdRng) -> usize {
    if random.random_range(0..3) == 0 { random.random_range(500..20_000) } else { 4 << 20 }
}

fn bytes(random: &mut StdRng, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    random.fill_bytes(&mut out);
    out
}

impl History {
    pub(crate) fn db(&mut self) -> u32 {
        // Mostly one database, so that keys meet.
        if self.random.random_range(0..3) > 0 {
            0
        } else {
            self.random.random_range(0..DATABASES as u32)
        }
    }

    fn expiry(&mut self) -> u64 {
        match self.random.random_range(0..3) {
            0 => self.world.model.now_ms + self.random.random_range(1..2000),
            _ => 0,
        }
    }

    pub(crate) fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..6 => self.set(),
            6..9 => self.push(),
            9..13 => self.edit_list(),
            13..16 => self.write_at(),
            16..19 => self.add_entries(),
            19..23 => self.edit_stream(),
            23..27 => self.set_fields(),
            27..31 => self.remove_fields(),
            31..39 => self.add_members(),
            39..42 => self.remove_members(),
            42..45 => self.pop_members(),
            45..51 => self.remove(),
            51..54 => self.set_expiry(),
            54..61 => self.rename(),
            61..64 => self.copy(),
            64..67 => self.coordinate(),
            67..75 => self.world.commit(),
            75 => self.world.evict(),
            76 => self.pass(),
            77 => {
                let shard = self.random.random_range(0..self.world.shards());
                self.world.look_for_keys(shard);
            }
            78..80 => {
                self.world.commit();
                self.world.model.now_ms += self.random.random_range(1..1000);
                self.world.expire();
            }
            80 => self.change_library(),
            81..84 => {
                let db = self.db();
                self.world.flush_db(db);
            }
            84..86 => {
                let (a, b) = (self.db(), self.db());
                self.world.swap_db(a, b);
            }
            86..91 => {
                let shard = self.random.random_range(0..self.world.shards());
                let batch = self.random.random::<bool>().then(|| self.random.random_range(1..40));
                self.world.hand_over(shard, batch);
            }
            91..96 => {
                let shard = self.random.random_range(0..self.world.shards());
                self.world.flush(shard);
            }
            96 if self.random.random_range(0..3) == 0 => {
                self.split();
            }
            96..98 => {
                let shard = self.random.random_range(0..self.world.shards());
                self.world.sweep(shard);
            }
            98 if self.random.random() => self.scan(),
            98 => self.break_engine(),
            _ => {
                let db = self.db() as usize;
                let name = key(&mut self.random);
                let found = self.world.get(db as u32, &name);
                let want = self.world.model.dbs[db].get(&name).map(|(v, at)| ((**v).clone(), *at));
                assert_eq!(found, want, "before any crash");
            }
        }
    }

    /// Takes a step of a pass over blind operations. The map may be cut between two.
    fn pass(&mut self) {
        self.world.commit();
        let shard = self.random.random_range(0..self.world.shards());
        if !self.world.begin_pass(shard, true) {
            let reads = self.random.random();
            self.world.end_pass(shard, reads);
        }
        if self.random.random() {
            self.world.partition.cut(shard);
        }
    }

    fn change_library(&mut self) {
        let mut libraries = self.world.libraries.clone();
        let name = vec![self.random.random_range(b'a'..b'd')].into_boxed_slice();
        let len = self.random.random_range(0..40_000);
        let code = bytes(&mut self.random, len).into();
        libraries.retain(|library| library.name != name);
        if self.random.random() {
            let engine = b"LUA"[..].into();
            libraries.push(Library { name, engine, code, functions: Vec::new() });
            libraries.sort_by(|a, b| a.name.cmp(&b.name));
        }
        self.world.set_libraries(libraries);
    }

    pub(crate) fn put(&mut self, db: u32, name: &[u8], value: V, expire_at_ms: u64) {
        let item: Item = (Arc::new(value), expire_at_ms);
        self.world.model.dbs[db as usize].insert(name.to_vec(), item);
    }

    fn set(&mut self) {
        let (db, name, expiry) = (self.db(), key(&mut self.random), self.expiry());
        let value = match self.random.random_range(0..4) {
            0 => self.random.random_range(-5i64..5).to_string().into(),
            1 => {
                let len = self.random.random_range(16_000..60_000);
                bytes(&mut self.random, len)
            }
            _ => {
                let len = self.random.random_range(0..200);
                bytes(&mut self.random, len)
            }
        };
        if self.random.random_range(0..3) == 0 {
            self.world.evict();
        }
        self.world.set(db, &name, &value, expiry);
    }

    fn write_at(&mut self) {
        let (db, name) = (self.db(), key(&mut self.random));
        let offset = self.random.random_range(0..100_000usize);
        let len = self.random.random_range(1..40_000);
        let part = bytes(&mut self.random, len);
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, &name)?;
            // Like SETRANGE: missing parts are requested before any change.
            let mut string = match &entry.value {
                Value::Str(s) => s.clone(),
                _ => {
                    entry.expire_at_ms = 0;
                    Str::from_vec(Vec::new())
                }
            };
            string.write_at(offset, &part).or_load(db, &name)?;
            entry.value = Value::Str(string);
            Ok(())
        });
        let mut whole = self.world.model.string(db as usize, &name);
        let is_string = matches!(
            self.world.model.dbs[db as usize].get(&name).map(|(v, _)| &**v),
            Some(V::Str(_))
        );
        let expiry = if is_string { self.world.model.expiry(db as usize, &name) } else { 0 };
        whole.resize(whole.len().max(offset + len), 0);
        whole[offset..offset + len].copy_from_slice(&part);
        self.put(db, &name, V::Str(whole), expiry);
    }

    fn field(&mut self) -> Vec<u8> {
        match self.random.random_range(0..40) {
            0 => vec![b'L'; 33_000],
            n => format!("field{}", n % 12).into(),
        }
    }

    fn set_fields(&mut self) {
        let (db, name) = (self.db(), key(&mut self.random));
        let mut fields: Vec<(Vec<u8>, Vec<u8>, u64)> = Vec::new();
        // Now and then enough to leave the meta row.
        let longest = if self.random.random_range(0..8) == 0 { 6000 } else { 300 };
        for _ in 0..self.random.random_range(1..6) {
            let len = self.random.random_range(0..longest);
            fields.push((self.field(), bytes(&mut self.random, len), self.expiry()));
        }
        let table = self.random.random_range(0..3) == 0;
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, &name)?;
            if let Value::Hash(hash) = &entry.value {
                hash.require(fields.iter().map(|(n, ..)| &n[..])).or_load(db, &name)?;
            } else {
                entry.value = Value::Hash(Box::new(Hash::new()));
                entry.expire_at_ms = 0;
            }
            let hash = entry.as_hash_mut().expect("a hash");
            for (n, v, at) in &fields {
                hash.set(n, v, *at);
            }
            if table {
                hash.make_table();
            }
            Ok(())
        });
        let expiry = match self.world.model.dbs[db as usize].get(&name) {
            Some((v, at)) if matches!(&**v, V::Hash(_)) => *at,
            _ => 0,
        };
        let mut hash = self.world.model.hash(db as usize, &name);
        hash.extend(fields.into_iter().map(|(n, v, at)| (n, (v, at))));
        self.put(db, &name, V::Hash(hash), expiry);
    }

    fn remove_fields(&mut self) {
        let (db, name) = (self.db(), key(&mut self.random));
        let mut hash = self.world.model.hash(db as usize, &name);
        if hash.is_empty() {
            return;
        }
        let mut gone: Vec<Vec<u8>> = (0..3).map(|_| self.field()).collect();
        if self.random.random_range(0..4) == 0 {
            // Most of them, with all of it in memory: it may be packed again.
            gone.extend(hash.keys().skip(1).cloned());
            self.world.run(|store| {
                let entry = store.entry(db, &name)?;
                let Some(Value::Hash(hash)) = entry.map(|entry| &entry.value) else {
                    panic!("a hash")
                };
                hash.require_all().or_load(db, &name)
            });
        }
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, &name)?;
            if let Value::Hash(hash) = &entry.value {
                hash.require(gone.iter().map(|n| &n[..])).or_load(db, &name)?;
            }
            let hash = entry.as_hash_mut().expect("a hash");
            for name in &gone {
                hash.remove(name);
            }
            if hash.is_empty() {
                entry.clear();
            }
            Ok(())
        });
        gone.iter().for_each(|name| drop(hash.remove(name)));
        if hash.is_empty() {
            self.world.model.dbs[db as usize].remove(&name);
        } else {
            let expiry = self.world.model.expiry(db as usize, &name);
            self.put(db, &name, V::Hash(hash), expiry);
        }
    }

    /// Scans a hash or set step by step, while parts of it are dropped from memory.
    fn scan(&mut self) {
        let (db, name) = (self.db(), key(&mut self.random));
        let item = self.world.model.dbs[db as usize].get(&name).cloned();
        let expected: Vec<Vec<u8>> = match item.as_ref().map(|(value, _)| &**value) {
            Some(V::Hash(fields)) => fields.keys().cloned().collect(),
            Some(V::Set(members)) => members.iter().cloned().collect(),
            _ => return,
        };
        let layout = self.world.partition.store.layout().clone();
        let place = |name: &[u8]| layout.hash(name) >> 16;
        let (mut seen, mut cursor) = (Vec::new(), 0);
        loop {
            let step = self.random.random_range(1..5);
            let (next, mut names) = self.world.run(|store| {
                let mut names = Vec::new();
                let mut visit = |name: &[u8]| names.push(name.to_vec());
                let next = match store.entry(db, &name)?.map(|entry| &entry.value) {
                    Some(Value::Hash(hash)) => hash.scan(cursor, step, place, |n, _| visit(n)),
                    Some(Value::Set(set)) => set.scan(cursor, step, place, visit),
                    _ => Ok(0),
                };
                Ok((next.or_load(db, &name)?, names))
            });
            seen.append(&mut names);
            if next == 0 {
                break;
            }
            cursor = next;
            if self.random.random_range(0..3) == 0 {
                self.world.commit();
                self.world.partition.store.shed(db, &name, step);
            }
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen, expected, "a scan");
    }

    fn remove(&mut self) {
        let (db, name) = (self.db(), key(&mut self.random));
        let was = self.world.run(|store| store.remove(db, &name));
        let expected = self.world.model.dbs[db as usize].remove(&name).is_some();
        assert_eq!(was, expected, "whether a deleted key existed");
    }

    fn set_expiry(&mut self) {
        let (db, name, expiry) = (self.db(), key(&mut self.random), self.expiry());
        if !self.world.model.dbs[db as usize].contains_key(&name) {
            return;
        }
        self.world.run(|store| {
            store.entry_mut(db, &name)?.expire_at_ms = expiry;
            Ok(())
        });
        if let Some(item) = self.world.model.dbs[db as usize].get_mut(&name) {
            item.1 = expiry;
        }
    }

    fn rename(&mut self) {
        let (from_db, to_db) = (self.db(), self.db());
        let from = key(&mut self.random);
        let to =
            if self.random.random_range(0..3) == 0 { from.clone() } else { key(&mut self.random) };
        if !self.world.model.dbs[from_db as usize].contains_key(&from) {
            return;
        }
        self.world.run(|store| store.rename((from_db, &from), (to_db, &to)));
        if let Some(item) = self.world.model.dbs[from_db as usize].remove(&from) {
            self.world.model.dbs[to_db as usize].insert(to, item);
        }
    }

    fn copy(&mut self) {
        let (from_db, to_db) = (self.db(), self.db());
        let (from, to) = (key(&mut self.random), key(&mut self.random));
        let Some(item) = self.world.model.dbs[from_db as usize].get(&from).cloned() else { return };
        self.world.run(|store| {
            store.entry_mut(to_db, &to)?;
            let source = store.entry_mut(from_db, &from)?;
            source.value.require_whole().or_load(from_db, &from)?;
            let (value, expire_at_ms) = (source.value.copied(), source.expire_at_ms);
            let mut target = store.entry_mut(to_db, &to)?;
            target.value = value;
            target.expire_at_ms = expire_at_ms;
            Ok(())
        });
        self.world.model.dbs[to_db as usize].insert(to, item);
    }

    /// Commits like a coordinator: entries are lent, and the record is applied late, possibly after
    /// a cut.
    fn coordinate(&mut self) {
        let (db, first, second) = (self.db(), key(&mut self.random), key(&mut self.random));
        for name in [&first, &second] {
            self.world.run(|store| store.entry(db, name).map(|_| ()));
        }
        self.world.commit();
        let partition = &mut self.world.partition;
        self.world.holds += 1;
        let hold = self.world.holds;
        let mut space = partition.store.workspace(&partition.store.generations());
        let mut names = vec![&first];
        names.extend((first != second).then_some(&second));
        for name in &names {
            space.adopt(db, partition.store.lend(db, name).expect("hot"));
        }
        partition.granted(hold);
        let values: Vec<Vec<u8>> = names
            .iter()
            .map(|_| {
                let len = self.random.random_range(0..40_000);
                bytes(&mut self.random, len)
            })
            .collect();
        space.begin(self.world.model.now_ms, true);
        for (name, value) in names.iter().zip(&values) {
            let mut entry = space.entry_mut(db, name).expect("lent");
            entry.value = Value::Str(Str::new(value));
            entry.expire_at_ms = 0;
        }
        let early = self.random.random_range(0..4) == 0;
        if early {
            (0..partition.store.layout().shards()).for_each(|shard| partition.cut(shard));
        }
        let sealed = space.seal();
        let body = sealed.body();
        for (name, value) in names.iter().zip(&values) {
            let item = (Arc::new(V::Str(value.clone())), 0);
            self.world.model.dbs[db as usize].insert(name.to_vec(), item);
        }
        let (journal, model) = (&self.world.journal, &self.world.model);
        let append = || journal.append(model.now_ms, &sealed.shards(), &[&body]).expect("appended");
        let lsn = self.world.probe.append(model, append);
        self.world.probe.point(|| "a coordinator has appended".into());
        if self.random.random() {
            for shard in 0..partition.store.layout().shards() {
                if partition.shards[&shard].can_cut() {
                    partition.cut(shard);
                    assert!(partition.take_cut(shard).is_none(), "it may still grow");
                }
            }
        }
        for (db, entry) in space.drain() {
            partition.store.give_back(db, entry, true);
        }
        partition.merge(lsn, &body);
        partition.note_lsn(lsn);
        partition.released(hold);
    }
}

/// Runs one seed, and returns its number of crashes.
fn run(seed: u64) -> u32 {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut random = StdRng::seed_from_u64(seed);
    let mut model = Model { now_ms: 1_800_000_000_000, ..Model::default() };
    model.dbs.resize_with(DATABASES, Default::default);
    let dir = fresh(root.path(), &mut number);
    let mut world = World::open(&dir, model, pick_some(&mut random));
    let mut crashes = 0;
    for cycle in 0..CYCLES {
        let mut history = History { world, random };
        for _ in 0..STEPS {
            history.step();
        }
        History { world, random } = history;
        let last = world.probe.now(&format!("end of cycle {cycle}"));
        for image in world.probe.images() {
            let at = format!("seed {seed}, cycle {cycle}, {}", image.at);
            let dir = fresh(root.path(), &mut number);
            let room = replay_bytes(&mut random);
            let mut copy = World::reopen_within(&image, &dir, Box::new(|_| false), room);
            copy.verify(&at);
            crashes += 1;
            drop(copy);
            std::fs::remove_dir_all(dir).unwrap();
        }
        drop(world);
        let at = format!("seed {seed}, {}", last.at);
        let dir = fresh(root.path(), &mut number);
        let (pick, room) = (pick_some(&mut random), replay_bytes(&mut random));
        world = World::reopen_within(&last, &dir, pick, room);
        world.verify(&at);
        crashes += 1;
    }
    world.settle();
    world.verify_no_garbage(&format!("seed {seed}"));
    let model = world.model.clone();
    world.close();
    let dir = root.path().join(number.to_string());
    let mut again = World::open(&dir, model, Box::new(|_| false));
    again.verify(&format!("seed {seed}, after a clean stop"));
    crashes
}

pub(crate) fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs seeds on several threads.
fn run_seeds(seeds: std::ops::Range<u64>) {
    let crashes: u32 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let mine = seeds.clone().skip(worker).step_by(2);
                scope.spawn(move || {
                    mine.map(|seed| {
                        println!("seed {seed}");
                        run(seed)
                    })
                    .sum::<u32>()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("the seed printed last")).sum()
    });
    println!("{} seeds, {crashes} crashes", seeds.count());
}

#[test]
fn random_histories_survive() {
    let first = number("FLAGSTONE_SEED", 1);
    run_seeds(first..first + number("FLAGSTONE_SEEDS", 12));
}
