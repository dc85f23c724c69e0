//! The text about a journal that has lost objects.

use super::*;
use flagstone_storage::cluster::{MapMember, MemberState, NodeAddress, NodeId, ServerRole};

fn loss(condition: JournalCondition, shards: Vec<LossyShard>) -> JournalLoss {
    let address = NodeAddress { host: "10.0.0.5".to_owned(), port: 6379, tls_port: None };
    let (node, life) = (NodeId([0x3f; 20]), Life(7));
    let (state, begun, leaving, role) = (MemberState::Open, true, false, ServerRole::Owner);
    JournalLoss {
        member: MapMember { node, life, state, begun, leaving, role, address },
        condition,
        shards,
    }
}

#[test]
fn the_text_says_what_is_lost() {
    let shards = vec![
        LossyShard { id: 0, stored: Some(1200), is_torn: false },
        LossyShard { id: 11, stored: None, is_torn: false },
    ];
    let text = described(&loss(JournalCondition::Missing, shards.clone()));
    let expected = "\
the journal of life 7, server 3f3f3f3f (10.0.0.5:6379), is missing

shard  stored up to lsn  parts of values
0      1200              -
11     nothing           -

Lost are the writes";
    assert!(text.starts_with(expected), "{text}");
    assert!(!text.contains("DBSIZE"), "{text}");
    let torn = LossyShard { is_torn: true, ..shards[0] };
    let broken = JournalCondition::Broken { why: "lives/7: gone".to_owned(), end: 90, objects: 3 };
    let text = described(&loss(broken, vec![torn]));
    for part in ["breaks behind lsn 90: lives/7: gone\n", "deleted: 3\n", "yes\n", "DBSIZE"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = described(&loss(JournalCondition::Missing, Vec::new()));
    assert!(text.ends_with("no shard needs it: nothing is lost"), "{text}");
}
