//! Schedules merges of files.
//!
//! Two merges may run at a time, each of its kind. One takes files of level 0 into a run of its own,
//! so that the engine can always flush. The other merges runs: all of them into the last one when
//! the upper ones have a certain part of its size, which bounds the space that replaced rows take,
//! and before that some of the upper ones, newest first, when there are many, which bounds the
//! number of places where a row may be. While many files of level 0 wait, merges of runs are put
//! off, as they would take the CPU that those need.
//!
//! A merge of all runs needs room for its result beside its sources until it ends. So a node merges
//! the runs of at most half of its shards at a time. And each merge needs memory: SlateDB gathers
//! 10 MiB of a file before it writes them. So the budget limits how many merges of each kind a node
//! has at a time, and the shards take turns.
//!
//! The bound of the space does not count deleted rows: after a large deletion, with few writes, the
//! tombstones would never meet the rows that they delete. So when the engine requests it
//! ([`super::garbage`]), first the files of level 0 that hold the tombstones are merged, and then
//! all runs into the last one, which drops the tombstones.

use super::garbage::{Garbage, Request, last_run};
use crate::place::Writes;
use slatedb::compactor::{
    CompactionScheduler, CompactionSchedulerSupplier, CompactionSpec, CompactorStateView,
    SizeTieredCompactionSchedulerSupplier, SourceId,
};
use slatedb::config::CompactorOptions;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Minimum and maximum number of files of level 0 in one merge: they count against the limit of
/// level 0 until they are merged, and each takes memory to read ahead.
const LEVEL0_LEAST: usize = 4;
const LEVEL0_AT_ONCE: usize = 16;

/// Number of waiting files of level 0 from which on merges of runs are put off.
pub(super) const LEVEL0_MANY: usize = 24;

/// Number of upper runs from which on some of them are merged; the second number holds while many
/// files of level 0 wait.
const UPPER_MANY: usize = 8;
const UPPER_MOST: usize = 24;

/// The upper runs are merged into the last one when they have this part of its size in percent; the
/// second number holds while many files of level 0 wait.
const UPPER_PERCENT: u64 = 50;
const UPPER_PERCENT_CROWDED: u64 = 200;

/// Maximum number of concurrent merges: one of level 0, and one of runs.
pub(super) const AT_ONCE: usize = 2;

/// Number of inputs that all merges together usually read at the same time. A merge of all runs may
/// have a few more.
pub(super) const INPUTS: usize = LEVEL0_AT_ONCE + UPPER_MANY;

/// Permits for merges, of all engines of a node.
#[derive(Clone, Debug)]
pub struct MergePermits {
    level0: Arc<Semaphore>,
    runs: Arc<Semaphore>,
}

impl MergePermits {
    /// Returns the permits of a node with so many engines, and at most so many merges of each kind
    /// at a time.
    pub(crate) fn new(engines: u16, most: usize) -> Self {
        let permits = |wanted: u16| Arc::new(Semaphore::new(usize::from(wanted).min(most).max(1)));
        Self { level0: permits(engines), runs: permits(engines / 2) }
    }

    /// Takes all permits for merges of level 0, as merges of other engines do.
    #[cfg(test)]
    pub(super) fn take_all(&self) -> OwnedSemaphorePermit {
        let all = u32::try_from(self.level0.available_permits()).unwrap();
        self.level0.clone().try_acquire_many_owned(all).unwrap()
    }
}

/// Creates the scheduler of an engine.
pub(super) struct Supplier {
    pub(super) garbage: Arc<Garbage>,
    pub(super) merges: MergePermits,
    /// Writes of the engine to its store.
    pub(super) writes: Arc<Writes>,
}

impl CompactionSchedulerSupplier for Supplier {
    fn compaction_scheduler(
        &self,
        options: &CompactorOptions,
    ) -> Box<dyn CompactionScheduler + Send + Sync> {
        let tiered = SizeTieredCompactionSchedulerSupplier::new().compaction_scheduler(options);
        let lanes = [&self.merges.level0, &self.merges.runs]
            .map(|permits| MergeLane { permits: permits.clone(), permit: Mutex::default() });
        let [level0, runs] = lanes;
        let (garbage, writes) = (self.garbage.clone(), self.writes.clone());
        Box::new(Scheduler { tiered, garbage, writes, level0, runs })
    }
}

struct Scheduler {
    /// Its checks hold for any merge of neighbours.
    tiered: Box<dyn CompactionScheduler + Send + Sync>,
    garbage: Arc<Garbage>,
    writes: Arc<Writes>,
    level0: MergeLane,
    runs: MergeLane,
}

/// Merges of one kind.
struct MergeLane {
    /// Permits of the node.
    permits: Arc<Semaphore>,
    /// Permit of the engine's merge.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl MergeLane {
    /// Returns the permit of a merge that has ended, and takes one if a merge is due. Returns true
    /// if that may begin now. After a merge, other engines have a turn.
    fn may_begin(&self, is_active: bool, is_due: bool) -> bool {
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        if permit.is_some() && !is_active {
            *permit = None;
            return false;
        }
        if !is_due || permit.is_some() {
            return false;
        }
        *permit = self.permits.clone().try_acquire_owned().ok();
        permit.is_some()
    }
}

/// Files of level 0 and runs, newest first.
#[derive(Debug, Default)]
struct Tree {
    level0: Vec<SourceId>,
    runs: Vec<Run>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    id: u32,
    bytes: u64,
}

impl CompactionScheduler for Scheduler {
    fn propose(&self, state: &CompactorStateView) -> Vec<CompactionSpec> {
        let manifest = state.manifest();
        let runs = manifest.compacted().iter();
        let tree = Tree {
            level0: manifest.l0().iter().map(|view| SourceId::SstView(view.id)).collect(),
            runs: runs.map(|run| Run { id: run.id, bytes: run.estimate_size() }).collect(),
        };
        let compactions = state.compactions().into_iter().flat_map(|c| c.recent_compactions());
        let active: Vec<&CompactionSpec> =
            compactions.filter(|c| c.active()).map(|c| c.spec()).collect();
        let request = self.garbage.request().filter(|request| last_run(manifest) == request.last);
        let due = plan(&tree, &active, request.as_ref());
        if !due.is_empty() || !active.is_empty() {
            // The next look must not wait until something is stored: the permit may be another
            // engine's.
            self.writes.changes().note();
        }
        self.permitted(due, &active)
    }

    fn validate(
        &self,
        state: &CompactorStateView,
        spec: &CompactionSpec,
    ) -> Result<(), slatedb::Error> {
        self.tiered.validate(state, spec)
    }
}

impl Scheduler {
    /// Returns the merges that may begin now, of those that are due.
    fn permitted(
        &self,
        mut due: Vec<CompactionSpec>,
        active: &[&CompactionSpec],
    ) -> Vec<CompactionSpec> {
        let may_begin = [(&self.runs, false), (&self.level0, true)].map(|(lane, of_level0)| {
            let is_one = |spec: &CompactionSpec| spec.has_l0_sources() == of_level0;
            lane.may_begin(active.iter().any(|spec| is_one(spec)), due.iter().any(is_one))
        });
        due.retain(|spec| may_begin[usize::from(spec.has_l0_sources())]);
        due
    }
}

/// Returns the merges to begin beside the active ones.
fn plan(tree: &Tree, active: &[&CompactionSpec], request: Option<&Request>) -> Vec<CompactionSpec> {
    let is_wanted = |file: &SourceId| request.is_some_and(|request| request.level0.contains(file));
    let merges_level0 = active.iter().any(|spec| spec.has_l0_sources());
    let merges_runs = active.iter().any(|spec| !spec.has_l0_sources());
    let mut specs = Vec::with_capacity(AT_ONCE);
    if !merges_level0 {
        specs.extend(level0(tree, active, is_wanted));
    }
    if !merges_runs {
        let everything = request.is_some() && !tree.level0.iter().any(is_wanted);
        specs.extend(merge_of_runs(tree, everything));
    }
    specs
}

/// Returns a merge of files of level 0. The oldest go first.
fn level0(
    tree: &Tree,
    active: &[&CompactionSpec],
    is_wanted: impl Fn(&SourceId) -> bool,
) -> Option<CompactionSpec> {
    let files = &tree.level0;
    let newest = match files.iter().position(is_wanted) {
        Some(wanted) => wanted,
        None if files.len() >= LEVEL0_LEAST => 0,
        None => return None,
    };
    let from = newest.max(files.len().saturating_sub(LEVEL0_AT_ONCE));
    let ids = tree.runs.iter().map(|run| run.id);
    let run = ids.chain(active.iter().filter_map(|spec| spec.destination())).max();
    Some(CompactionSpec::new(files[from..].to_vec(), run.map_or(0, |id| id + 1)))
}

/// Returns a merge of runs: of all of them if that was requested, or is due.
fn merge_of_runs(tree: &Tree, everything: bool) -> Option<CompactionSpec> {
    let (last, upper) = tree.runs.split_last()?;
    let is_crowded = tree.level0.len() >= LEVEL0_MANY;
    let percent = if is_crowded { UPPER_PERCENT_CROWDED } else { UPPER_PERCENT };
    let bytes: u64 = upper.iter().map(|run| run.bytes).sum();
    if upper.is_empty() {
        return None;
    }
    if everything || bytes >= last.bytes / 100 * percent {
        return Some(merge(&tree.runs));
    }
    let most = if is_crowded { UPPER_MOST } else { UPPER_MANY };
    (upper.len() >= most).then(|| merge(&upper[..similar(upper)]))
}

/// Returns the number of runs, from the newest on, of which none is larger than all before it. If
/// there are few, all are taken.
fn similar(runs: &[Run]) -> usize {
    let mut sum = 0;
    let end = runs.iter().position(|run| {
        let is_larger = sum > 0 && run.bytes > sum;
        sum += run.bytes;
        is_larger
    });
    end.filter(|count| *count >= LEVEL0_LEAST).unwrap_or(runs.len())
}

/// Returns the merge of neighbouring runs.
fn merge(runs: &[Run]) -> CompactionSpec {
    let sources = runs.iter().map(|run| SourceId::SortedRun(run.id)).collect();
    // The oldest run has the lowest id.
    let oldest = runs.iter().map(|run| run.id).min().unwrap_or_default();
    CompactionSpec::new(sources, oldest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slatedb::compactor::SourceId::{SortedRun, SstView};

    fn level0(ids: std::ops::Range<u128>) -> Vec<SourceId> {
        ids.rev().map(|id| SstView(id.into())).collect()
    }

    /// Returns a tree with files of level 0, and runs given as id and size.
    fn tree(files: std::ops::Range<u128>, runs: &[(u32, u64)]) -> Tree {
        let runs = runs.iter().map(|&(id, bytes)| Run { id, bytes }).collect();
        Tree { level0: level0(files), runs }
    }

    /// Returns the schedulers of two engines of a node.
    fn two(most: usize) -> [Scheduler; 2] {
        let merges = MergePermits::new(2, most);
        [(), ()].map(|()| {
            let lane = |permits: &Arc<Semaphore>| MergeLane {
                permits: permits.clone(),
                permit: Mutex::default(),
            };
            Scheduler {
                tiered: SizeTieredCompactionSchedulerSupplier::new()
                    .compaction_scheduler(&CompactorOptions::default()),
                garbage: Arc::new(Garbage::new(0)),
                writes: Arc::default(),
                level0: lane(&merges.level0),
                runs: lane(&merges.runs),
            }
        })
    }

    /// Returns merges of both kinds.
    fn due() -> Vec<CompactionSpec> {
        plan(&tree(1..5, &[(7, 1000), (3, 1000)]), &[], None)
    }

    fn has(specs: &[CompactionSpec], of_level0: bool) -> bool {
        specs.iter().any(|spec| spec.has_l0_sources() == of_level0)
    }

    #[test]
    fn engines_merge_their_runs_in_turn_and_level_0_at_any_time() {
        let [one, two] = two(2);
        let begun = one.permitted(due(), &[]);
        assert!(begun.len() == 2 && has(&begun, false));
        let others = two.permitted(due(), &[]);
        assert!(others.len() == 1 && !has(&others, false));
        // The merge is active, then it has ended.
        assert!(one.permitted(Vec::new(), &[&begun[1]]).is_empty());
        assert!(!has(&two.permitted(due(), &[]), false));
        assert!(!has(&one.permitted(due(), &[]), false));
        assert!(has(&two.permitted(due(), &[]), false));
        assert!(!has(&one.permitted(due(), &[]), false));
        drop(two);
        assert!(has(&one.permitted(due(), &[]), false));
    }

    #[test]
    fn with_little_memory_engines_merge_level_0_in_turn() {
        let [one, two] = two(1);
        let begun = one.permitted(due(), &[]);
        assert!(has(&begun, true));
        assert!(two.permitted(due(), &[]).is_empty());
        // Both merges are active, then that of level 0 has ended: the other engine has its turn.
        assert!(one.permitted(due(), &[&begun[0], &begun[1]]).is_empty());
        let runs: Vec<&CompactionSpec> = begun.iter().filter(|s| !s.has_l0_sources()).collect();
        assert!(!has(&one.permitted(due(), &runs), true));
        let others = two.permitted(due(), &[]);
        assert!(has(&others, true) && !has(&others, false));
        assert!(!has(&one.permitted(due(), &runs), true));
    }

    fn request(files: &[SourceId]) -> Request {
        Request { last: None, level0: files.to_vec() }
    }

    #[test]
    fn level_0_is_merged_into_a_run_of_its_own() {
        assert!(plan(&tree(1..4, &[(3, 100)]), &[], None).is_empty());
        let specs = plan(&tree(1..5, &[(3, 100)]), &[], None);
        assert_eq!(specs.len(), 1);
        assert_eq!((specs[0].sources(), specs[0].destination()), (&level0(1..5)[..], Some(4)));
        assert_eq!(plan(&tree(1..5, &[]), &[], None)[0].destination(), Some(0));
        // Of many files the oldest are taken.
        let specs = plan(&tree(0..40, &[(5, 100)]), &[], None);
        assert_eq!(specs[0].sources(), &level0(0..LEVEL0_AT_ONCE as u128)[..]);
    }

    #[test]
    fn level_0_does_not_wait_for_any_merge_of_runs() {
        let runs = [(9, 50), (7, 50), (3, 1000)];
        for sources in [vec![SortedRun(9), SortedRun(7)], vec![SortedRun(7), SortedRun(3)]] {
            let active = CompactionSpec::new(sources.clone(), 3);
            let specs = plan(&tree(1..5, &runs), &[&active], None);
            assert_eq!(specs.len(), 1, "{sources:?}");
            assert!(specs[0].has_l0_sources() && specs[0].destination() == Some(10));
            let files = CompactionSpec::new(level0(1..3), 10);
            assert!(plan(&tree(1..9, &runs), &[&active, &files], None).is_empty());
        }
    }

    #[test]
    fn upper_runs_go_into_the_last_when_they_have_half_of_its_size() {
        assert!(plan(&tree(0..0, &[(8, 200), (7, 299), (3, 1000)]), &[], None).is_empty());
        let specs = plan(&tree(0..0, &[(8, 200), (7, 300), (3, 1000)]), &[], None);
        assert_eq!(specs[0].sources(), [SortedRun(8), SortedRun(7), SortedRun(3)]);
        assert_eq!(specs[0].destination(), Some(3));
        // A merge of runs is active.
        let active = CompactionSpec::new(vec![SortedRun(8), SortedRun(7)], 7);
        let runs = tree(0..0, &[(9, 500), (8, 200), (7, 300), (3, 1000)]);
        assert!(plan(&runs, &[&active], None).is_empty());
    }

    #[test]
    fn many_upper_runs_become_fewer() {
        let mut runs: Vec<(u32, u64)> = (0..7).map(|n| (20 - n, 10)).collect();
        runs.extend([(5, 200), (3, 1000)]);
        let specs = plan(&tree(0..0, &runs), &[], None);
        let newest: Vec<SourceId> = (14..=20).rev().map(SortedRun).collect();
        assert_eq!((specs[0].sources(), specs[0].destination()), (&newest[..], Some(14)));
        // Few are similar: all upper ones are merged.
        let runs: Vec<(u32, u64)> = (0..8).map(|n| (20 - n, 1 << n)).chain([(3, 1000)]).collect();
        let specs = plan(&tree(0..0, &runs), &[], None);
        assert_eq!((specs[0].sources().len(), specs[0].destination()), (8, Some(13)));
        assert!(plan(&tree(0..0, &runs[1..]), &[], None).is_empty());
    }

    #[test]
    fn runs_wait_while_many_files_of_level_0_do() {
        let due = [(8, 1999), (3, 1000)];
        let specs = plan(&tree(0..LEVEL0_MANY as u128, &due), &[], None);
        assert!(specs.len() == 1 && specs[0].has_l0_sources());
        assert_eq!(plan(&tree(0..LEVEL0_MANY as u128 - 1, &due), &[], None).len(), 2);
        let doubled = [(8, 2000), (3, 1000)];
        assert_eq!(plan(&tree(0..LEVEL0_MANY as u128, &doubled), &[], None).len(), 2);
        let most: Vec<(u32, u64)> = (0..=UPPER_MOST as u32).map(|n| (100 - n, 10)).collect();
        assert_eq!(plan(&tree(0..LEVEL0_MANY as u128, &most), &[], None).len(), 2);
    }

    #[test]
    fn on_request_level_0_goes_before_the_runs() {
        let files = level0(1..4);
        let asked = request(&files);
        let runs = [(7, 10), (3, 1000)];
        let specs = plan(&tree(1..4, &runs), &[], Some(&asked));
        assert_eq!(specs.len(), 1);
        assert_eq!((specs[0].sources(), specs[0].destination()), (&files[..], Some(8)));
        let specs = plan(&tree(0..0, &runs), &[], Some(&asked));
        assert_eq!(specs[0].sources(), [SortedRun(7), SortedRun(3)]);
        assert_eq!(specs[0].destination(), Some(3));
        assert!(plan(&tree(0..0, &[(1, 10)]), &[], Some(&asked)).is_empty());
        assert!(plan(&tree(0..0, &[]), &[], Some(&asked)).is_empty());
    }

    #[test]
    fn newer_files_of_level_0_are_not_waited_for() {
        let asked = request(&level0(1..6));
        let runs = [(2, 10), (1, 1000)];
        let specs = plan(&tree(1..8, &runs), &[], Some(&asked));
        assert_eq!(specs[0].sources(), &level0(1..6)[..]);
        let specs = plan(&tree(6..8, &runs), &[], Some(&asked));
        assert_eq!(specs[0].sources(), [SortedRun(2), SortedRun(1)]);
        assert!(plan(&tree(6..8, &runs[1..]), &[], Some(&asked)).is_empty());
    }
}
