//! The first line of a script: `#!lua flags=no-writes,allow-stale`.

use bitflags::bitflags;
use flagstone_commands::{CommandFlags, flag};
use flagstone_wire::resp::split_args;

bitflags! {
    /// ScriptFlags that a script declares, with their names there; libraries of functions are stored with
    /// these bits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ScriptFlags: u32 {
        #[bitflags(flag_name = "no-writes")]
        const NO_WRITES = 1;
        #[bitflags(flag_name = "allow-oom")]
        const ALLOW_OOM = 1 << 1;
        #[bitflags(flag_name = "allow-stale")]
        const ALLOW_STALE = 1 << 2;
        #[bitflags(flag_name = "no-cluster")]
        const NO_CLUSTER = 1 << 3;
        #[bitflags(flag_name = "allow-cross-slot-keys")]
        const ALLOW_CROSS_SLOT_KEYS = 1 << 4;
        /// The script has no such line: it may do all that scripts always could.
        const COMPATIBLE = 1 << 5;
    }
}

impl ScriptFlags {
    /// Returns the flags of a command that runs the script. `own`: the command's own flags.
    pub fn command_flags(self, own: CommandFlags) -> CommandFlags {
        if self.contains(Self::COMPATIBLE) {
            return own;
        }
        let writes = !self.contains(Self::NO_WRITES);
        let mut flags = own.difference(flag!(MAY_REPLICATE));
        flags.set(flag!(DENYOOM), writes && !self.contains(Self::ALLOW_OOM));
        flags.set(flag!(WRITE), writes);
        flags.set(flag!(STALE), self.contains(Self::ALLOW_STALE));
        flags
    }

    /// Returns the flag that a script calls so.
    pub fn named(name: &[u8]) -> Option<Self> {
        Self::all()
            .difference(Self::COMPATIBLE)
            .iter_names()
            .find(|(known, _)| known.as_bytes() == name)
            .map(|(_, flag)| flag)
    }
}

/// Parses the first line: returns the flags and the line's end, or the error text.
pub fn parse(body: &[u8]) -> Result<(ScriptFlags, usize), Vec<u8>> {
    if !body.starts_with(b"#!") {
        return Ok((ScriptFlags::COMPATIBLE, 0));
    }
    let end = memchr::memchr(b'\n', body).ok_or(&b"ERR Invalid script shebang"[..])?;
    let parts = split_args(&body[..end]).ok().filter(|parts| !parts.is_empty());
    let parts = parts.ok_or(&b"ERR Invalid engine in script shebang"[..])?;
    let mut flags = ScriptFlags::default();
    for part in &parts[1..] {
        let Some(names) = part.strip_prefix(b"flags=") else {
            return Err([b"ERR Unknown lua shebang option: ", &part[..]].concat());
        };
        for name in names.split(|byte| *byte == b',').filter(|_| !names.is_empty()) {
            flags |= ScriptFlags::named(name)
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
        assert_eq!(parse(b"return 1"), Ok((ScriptFlags::COMPATIBLE, 0)));
        assert_eq!(parse(b"#!lua\nreturn 1"), Ok((ScriptFlags::empty(), 5)));
        assert_eq!(parse(b"#!lua flags=\nx"), Ok((ScriptFlags::empty(), 12)));
        let both = ScriptFlags::NO_WRITES | ScriptFlags::ALLOW_OOM;
        assert_eq!(parse(b"#!lua flags=no-writes,allow-oom\n"), Ok((both, 31)));
    }

    #[test]
    fn flags_of_a_shebang_become_those_of_the_command() {
        let own = flag!(NOSCRIPT | STALE | MAY_REPLICATE);
        let of = |flags: ScriptFlags| flags.command_flags(own);
        assert_eq!(of(ScriptFlags::COMPATIBLE), own);
        assert_eq!(of(ScriptFlags::empty()), flag!(NOSCRIPT | DENYOOM | WRITE));
        assert_eq!(of(ScriptFlags::ALLOW_OOM), flag!(NOSCRIPT | WRITE));
        assert_eq!(of(ScriptFlags::NO_WRITES | ScriptFlags::ALLOW_STALE), flag!(NOSCRIPT | STALE));
    }

    #[test]
    fn errors_name_the_wrong_part() {
        let error = |body: &[u8]| String::from_utf8(parse(body).unwrap_err()).unwrap();
        assert_eq!(error(b"#!lua"), "ERR Invalid script shebang");
        assert_eq!(error(b"#!lua flags=x\n"), "ERR Unexpected flag in script shebang: x");
        assert_eq!(error(b"#!lua name=x\n"), "ERR Unknown lua shebang option: name=x");
        assert_eq!(error(b"#!perl\n"), "ERR Could not find scripting engine 'perl'");
    }
}
