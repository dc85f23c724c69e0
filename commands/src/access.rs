//! The access of a command to keys and channels, as COMMAND GETKEYSANDFLAGS shows it and as access
//! control asks for it.

use crate::{Find, KeyAccess, KeyFlags, KeySpec, Runner, Spec, key};
use flagstone_wire::resp::Args;

impl<R: Runner> Spec<R> {
    /// Returns the keys in `args` with the access to them; `None` if the arguments do not fit the
    /// key specs.
    pub fn key_accesses(&self, args: Args<'_>) -> Option<Vec<KeyAccess>> {
        let mut found = Vec::new();
        self.key_specs().try_for_each(|keys| {
            let before = found.len();
            self.add_accesses(keys, args, &mut found)?;
            // A command whose keys are counted has none of its other keys without them.
            let is_counted = matches!(keys.find, Find::KeyNum { .. });
            (!is_counted || found.len() > before).then_some(())
        })?;
        Some(found)
    }

    /// Returns the access to every key in `args` that the command may use: those of the key specs
    /// that the arguments fit, and those that no key spec covers.
    pub fn all_key_accesses(&self, args: Args<'_>) -> Vec<KeyAccess> {
        let mut found = Vec::new();
        self.key_specs().for_each(|keys| {
            let _ = self.add_accesses(keys, args, &mut found);
        });
        // The commands that it runs are asked for themselves.
        if let Some(elsewhere) = self.other_db.filter(|_| !self.runs_others()) {
            let name_of = |access: &KeyAccess| args.get(access.index);
            let known: Vec<_> =
                found.iter().filter_map(|access| Some((0, name_of(access)?))).collect();
            for (_, key) in elsewhere(args, 0, &known) {
                // The right to read a key is none to write it: it may be named as a target, too.
                let is_known = found.iter().any(|access| {
                    name_of(access) == Some(key)
                        && access.flags.intersects(key!(UPDATE | INSERT | DELETE))
                });
                if !is_known
                    && let Some(index) = (1..args.len()).find(|at| args.get(*at) == Some(key))
                {
                    found.push(KeyAccess { index, flags: key!(OW | UPDATE) });
                }
            }
        }
        found
    }

    /// Appends the keys of a key spec; `None` if the arguments do not fit.
    fn add_accesses(
        &self,
        keys: &KeySpec,
        args: Args<'_>,
        found: &mut Vec<KeyAccess>,
    ) -> Option<()> {
        let mut indices = Vec::new();
        keys.find(args, &mut indices)?;
        let flags = self.access_flags(keys, args);
        found.extend(indices.into_iter().map(|index| KeyAccess { index, flags }));
        Some(())
    }

    /// Returns the access to the keys of a key spec.
    pub fn access_flags(&self, keys: &KeySpec, args: Args<'_>) -> KeyFlags {
        match self.key_access {
            Some(find) if keys.flags.contains(key!(VARIABLE_FLAGS)) => find(args),
            _ => keys.flags,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FAMILIES;
    use crate::registry::Registry;
    use flagstone_wire::resp::OwnedArgs;

    /// Returns the keys of a command line as `key:flags`.
    fn accesses(line: &str) -> Vec<String> {
        let registry = Registry::new(FAMILIES.iter().copied().flatten());
        let args: OwnedArgs = line.split(' ').collect();
        let args = args.args();
        let found = registry.resolve(args).unwrap().spec.all_key_accesses(args);
        let shown = |access: &KeyAccess| {
            let key = String::from_utf8_lossy(args.get(access.index).unwrap()).into_owned();
            let flags: Vec<_> = access.flags.iter_names().map(|(name, _)| name).collect();
            format!("{key}:{}", flags.join("+"))
        };
        found.iter().map(shown).collect()
    }

    #[test]
    fn access_depends_on_the_arguments() {
        assert_eq!(accesses("set k v"), ["k:OW+update"]);
        assert_eq!(accesses("set k v px 5 GeT"), ["k:RW+access+update"]);
        assert_eq!(accesses("bitfield k"), ["k:RO+access"]);
        assert_eq!(accesses("bitfield k get u8 0"), ["k:RO+access"]);
        assert_eq!(accesses("bitfield k get u8 0 set u8 0 1"), ["k:RW+access+update"]);
        assert_eq!(accesses("bitfield k overflow fail"), ["k:RO+access"]);
        assert_eq!(accesses("bitfield k nonsense"), ["k:RW+access+update"]);
    }

    #[test]
    fn keys_that_no_key_spec_covers_are_found() {
        assert_eq!(
            accesses("georadius k 0 0 1 km store a storedist b store c"),
            ["k:RO+access", "a:OW+update", "b:OW+update", "c:OW+update"]
        );
        assert_eq!(accesses("sort k by store store a store b"), ["k:RO+access", "b:OW+update"]);
        // A key that is read may be the target, too.
        assert_eq!(
            accesses("georadius k 0 0 1 km store a store k"),
            ["k:RO+access", "a:OW+update", "k:OW+update"]
        );
        assert_eq!(
            accesses("georadiusbymember k m 1 km storedist a storedist k storedist a"),
            ["k:RO+access", "a:OW+update", "k:OW+update"]
        );
        assert_eq!(accesses("georadius k 0 0 1 km store k"), ["k:RO+access", "k:OW+update"]);
        assert_eq!(accesses("sort k store a store k"), ["k:RO+access", "k:OW+update"]);
        assert_eq!(accesses("copy a a db 1"), ["a:RO+access", "a:OW+update"]);
        assert_eq!(accesses("move k 1").len(), 1);
        for options in
            ["group g c", "group streams c", "noack group g streams", "count 1 group g streams"]
        {
            let line = format!("xreadgroup {options} block 5 streams k l 0 >");
            assert_eq!(accesses(&line), ["k:RO+access", "l:RO+access"], "{options}");
        }
        assert_eq!(accesses("copy a b db 1").len(), 2);
        assert_eq!(accesses("pfmerge k"), ["k:RW+access+insert"]);
        assert_eq!(accesses("zunionstore k 9 a"), ["k:OW+update"]);
    }
}
