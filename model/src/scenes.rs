//! The scenes that the tests explore.

use crate::cluster::Cluster;
use crate::cluster::goals::Goal;
use crate::scene::{Changes, Limits, Scene};

/// A scene, and how to make it.
pub type NamedScene = (&'static str, fn() -> Cluster);

/// The scenes that are small enough to be explored whole in a test.
pub const SMALL: [NamedScene; 7] = [
    ("failover", failover),
    ("moves", moves),
    ("parking", parking),
    ("two_maps", two_maps),
    ("returns", returns),
    ("forgotten_journal", forgotten_journal),
    ("releases", releases),
];

/// The scenes that a test walks through at random.
pub const LARGE: [NamedScene; 10] = [
    ("maps", maps),
    ("stragglers", stragglers),
    ("joins", joins),
    ("chain", chain),
    ("hurries", hurries),
    ("released_successor", released_successor),
    ("moves_and_failovers", moves_and_failovers),
    ("dropped_objects", dropped_objects),
    ("deleted_journals", deleted_journals),
    ("everything", everything),
];

/// [`maps`] with fewer lives and changes.
pub fn two_maps() -> Cluster {
    let mut model = maps();
    model.scene.nodes.truncate(2);
    model.scene.founders = 2;
    model.scene.limits = Limits { changes: 4, stragglers: 1, ..Limits::default() };
    model
}

/// Maps alone: writers and readers sleep over the deletion of the numbers that they know.
pub fn maps() -> Cluster {
    let changes = Changes { touches: true, ..Changes::default() };
    let limits = Limits { changes: 5, ..Limits::default() };
    let scene = Scene { keep: Some(1), owners: Vec::new(), changes, limits, ..Scene::of(3) };
    Cluster { scene, goals: vec![Goal::Straggled] }
}

/// The same, with a request that arrives twice.
pub fn stragglers() -> Cluster {
    let mut model = maps();
    model.scene.limits = Limits { changes: 4, stragglers: 1, ..Limits::default() };
    model.scene.sweepers = vec![2];
    model
}

/// Two nodes found the cluster, and one of them starts once more.
pub fn joins() -> Cluster {
    let changes = Changes { joins: true, parks: true, ..Changes::default() };
    let limits = Limits { changes: 3, writes: 1, seals: 1, ..Limits::default() };
    let scene = Scene {
        nodes: vec![0, 1, 0],
        founders: 0,
        owners: vec![None],
        sweepers: vec![2],
        changes,
        limits,
        ..Scene::of(3)
    };
    Cluster { scene, goals: vec![Goal::RestartServed, Goal::ParkedServed, Goal::ZombieRefused] }
}

/// An owner is sealed while it goes on, and the other life takes its shard.
pub fn failover() -> Cluster {
    let changes = Changes { failovers: true, unlists: true, ..Changes::default() };
    let limits = Limits { changes: 2, writes: 2, flushes: 2, seals: 1, ..Limits::default() };
    let scene = Scene { lease: 2, changes, limits, ..Scene::of(2) };
    Cluster { scene, goals: vec![Goal::FailoverServed, Goal::ZombieRefused] }
}

/// Successors end before they have flushed; one may release its journal.
pub fn chain() -> Cluster {
    let changes = Changes { failovers: true, ..Changes::default() };
    let limits = Limits { changes: 2, writes: 1, seals: 2, releases: 1, ..Limits::default() };
    let scene = Scene { sweepers: vec![2], changes, limits, ..Scene::of(3) };
    Cluster { scene, goals: vec![Goal::FailoverServed, Goal::ReleasedServedAtOnce] }
}

/// A shard is moved, and may be moved back.
pub fn moves() -> Cluster {
    let changes = Changes { moves: true, ..Changes::default() };
    let limits = Limits { changes: 3, writes: 2, flushes: 2, holds: 3, ..Limits::default() };
    let scene = Scene { changes, limits, ..Scene::of(2) };
    Cluster { scene, goals: vec![Goal::MoveServed] }
}

/// A shard is moved while its owner is sealed, or its new owner.
pub fn moves_and_failovers() -> Cluster {
    let changes = Changes { moves: true, failovers: true, ..Changes::default() };
    let limits =
        Limits { changes: 2, writes: 1, flushes: 1, seals: 1, holds: 1, ..Limits::default() };
    let scene = Scene { sweepers: vec![2], changes, limits, ..Scene::of(3) };
    Cluster { scene, goals: vec![Goal::MoveServed, Goal::FailoverServed] }
}

/// The last owner parks its shard and releases its journal; another life takes it.
pub fn parking() -> Cluster {
    let changes = Changes { parks: true, failovers: true, ..Changes::default() };
    let limits = Limits {
        changes: 3,
        writes: 1,
        flushes: 1,
        seals: 1,
        holds: 1,
        releases: 1,
        ..Limits::default()
    };
    let scene = Scene { changes, limits, ..Scene::of(2) };
    Cluster { scene, goals: vec![Goal::ParkedServed, Goal::ReleasedServedAtOnce] }
}

/// An owner deletes objects of its own journal while another life looks for its end.
pub fn dropped_objects() -> Cluster {
    let changes = Changes { failovers: true, ..Changes::default() };
    let limits =
        Limits { changes: 1, writes: 3, flushes: 1, seals: 1, drops: 1, ..Limits::default() };
    let scene = Scene { changes, limits, ..Scene::of(2) };
    Cluster { scene, goals: vec![Goal::ZombieRefused] }
}

/// The objects of sealed journals are deleted.
pub fn deleted_journals() -> Cluster {
    let changes = Changes { failovers: true, unlists: true, ..Changes::default() };
    let limits =
        Limits { changes: 2, writes: 1, flushes: 1, seals: 2, deletions: 1, ..Limits::default() };
    let scene = Scene { sweepers: vec![2], changes, limits, ..Scene::of(3) };
    Cluster { scene, goals: vec![Goal::JournalDeleted] }
}

/// Everything at once, too large to be explored whole: four nodes, one of which starts once more,
/// and two shards.
pub fn everything() -> Cluster {
    let changes = Changes {
        joins: true,
        failovers: true,
        moves: true,
        parks: true,
        unlists: true,
        touches: false,
    };
    let limits = Limits {
        changes: 14,
        writes: 12,
        flushes: 8,
        seals: 4,
        holds: 4,
        releases: 1,
        deletions: 2,
        ..Limits::default()
    };
    let scene = Scene {
        nodes: vec![0, 1, 2, 3, 0, 1],
        founders: 4,
        owners: vec![Some(0), Some(1)],
        lease: 3,
        changes,
        limits,
        ..Scene::of(6)
    };
    let goals = vec![
        Goal::FailoverServed,
        Goal::ChainServed,
        Goal::RestartServed,
        Goal::MoveServed,
        Goal::ParkedServed,
        Goal::ReleasedServedAtOnce,
        Goal::ZombieRefused,
        Goal::JournalDeleted,
    ];
    Cluster { scene, goals }
}

/// A shard moves, and comes back because its new owner is sealed.
pub fn returns() -> Cluster {
    let changes = Changes { moves: true, failovers: true, ..Changes::default() };
    let limits = Limits { changes: 2, seals: 1, holds: 1, ..Limits::default() };
    let scene = Scene { sweepers: vec![0], changes, limits, ..Scene::of(2) };
    Cluster { scene, goals: vec![Goal::ZombieRefused] }
}

/// A successor moves its shard on while the lease of the owner before it may hold.
pub fn hurries() -> Cluster {
    let mut model = returns();
    model.scene = Scene {
        sweepers: vec![2],
        changes: model.scene.changes,
        limits: model.scene.limits,
        ..Scene::of(3)
    };
    model
}

/// A successor ends its journal while the lease of the owner before it may hold.
pub fn released_successor() -> Cluster {
    let changes = Changes { failovers: true, ..Changes::default() };
    let limits = Limits { changes: 2, seals: 1, releases: 1, ..Limits::default() };
    let scene = Scene { sweepers: vec![2], changes, limits, ..Scene::of(3) };
    Cluster { scene, goals: vec![Goal::ZombieRefused] }
}

/// A journal is deleted while its owner sleeps.
pub fn forgotten_journal() -> Cluster {
    let changes = Changes { failovers: true, unlists: true, ..Changes::default() };
    let limits = Limits { changes: 2, writes: 1, seals: 1, deletions: 1, ..Limits::default() };
    let scene = Scene { sweepers: vec![1], changes, limits, ..Scene::of(2) };
    Cluster { scene, goals: vec![Goal::JournalDeleted, Goal::ZombieRefused] }
}

/// An owner ends its journal by itself.
pub fn releases() -> Cluster {
    let changes = Changes { failovers: true, ..Changes::default() };
    let limits = Limits { changes: 1, releases: 1, ..Limits::default() };
    let scene = Scene { changes, limits, ..Scene::of(2) };
    Cluster { scene, goals: vec![] }
}
