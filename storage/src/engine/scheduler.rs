//! Schedules merges: SlateDB's size-tiered ones, and merges of all files when that frees much
//! space.
//!
//! Size-tiered merging waits for several runs of about the same size. After a large deletion, with
//! few writes, the tombstones would never meet the rows that they delete. So when the engine
//! requests it ([`super::garbage`]), first the files of level 0 are merged into a run of their own,
//! which is quick, and then all runs into the last one, which drops the tombstones. The second step
//! may take long; level 0 is still merged beside it, so that it does not fill up.

use super::garbage::{Garbage, last_run};
use slatedb::compactor::{
    CompactionScheduler, CompactionSchedulerSupplier, CompactionSpec, CompactorStateView,
    SizeTieredCompactionSchedulerSupplier, SourceId,
};
use slatedb::config::CompactorOptions;
use std::sync::Arc;

/// Maximum number of files of level 0 in one merge: they count against the limit of level 0 until
/// they are merged, and each takes memory to read ahead.
const LEVEL0_AT_ONCE: usize = 8;

/// Maximum number of concurrent merges: one, and one of level 0 beside a merge into the last run.
pub(super) const AT_ONCE: usize = 2;

/// Maximum number of inputs that all merges together read at the same time; SlateDB's scheduler
/// takes no more than this one. A merge of everything may have a few more.
pub(super) const INPUTS: usize = AT_ONCE * LEVEL0_AT_ONCE;

/// Creates the scheduler of an engine.
pub(super) struct Supplier(pub(super) Arc<Garbage>);

impl CompactionSchedulerSupplier for Supplier {
    fn compaction_scheduler(
        &self,
        options: &CompactorOptions,
    ) -> Box<dyn CompactionScheduler + Send + Sync> {
        let tiered = SizeTieredCompactionSchedulerSupplier::new().compaction_scheduler(options);
        Box::new(Scheduler { tiered, garbage: self.0.clone() })
    }
}

struct Scheduler {
    tiered: Box<dyn CompactionScheduler + Send + Sync>,
    garbage: Arc<Garbage>,
}

impl CompactionScheduler for Scheduler {
    fn propose(&self, state: &CompactorStateView) -> Vec<CompactionSpec> {
        let runs: Vec<u32> = state.manifest().compacted().iter().map(|run| run.id).collect();
        let compactions = state.compactions().into_iter().flat_map(|c| c.recent_compactions());
        let active: Vec<&CompactionSpec> =
            compactions.filter(|c| c.active()).map(|c| c.spec()).collect();
        if active.is_empty()
            && let Some(spec) = self.everything(state, &runs)
        {
            return vec![spec];
        }
        if !leaves_room(&active, &runs) {
            return Vec::new();
        }
        let mut specs = self.tiered.propose(state);
        specs.truncate(1);
        specs
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
    /// Returns the next step of merging everything, if that was requested.
    fn everything(&self, state: &CompactorStateView, runs: &[u32]) -> Option<CompactionSpec> {
        let request = self.garbage.request()?;
        if last_run(state.manifest()) != request.last {
            return None;
        }
        let level0: Vec<SourceId> =
            state.manifest().l0().iter().map(|view| SourceId::SstView(view.id)).collect();
        plan(&level0, runs, &request.level0)
    }
}

/// Returns true if another merge may run beside these.
fn leaves_room(active: &[&CompactionSpec], runs: &[u32]) -> bool {
    match active {
        [] => true,
        [one] => !one.has_l0_sources() && one.destination() == runs.last().copied(),
        _ => false,
    }
}

/// Returns the next step of merging everything: `level0` and `runs` are the existing ones, newest
/// first; `wanted` are the files of level 0 that must be included.
fn plan(level0: &[SourceId], runs: &[u32], wanted: &[SourceId]) -> Option<CompactionSpec> {
    if let Some(newest) = level0.iter().position(|file| wanted.contains(file)) {
        // The oldest files go first.
        let from = newest.max(level0.len().saturating_sub(LEVEL0_AT_ONCE));
        let run = runs.iter().max().map_or(0, |id| id + 1);
        return Some(CompactionSpec::new(level0[from..].to_vec(), run));
    }
    let last = *runs.last()?;
    let sources: Vec<SourceId> = runs.iter().map(|run| SourceId::SortedRun(*run)).collect();
    (sources.len() > 1).then(|| CompactionSpec::new(sources, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use slatedb::compactor::SourceId::{SortedRun, SstView};

    fn level0(ids: std::ops::Range<u128>) -> Vec<SourceId> {
        ids.rev().map(|id| SstView(id.into())).collect()
    }

    #[test]
    fn level_0_goes_before_the_runs() {
        let files = level0(1..4);
        let spec = plan(&files, &[7, 3], &files).unwrap();
        assert_eq!((spec.sources(), spec.destination()), (&files[..], Some(8)));
        let spec = plan(&files, &[], &files).unwrap();
        assert_eq!(spec.destination(), Some(0));
        let spec = plan(&[], &[7, 3], &files).unwrap();
        assert_eq!(spec.sources(), [SortedRun(7), SortedRun(3)]);
        assert_eq!(spec.destination(), Some(3));
    }

    #[test]
    fn newer_files_of_level_0_are_not_waited_for() {
        let (new, old) = (level0(1..8), level0(1..6));
        let spec = plan(&new, &[2, 1], &old).unwrap();
        assert_eq!(spec.sources(), &old[..]);
        let spec = plan(&level0(6..8), &[2, 1], &old).unwrap();
        assert_eq!(spec.sources(), [SortedRun(2), SortedRun(1)]);
        assert!(plan(&level0(6..8), &[1], &old).is_none());
        assert!(plan(&level0(6..8), &[], &old).is_none());
    }

    #[test]
    fn of_many_files_of_level_0_the_oldest_are_taken() {
        let files = level0(0..40);
        let spec = plan(&files, &[5], &files).unwrap();
        assert_eq!(spec.sources(), &level0(0..LEVEL0_AT_ONCE as u128)[..]);
    }

    #[test]
    fn level_0_is_merged_beside_the_runs_only() {
        let runs = [7, 3];
        let everything = plan(&[], &runs, &[]).unwrap();
        let files = CompactionSpec::new(level0(1..3), 8);
        let upper = CompactionSpec::new(vec![SortedRun(9), SortedRun(7)], 7);
        assert!(leaves_room(&[], &runs));
        assert!(leaves_room(&[&everything], &runs));
        assert!(!leaves_room(&[&everything, &files], &runs));
        assert!(!leaves_room(&[&files], &runs));
        assert!(!leaves_room(&[&upper], &[9, 7, 3]));
    }
}
