//! The scripts that the node knows, by the SHA-1 of their text. They are not durable: clients that
//! find one missing send it again.

use super::running::Running;
use super::shebang::ScriptFlags;
use super::threads::DetachedThreads;
use fnv::FnvHashMap;
use sha1::{Digest, Sha1};
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of scripts from EVAL that are kept; the oldest is evicted first. Those from
/// SCRIPT LOAD stay.
const MAX_EVALUATED: usize = 500;

/// SHA-1 of a text.
pub(crate) type Sha = [u8; 20];

/// A script.
#[derive(Debug)]
pub struct Script {
    pub sha: Sha,
    /// Hash in 40 hexadecimal digits, by which clients call it.
    pub name: String,
    pub body: Box<[u8]>,
    /// Start of the code, behind the first line with flags.
    pub start: usize,
    pub flags: ScriptFlags,
    /// True if its last run took so long that it is not tried on a worker's thread.
    pub is_slow: AtomicBool,
}

impl Script {
    pub fn new(body: &[u8], flags: ScriptFlags, start: usize) -> Self {
        let sha = sha1(body);
        let is_slow = AtomicBool::new(false);
        Self { sha, name: hex(sha), body: body.into(), start, flags, is_slow }
    }

    /// Returns the code without the first line with flags.
    pub fn code(&self) -> &[u8] {
        &self.body[self.start..]
    }
}

#[derive(Debug, Default)]
struct Cache {
    scripts: FnvHashMap<Sha, (Arc<Script>, bool)>,
    /// Scripts from EVAL, oldest first.
    evaluated: VecDeque<Sha>,
    bytes: usize,
}

/// Figures of all VMs.
#[derive(Debug, Default)]
pub struct VmFigures {
    pub all: AtomicUsize,
    /// Number of VMs of short-lived threads.
    pub detached: AtomicUsize,
    /// Memory of the VMs in bytes, each as of the end of its last run.
    pub bytes: AtomicUsize,
}

/// Known scripts, and the state that all VMs share.
#[derive(Debug)]
pub struct Scripts {
    cache: Mutex<Cache>,
    /// Maximum memory of the texts in bytes.
    max_bytes: usize,
    /// Maximum memory of each VM in bytes.
    pub max_vm_bytes: usize,
    /// Number of SCRIPT FLUSH calls.
    epoch: AtomicU64,
    evicted: AtomicU64,
    pub vms: Arc<VmFigures>,
    /// Threads of the units that run detached.
    pub threads: DetachedThreads,
    /// Set by DEBUG SET-DISABLE-DENY-SCRIPTS.
    allow_all: AtomicBool,
    pub running: Running,
}

impl Scripts {
    pub fn new(max_bytes: usize, max_vm_bytes: usize) -> Self {
        Self {
            cache: Mutex::default(),
            max_bytes,
            max_vm_bytes,
            epoch: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            vms: Arc::default(),
            threads: DetachedThreads::default(),
            allow_all: AtomicBool::new(false),
            running: Running::default(),
        }
    }

    /// Maximum memory in bytes of the words of a command that a script calls: that of a VM, as far as
    /// lists of arguments can have so much.
    pub fn max_words_bytes(&self) -> usize {
        self.max_vm_bytes.min(u32::MAX as usize)
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the script with a hash.
    pub fn get(&self, sha: Sha) -> Option<Arc<Script>> {
        self.lock().scripts.get(&sha).map(|(script, _)| script.clone())
    }

    /// Adds a script; returns false if there are too many. A `loaded` script stays, another one may
    /// be evicted by later ones.
    pub fn add(&self, script: &Arc<Script>, loaded: bool) -> bool {
        let mut cache = self.lock();
        let cache = &mut *cache;
        if let Some((_, is_loaded)) = cache.scripts.get_mut(&script.sha) {
            if loaded && !std::mem::replace(is_loaded, true) {
                cache.evaluated.retain(|sha| *sha != script.sha);
            }
            return true;
        }
        let is_full = |cache: &Cache| cache.bytes + script.body.len() > self.max_bytes;
        while cache.evaluated.len() >= MAX_EVALUATED || is_full(cache) {
            let Some(oldest) = cache.evaluated.pop_front() else { break };
            if let Some((old, _)) = cache.scripts.remove(&oldest) {
                cache.bytes -= old.body.len();
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
        if is_full(cache) {
            return false;
        }
        cache.bytes += script.body.len();
        cache.scripts.insert(script.sha, (script.clone(), loaded));
        if !loaded {
            cache.evaluated.push_back(script.sha);
        }
        true
    }

    /// Discards all scripts.
    pub fn flush(&self) {
        *self.lock() = Cache::default();
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if scripts may call commands that are otherwise forbidden, for tests.
    pub fn allow_all(&self) -> bool {
        self.allow_all.load(Ordering::Relaxed)
    }

    pub fn set_allow_all(&self, on: bool) {
        self.allow_all.store(on, Ordering::Relaxed);
    }

    /// Returns the number of flushes: scripts compiled before the last one have to be discarded.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Sets the number of evicted scripts to 0 (CONFIG RESETSTAT).
    pub fn reset_evicted(&self) {
        self.evicted.store(0, Ordering::Relaxed);
    }

    /// Returns the number of scripts, the bytes of their texts, and the number of evicted ones.
    pub fn figures(&self) -> (usize, usize, u64) {
        let cache = self.lock();
        (cache.scripts.len(), cache.bytes, self.evicted.load(Ordering::Relaxed))
    }
}

/// Returns the SHA-1 of a text.
pub fn sha1(text: &[u8]) -> Sha {
    Sha1::digest(text).into()
}

/// Returns the SHA-1 of a text in hexadecimal digits.
pub fn sha1_hex(text: &[u8]) -> String {
    hex(sha1(text))
}

fn hex(sha: Sha) -> String {
    sha.iter().fold(String::with_capacity(40), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Parses a SHA-1 from its 40 hexadecimal digits.
pub fn parse_sha(text: &[u8]) -> Option<Sha> {
    let digits = std::str::from_utf8(text).ok().filter(|digits| digits.len() == 40)?;
    let mut sha = [0; 20];
    for (n, byte) in sha.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    Some(sha)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(body: &str) -> Arc<Script> {
        Arc::new(Script::new(body.as_bytes(), ScriptFlags::default(), 0))
    }

    #[test]
    fn names_are_hashes() {
        let script = script("return 1");
        assert_eq!(script.name, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert_eq!(parse_sha(script.name.as_bytes()), Some(script.sha));
        assert_eq!(parse_sha(b"E0E1F9FABFC9D4800C877A703B823AC0578FF8DB"), Some(script.sha));
        assert_eq!(parse_sha(b"e0"), None);
        assert_eq!(parse_sha(&[b'+'; 40]), None);
    }

    #[test]
    fn scripts_of_eval_are_forgotten_first() {
        let scripts = Scripts::new(1 << 20, 0);
        let loaded = script("loaded");
        assert!(scripts.add(&loaded, true));
        let first = script("0");
        for n in 0..=MAX_EVALUATED {
            assert!(scripts.add(&script(&n.to_string()), false));
        }
        assert!(scripts.get(first.sha).is_none());
        assert!(scripts.get(loaded.sha).is_some());
        assert_eq!(scripts.figures().0, MAX_EVALUATED + 1);
        assert_eq!(scripts.figures().2, 1);
    }

    #[test]
    fn texts_are_bounded() {
        let scripts = Scripts::new(10, 0);
        assert!(scripts.add(&script("12345678"), false));
        assert!(scripts.add(&script("123456789"), true), "the other one goes");
        assert!(!scripts.add(&script("1234"), true));
    }
}
