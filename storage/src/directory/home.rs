//! Where the files of a shard are, and which rows count there.

use crate::control::Control;
use crate::engine::OwnSlots;
use crate::partition::LIBRARIES_SHARD;
use crate::place::Place;
use crate::slot::Layout;
use std::ops::Range;

/// See the module's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardHome {
    pub(crate) id: u16,
    /// The life that has split it from another shard.
    made_by: Option<u64>,
    /// The slots whose rows count; `None`: all.
    pub(crate) slots: Option<OwnSlots>,
}

impl ShardHome {
    /// Returns the home of a shard that was never split.
    pub(crate) fn at_creation(id: u16) -> Self {
        Self { id, made_by: None, slots: None }
    }

    /// Returns the home of a shard. `made_by`: the number of the life that has split it from another one, in a
    /// cluster; `slots`: those that it has, if any shard was split; `created`: the number of shards at the
    /// creation.
    pub(crate) fn with_slots(
        id: u16,
        made_by: Option<u64>,
        slots: Option<Range<u16>>,
        created: u16,
    ) -> Self {
        let slots = slots.filter(|slots| *slots != Layout::slots_at_creation(created, id));
        Self { id, made_by, slots: slots.map(OwnSlots) }
    }

    /// Returns true if it was split from another shard, whose files it may read.
    pub(crate) fn is_split_off(&self) -> bool {
        self.made_by.is_some()
    }

    /// Returns the number of the life, or the epoch, that has split it from another shard, if one has.
    pub(crate) fn maker(&self) -> Option<u64> {
        self.made_by
    }

    /// Returns control rows without the counters of slots that are in another shard by now, and without the
    /// libraries that were copied with other rows when a shard was split.
    pub(crate) fn own(&self, mut control: Control) -> Control {
        if self.id != LIBRARIES_SHARD {
            control.libraries.clear();
        }
        if let Some(own) = &self.slots {
            control.counters.keep_slots(&own.0);
        }
        control
    }

    /// Returns the name of its directory.
    pub(crate) fn name(&self) -> String {
        let Self { id, made_by, .. } = self;
        made_by
            .map_or_else(|| format!("shard-{id}"), |life| Self::split_name(usize::from(*id), life))
    }

    /// Returns the name of the directory of a shard that was split from another one.
    pub(crate) fn split_name(id: usize, made_by: u64) -> String {
        format!("shard-{id}-{made_by}")
    }

    /// Returns the shard whose directory has a name, and the life, or the epoch, that has split it from another one.
    pub(crate) fn split_by(name: &str) -> Option<(u16, u64)> {
        let (id, by) = name.strip_prefix("shard-")?.split_once('-')?;
        Some((id.parse().ok()?, by.parse().ok()?))
    }

    pub(crate) fn place(&self, store: &Place) -> Place {
        store.join(&self.name())
    }

    /// Returns the place of its engine.
    pub(crate) fn engine_place(&self, store: &Place) -> Place {
        self.place(store).join("db")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_was_split_off_is_in_a_directory_of_its_maker() {
        let home = ShardHome::with_slots(9, Some(7), Some(5..6), 8);
        assert_eq!(home.name(), "shard-9-7");
        assert_eq!(ShardHome::split_by("shard-9-7"), Some((9, 7)));
        let others = ["shard-9", "shard-x-7", "lives-9-7", "shard-9-7-7"];
        assert!(others.iter().all(|name| ShardHome::split_by(name).is_none()));
        assert_eq!(ShardHome::at_creation(3).name(), "shard-3");
    }

    #[test]
    fn all_rows_count_in_a_shard_of_the_same_slots() {
        let slots = |slots| ShardHome::with_slots(1, None, slots, 2).slots;
        assert_eq!(slots(None), None);
        assert_eq!(slots(Some(8192..16384)), None);
        assert_eq!(slots(Some(8192..9000)), Some(OwnSlots(8192..9000)));
    }
}
