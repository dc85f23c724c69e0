//! Each rule is needed: without it, a scene breaks an invariant. `--nocapture` shows how.

use flagstone_model::action::Action::{self, *};
use flagstone_model::cluster::{Cluster, HOLDS};
use flagstone_model::invariants::Invariant::{self, *};
use flagstone_model::rules::Rule::{self, *};
use flagstone_model::scenes;
use flagstone_model::steps::proposal::Proposal::Touch;
use flagstone_model::walk::{counterexample, follow};
use stateright::{Checker, HasDiscoveries, Model};

/// Walks through a scene at most, and the steps of each.
const WALKS: u64 = 50_000;
const STEPS: usize = 100;

/// A scene, the rules that are left out, and the invariant that breaks.
type Row = (fn() -> Cluster, &'static [Rule], Invariant);

/// Rules whose absence random walks find.
const BY_WALKS: &[Row] = &[
    (scenes::maps, &[ListAgain], OneSequence),
    (scenes::moves, &[FateKnown], NothingLost),
    (scenes::joins, &[EpochFromMap], OneLifePerEpoch),
    (scenes::failover, &[SealFirst], OwnerChanges),
    (scenes::dropped_objects, &[SealConfirmed], OwnerChanges),
    (scenes::failover, &[ListKeeps], FlushedBeforeUnlisted),
    (scenes::chain, &[ReplayAll], NothingLost),
    (scenes::failover, &[LsnJump], LsnsGrow),
    (scenes::failover, &[LeaseChecked], OneServes),
    (scenes::moves_and_failovers, &[MapBeforeOpen], NoLateOpening),
    (scenes::moves, &[HoldToGive], FlushedBeforeUnlisted),
    (scenes::moves, &[FlushToGive], FlushedBeforeUnlisted),
    (scenes::failover, &[FlushDurable], EngineBehindJournal),
    (scenes::failover, &[FlushToUnlist], FlushedBeforeUnlisted),
    (scenes::deleted_journals, &[DeleteUnlisted], DeletedUnlisted),
    (scenes::deleted_journals, &[DeleteSealed], DeletedUnlisted),
];

/// Rules whose absence shows in few orders of steps: the scene is searched in breadth.
const IN_BREADTH: &[Row] = &[
    (scenes::failover, &[Wait], OneServes),
    (scenes::released_successor, &[WaitForAll], OneServes),
    (scenes::hurries, &[WaitToGive], OneServes),
    (scenes::failover, &[LeaseFromBegin], OneServes),
    (scenes::returns, &[ManifestBeforeMap], NoLateOpening),
    (scenes::returns, &[ExpectedEpoch], NoLateOpening),
    (scenes::moves, &[SinceCompared], LsnsGrow),
    (scenes::forgotten_journal, &[SealStays], NothingLost),
    (scenes::releases, &[ReleaseStops], OneServes),
];

fn without(scene: fn() -> Cluster, rules: &[Rule]) -> Cluster {
    let mut model = scene();
    model.goals.clear();
    for rule in rules {
        model.scene.rules = model.scene.rules.without(*rule);
    }
    model
}

#[test]
fn walks_find_a_missing_rule() {
    for (scene, rules, expected) in BY_WALKS {
        let found = counterexample(&without(*scene, rules), WALKS, STEPS);
        let Some(walk) = found else { panic!("without {rules:?} nothing is broken") };
        println!("without {rules:?}: {} steps: {:?}", walk.actions.len(), walk.actions);
        assert_eq!(walk.end.ghosts.broken, Some(*expected), "without {rules:?}");
    }
}

#[test]
fn searches_in_breadth_find_a_missing_rule() {
    for (scene, rules, expected) in IN_BREADTH {
        let checker = without(*scene, rules).checker();
        let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let Some(path) = checker.discovery(HOLDS) else {
            panic!("without {rules:?} nothing is broken")
        };
        let broken = path.last_state().ghosts.broken;
        let actions = path.into_actions();
        println!("without {rules:?}: {} steps: {actions:?}", actions.len());
        assert_eq!(broken, Some(*expected), "without {rules:?}");
    }
}

/// Takes these steps without some rules, and then with all: only then nothing may be broken.
fn tell(scene: fn() -> Cluster, rules: &[Rule], story: &[Action]) {
    let Some((actions, end)) = follow(&without(scene, rules), story) else {
        panic!("a step of the story is not possible")
    };
    assert_eq!(end.ghosts.broken, Some(OneSequence));
    assert_eq!(actions.len(), story.len());
    let with_all = follow(&without(scene, &[]), story);
    assert!(with_all.is_none_or(|(_, end)| end.ghosts.broken.is_none()));
}

/// Life 0 sleeps over two changes and their deletion; life 2, too. The late map of one is taken for
/// the base of the other.
#[test]
fn two_sleeping_writers_defeat_a_look_for_the_base() {
    let story = [
        Propose(0, Touch),
        ChangeLands(0),
        ListMaps(1),
        GetMap(1),
        DeleteMap(1, 1),
        Propose(1, Touch),
        SettleChange(0),
        ChangeLands(1),
        Propose(2, Touch),
        SettleChange(1),
        Propose(0, Touch),
        DeleteMap(1, 2),
        Propose(1, Touch),
        ChangeLands(1),
        SettleChange(1),
        DeleteMap(1, 3),
        ChangeLands(0),
        ChangeLands(2),
        SettleChange(0),
    ];
    tell(scenes::maps, &[BelieveNewest, CompareBase], &story);
    // The nonce of the base tells the late map from the true one.
    assert!(
        follow(&without(scenes::maps, &[BelieveNewest]), &story)
            .is_none_or(|(_, end)| { end.ghosts.broken.is_none() })
    );
}

/// Life 0's request for number 2 is sent twice, and the first attempt arrives last, when number 2 is
/// deleted: it brings the true content back, with the true nonce.
#[test]
fn a_straggler_defeats_the_nonce_of_the_base() {
    let story = [
        Propose(0, Touch),
        ResendChange(0),
        ChangeLands(0),
        ListMaps(1),
        GetMap(1),
        Propose(1, Touch),
        ListMaps(2),
        GetMap(2),
        Propose(2, Touch),
        ChangeLands(2),
        SettleChange(2),
        DeleteMap(2, 1),
        DeleteMap(2, 2),
        Propose(2, Touch),
        ChangeLands(2),
        SettleChange(2),
        DeleteMap(2, 3),
        ChangeLands(1),
        StragglerLands(0),
        SettleChange(1),
    ];
    tell(scenes::stragglers, &[BelieveNewest], &story);
}

/// A life of the model has one put in flight, so its writes wait for the adopt record anyway. With
/// several in flight the rule may be needed: it is kept.
#[test]
fn one_rule_of_the_paper_is_not_needed() {
    for scene in [scenes::failover, scenes::moves, scenes::returns] {
        let checker = without(scene, &[AdoptStored]).checker().spawn_bfs().join();
        assert!(checker.discovery(HOLDS).is_none());
    }
}

#[test]
fn every_rule_is_left_out() {
    let told = [BelieveNewest, CompareBase, AdoptStored];
    let rows = BY_WALKS.iter().chain(IN_BREADTH);
    let left: Vec<Rule> =
        rows.flat_map(|(_, rules, _)| rules.iter().copied()).chain(told).collect();
    let missing =
        (0..=ReleaseStops as usize).filter(|rule| !left.iter().any(|r| *r as usize == *rule));
    assert_eq!(missing.collect::<Vec<_>>(), [0; 0], "places of rules in `Rule`");
}
