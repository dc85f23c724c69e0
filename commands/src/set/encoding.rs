//! The encodings of sets, and the conversions between them.

use crate::DataSettings;
use flagstone_rdb::SetForm;
use flagstone_storage::store::Part;
use flagstone_storage::value::{Set, SetEncoding};
use flagstone_wire::num::parse_i64;

/// Length of the longest integer in bytes.
const MAX_INTEGER: usize = 20;

/// Maximum number of members of an intset, whatever the settings are.
const MAX_INTSET: usize = 1 << 30;

/// Returns the maximum number of members of an intset.
fn max_intset(settings: &DataSettings) -> u64 {
    settings.set_max_intset_entries.min(MAX_INTSET) as u64
}

fn is_integer(name: &[u8]) -> bool {
    parse_i64(name).is_some()
}

/// Returns an empty set in the encoding for `count` members, of which `first` is the first.
pub(super) fn new_for(first: &[u8], count: usize, settings: &DataSettings) -> Set {
    Set::new(if is_integer(first) && count <= settings.set_max_intset_entries {
        SetEncoding::Intset
    } else if count <= settings.set_max_listpack_entries {
        SetEncoding::Listpack
    } else {
        SetEncoding::Table
    })
}

/// Returns true if a set must become a "hashtable" before `count` members are added in one command.
pub(super) fn is_outgrown_by(set: &Set, count: usize, settings: &DataSettings) -> bool {
    match set.encoding() {
        SetEncoding::Intset => count > settings.set_max_intset_entries,
        SetEncoding::Listpack => count > settings.set_max_listpack_entries,
        SetEncoding::Table => false,
    }
}

/// Returns true if a listpack of the set's members has room for another.
fn fits_listpack(set: &Set, name: &[u8], settings: &DataSettings) -> bool {
    set.len() < settings.set_max_listpack_entries as u64
        && name.len() <= settings.set_max_listpack_value
}

/// Checks that all rows that [`add`] needs for these members are in memory.
pub(super) fn require<'n>(
    set: &Set,
    mut names: impl Iterator<Item = &'n [u8]> + Clone,
    settings: &DataSettings,
) -> Result<(), Part> {
    set.require(names.clone())?;
    // The conversion of an intset to a listpack reads all members.
    let to_listpack = |name| !is_integer(name) && fits_listpack(set, name, settings);
    if set.encoding() == SetEncoding::Intset && names.any(to_listpack) {
        set.require_all()?;
    }
    Ok(())
}

/// Adds a member (see [`require`]); returns true if it is new.
pub(super) fn add(set: &mut Set, name: &[u8], settings: &DataSettings) -> bool {
    if set.contains(name) == Ok(true) {
        return false;
    }
    match set.encoding() {
        SetEncoding::Intset if is_integer(name) => {
            if set.len() >= max_intset(settings) {
                set.set_encoding(SetEncoding::Table);
            }
        }
        SetEncoding::Intset => {
            let most = settings.set_max_listpack_value;
            let fits = fits_listpack(set, name, settings)
                && (most >= MAX_INTEGER || set.iter().all(|integer| integer.len() <= most));
            set.set_encoding(if fits { SetEncoding::Listpack } else { SetEncoding::Table });
        }
        SetEncoding::Listpack if !fits_listpack(set, name, settings) => {
            set.set_encoding(SetEncoding::Table);
        }
        SetEncoding::Listpack | SetEncoding::Table => {}
    }
    set.add(name)
}

/// Returns a set of this encoding, or of the next one that its members require.
pub(super) fn build<'n>(
    encoding: SetEncoding,
    names: impl IntoIterator<Item = &'n [u8]>,
    settings: &DataSettings,
) -> Set {
    let mut set = Set::new(encoding);
    for name in names {
        add(&mut set, name, settings);
    }
    set
}

/// Converts a set back to an intset, if all members are integers and they are few enough.
pub(super) fn back_to_intset(set: &mut Set, settings: &DataSettings) {
    if set.len() <= max_intset(settings) && set.iter().all(is_integer) {
        set.set_encoding(SetEncoding::Intset);
    }
}

/// Returns the set of a payload.
pub(crate) fn restored(form: SetForm, members: &[Vec<u8>], settings: &DataSettings) -> Set {
    let (encoding, most) = match form {
        SetForm::Intset => (SetEncoding::Intset, settings.set_max_intset_entries),
        SetForm::Listpack => (SetEncoding::Listpack, settings.set_max_listpack_entries),
        SetForm::Table => {
            let few = members.len() as u64 <= max_intset(settings);
            let encoding = if few { SetEncoding::Intset } else { SetEncoding::Table };
            return build(encoding, members.iter().map(Vec::as_slice), settings);
        }
    };
    let mut set = Set::new(if members.len() <= most { encoding } else { SetEncoding::Table });
    members.iter().for_each(|name| {
        set.add(name);
    });
    set
}
