//! Images of a data directory as kill -9 would leave it, with the models that they must match.

use crate::model::Model;
use flagstone_storage::journal::{Journal, Lsn};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A copy of a directory's files at one instant.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) at: String,
    pub(crate) model: Model,
    files: Files,
}

type Files = Vec<(PathBuf, Arc<Vec<u8>>)>;

/// Selects the points of a run that become images, by their number.
pub(crate) type Pick = Box<dyn FnMut(u64) -> bool + Send>;

struct State {
    committed: Model,
    points: u64,
    pick: Pick,
    images: Vec<Image>,
    /// The model at each lsn, if it is recorded.
    by_lsn: Option<(Arc<dyn Journal>, BTreeMap<Lsn, Model>)>,
}

/// Takes images of a directory while it is in use.
pub(crate) struct Probe {
    dir: PathBuf,
    refuses: AtomicBool,
    breaks: AtomicBool,
    state: Mutex<State>,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Probe {
    pub(crate) fn new(dir: &Path, committed: Model, pick: Pick) -> Self {
        let state = State { committed, points: 0, pick, images: Vec::new(), by_lsn: None };
        Self {
            dir: dir.into(),
            refuses: AtomicBool::new(false),
            breaks: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Makes stores refuse changes from now on, or accept them again.
    pub(crate) fn refuse(&self, refuse: bool) {
        self.refuses.store(refuse, Ordering::SeqCst);
    }

    pub(crate) fn refuses(&self) -> bool {
        self.refuses.load(Ordering::SeqCst)
    }

    /// Makes stores fail for good from now on, or work again.
    pub(crate) fn break_stores(&self, breaks: bool) {
        self.breaks.store(breaks, Ordering::SeqCst);
    }

    pub(crate) fn breaks(&self) -> bool {
        self.breaks.load(Ordering::SeqCst)
    }

    /// Marks a point at which the process may be killed.
    pub(crate) fn point(&self, name: impl FnOnce() -> String) {
        let mut state = self.state.lock().unwrap();
        state.points += 1;
        let number = state.points;
        if (state.pick)(number) {
            let at = format!("point {number}: {}", name());
            let image = self.take(&state, at);
            state.images.push(image);
        }
    }

    fn take(&self, state: &MutexGuard<'_, State>, at: String) -> Image {
        // Files that two successive reads show alike existed at the instant between.
        let mut files = read(&self.dir);
        loop {
            let again = read(&self.dir);
            if files == again {
                return Image { at, model: state.committed.clone(), files };
            }
            files = again;
        }
    }

    /// Returns an image of the present state.
    pub(crate) fn now(&self, at: &str) -> Image {
        self.take(&self.state.lock().unwrap(), at.into())
    }

    /// Appends to the journal and sets the model of its contents; no image is taken meanwhile.
    pub(crate) fn append<R>(&self, model: &Model, append: impl FnOnce() -> R) -> R {
        let mut state = self.state.lock().unwrap();
        let result = append();
        state.committed = model.clone();
        if let Some((journal, models)) = &mut state.by_lsn {
            models.insert(journal.end(), model.clone());
        }
        result
    }

    /// Records the model at each lsn from now on.
    pub(crate) fn keep_models(&self, journal: Arc<dyn Journal>) {
        let mut state = self.state.lock().unwrap();
        let models = BTreeMap::from([(journal.end(), state.committed.clone())]);
        state.by_lsn = Some((journal, models));
    }

    /// Returns the model at an lsn.
    pub(crate) fn model_at(&self, lsn: Lsn) -> Model {
        let state = self.state.lock().unwrap();
        let (_, models) = state.by_lsn.as_ref().expect("they are kept");
        models.range(..=lsn).next_back().expect("not before").1.clone()
    }

    /// Returns all the models that were recorded, by the lsn from which on each is true.
    pub(crate) fn models(&self) -> BTreeMap<Lsn, Model> {
        let state = self.state.lock().unwrap();
        state.by_lsn.as_ref().expect("they are kept").1.clone()
    }

    pub(crate) fn images(&self) -> Vec<Image> {
        std::mem::take(&mut self.state.lock().unwrap().images)
    }
}

fn read(dir: &Path) -> Files {
    let mut files = Vec::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(path);
            } else if let Ok(bytes) = fs::read(&path) {
                let name = path.strip_prefix(dir).unwrap().to_path_buf();
                files.push((name, Arc::new(bytes)));
            }
        }
    }
    files.sort();
    files
}

impl Image {
    /// Writes the files to a directory.
    pub(crate) fn unpack(&self, dir: &Path) {
        self.unpack_if(dir, |_| true);
    }

    /// Writes some of the files.
    pub(crate) fn unpack_if(&self, dir: &Path, wanted: impl Fn(&Path) -> bool) {
        for (name, bytes) in self.files.iter().filter(|(name, _)| wanted(name)) {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &**bytes).unwrap();
        }
    }
}
