//! Progress of a group in its stream.

use super::super::Stream;
use super::super::id::StreamId;
use super::Group;

impl Stream {
    /// Returns true if an entry from an id on was deleted between others.
    fn has_holes_from(&self, id: StreamId) -> bool {
        !self.is_empty() && self.max_deleted_id() != StreamId::MIN && id <= self.max_deleted_id()
    }

    /// Returns how many entries were added up to an id, including removed ones; `None` if that is
    /// unknown.
    pub fn entries_up_to(&self, id: StreamId) -> Option<i64> {
        let (added, len) = (self.entries_added() as i64, self.len() as i64);
        let deleted = self.max_deleted_id();
        if added == 0 || (len == 0 && id <= self.last_id()) {
            return Some(added);
        }
        if (id != StreamId::MIN && id < deleted) || id > self.last_id() {
            return None;
        }
        if id == self.last_id() {
            return Some(added);
        }
        // Nothing was deleted between the existing entries.
        let is_dense = deleted == StreamId::MIN || deleted < self.first_id();
        match id.cmp(&self.first_id()) {
            std::cmp::Ordering::Less if is_dense => Some(added.wrapping_sub(len)),
            std::cmp::Ordering::Equal if is_dense => Some(added.wrapping_sub(len).wrapping_add(1)),
            _ => None,
        }
    }

    /// Returns the number of entries not yet delivered to a group; `None` if that is unknown.
    pub fn lag(&self, group: &Group) -> Option<i64> {
        let added = self.entries_added() as i64;
        if added == 0 {
            return Some(0);
        }
        let read = match group.entries_read() {
            Some(read) if !self.has_holes_from(group.last_id()) => Some(read),
            _ => self.entries_up_to(group.last_id()),
        };
        read.map(|read| added.wrapping_sub(read))
    }

    /// Returns a group's position (see [`super::Groups::set_position`]) after the entry `id`, the
    /// next one behind `last_id`, was delivered.
    pub fn advance(
        &self,
        (last_id, entries_read): (StreamId, Option<i64>),
        id: StreamId,
    ) -> (StreamId, Option<i64>) {
        if id <= last_id {
            return (last_id, entries_read);
        }
        let entries_read = match entries_read {
            Some(read) if last_id >= self.first_id() && !self.has_holes_from(last_id) => {
                Some(read.wrapping_add(1))
            }
            _ if self.entries_added() > 0 => self.entries_up_to(id),
            unknown => unknown,
        };
        (id, entries_read)
    }
}
