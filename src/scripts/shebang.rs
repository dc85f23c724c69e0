//! The first line of a script: `#!lua flags=no-writes,allow-stale`.

use flagstone_commands::flag;
use flagstone_wire::resp::split_args;

/// Flags that a script declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    pub const NO_WRITES: u32 = 1;
    pub const ALLOW_OOM: u32 = 1 << 1;
    pub const ALLOW_STALE: u32 = 1 << 2;
    pub const NO_CLUSTER: u32 = 1 << 3;
    pub const ALLOW_CROSS_SLOT_KEYS: u32 = 1 << 4;
    /// The script has no such line: it may do all that scripts always could.
    pub const COMPATIBLE: u32 = 1 << 5;

    /// Names of the flags, for scripts and functions.
    pub const NAMES: &[(u32, &str)] = &[
        (Self::NO_WRITES, "no-writes"),
        (Self::ALLOW_OOM, "allow-oom"),
        (Self::ALLOW_STALE, "allow-stale"),
        (Self::NO_CLUSTER, "no-cluster"),
        (Self::ALLOW_CROSS_SLOT_KEYS, "allow-cross-slot-keys"),
    ];

    pub fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// Returns the flags of a command that runs the script. `own`: the command's own flags.
    pub fn command_flags(self, own: u32) -> u32 {
        if self.has(Self::COMPATIBLE) {
            return own;
        }
        let mut flags = own & !(flag::STALE | flag::DENYOOM | flag::WRITE | flag::MAY_REPLICATE);
        for (set, flag) in [
            (!self.has(Self::NO_WRITES) && !self.has(Self::ALLOW_OOM), flag::DENYOOM),
            (!self.has(Self::NO_WRITES), flag::WRITE),
            (self.has(Self::ALLOW_STALE), flag::STALE),
        ] {
            if set {
                flags |= flag;
            }
        }
        flags
    }

    /// Returns the flag with a name.
    pub fn named(name: &[u8]) -> Option<u32> {
        Self::NAMES.iter().find(|(_, known)| known.as_bytes() == name).map(|(flag, _)| *flag)
    }
}

/// Parses the first line: returns the flags and the line's end, or the error text.
pub fn parse(body: &[u8]) -> Result<(Flags, usize), Vec<u8>> {
    if !body.starts_with(b"#!") {
        return Ok((Flags(Flags::COMPATIBLE), 0));
    }
    let end = memchr::memchr(b'\n', body).ok_or(&b"ERR Invalid script shebang"[..])?;
    let parts = split_args(&body[..end]).ok().filter(|parts| !parts.is_empty());
    let parts = parts.ok_or(&b"ERR Invalid engine in script shebang"[..])?;
    let mut flags = Flags::default();
    for part in &parts[1..] {
        let Some(names) = part.strip_prefix(b"flags=") else {
            return Err([b"ERR Unknown lua shebang option: ", &part[..]].concat());
        };
        for name in names.split(|byte| *byte == b',').filter(|_| !names.is_empty()) {
            flags.0 |= Flags::named(name)
                .ok_or_else(|| [b"ERR Unexpected flag in script shebang: ", name].concat())?;
        }
    }
    let engine = &parts[0][2..];
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err([b"ERR Could not find scripting engine '", engine, b"'"].concat());
    }
    Ok((flags, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read() {
        assert_eq!(parse(b"return 1"), Ok((Flags(Flags::COMPATIBLE), 0)));
        assert_eq!(parse(b"#!lua\nreturn 1"), Ok((Flags(0), 5)));
        assert_eq!(parse(b"#!lua flags=\nx"), Ok((Flags(0), 12)));
        let both = Flags(Flags::NO_WRITES | Flags::ALLOW_OOM);
        assert_eq!(parse(b"#!lua flags=no-writes,allow-oom\n"), Ok((both, 31)));
    }

    #[test]
    fn they_become_those_of_the_command() {
        let own = flag::NOSCRIPT | flag::STALE | flag::MAY_REPLICATE;
        let of = |flags| Flags(flags).command_flags(own);
        assert_eq!(of(Flags::COMPATIBLE), own);
        assert_eq!(of(0), flag::NOSCRIPT | flag::DENYOOM | flag::WRITE);
        assert_eq!(of(Flags::ALLOW_OOM), flag::NOSCRIPT | flag::WRITE);
        assert_eq!(of(Flags::NO_WRITES | Flags::ALLOW_STALE), flag::NOSCRIPT | flag::STALE);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |body: &[u8]| String::from_utf8(parse(body).unwrap_err()).unwrap();
        assert_eq!(error(b"#!lua"), "ERR Invalid script shebang");
        assert_eq!(error(b"#!lua flags=x\n"), "ERR Unexpected flag in script shebang: x");
        assert_eq!(error(b"#!lua name=x\n"), "ERR Unknown lua shebang option: name=x");
        assert_eq!(error(b"#!perl\n"), "ERR Could not find scripting engine 'perl'");
    }
}
