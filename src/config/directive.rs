//! Directives: their names, the kinds of values they take, and when they may change.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::structured::Structure;

/// Inclusive bounds of a number.
pub(super) type Range = (i128, i128);

/// A condition on a canonical value; the error is the reason that the user is shown.
pub(super) type Check = fn(&str) -> Result<(), &'static str>;

/// The kind of value a directive takes. Values are kept in canonical text, as CONFIG GET returns
/// them.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// `yes` or `no`.
    YesNo,
    /// Exactly one of the listed words.
    OneOf(&'static [&'static str]),
    /// One or several of the listed words; the first one stands for "none of the others".
    SomeOf(&'static [&'static str]),
    /// A decimal integer.
    Integer(Range),
    /// `auto` or a decimal integer.
    AutoInteger(Range),
    /// Bytes, with the units b, k, kb, m, mb, g, gb.
    Memory(Range),
    /// `auto` or bytes.
    AutoMemory(Range),
    /// `auto`, bytes, or a percentage up to 100.
    AutoMemoryOrPercent,
    /// An octal number.
    Octal(Range),
    /// Any text.
    Text,
    /// Any text; empty means unset, and is then absent from a rewritten file.
    OptionalText,
    /// A value with a grammar of its own.
    Structured(Structure),
}

/// When CONFIG SET may change a directive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutability {
    Live,
    /// Never by CONFIG SET, as in Redis.
    Immutable,
    /// Fixed once the server runs; CONFIG SET accepts the value it already has.
    AtStart,
}

/// One row of the table of directives.
pub(super) struct Directive {
    pub(super) name: &'static str,
    pub(super) alias: Option<&'static str>,
    pub(super) kind: Kind,
    pub(super) default: &'static str,
    pub(super) mutability: Mutability,
    /// True if CONFIG GET returns it only by its exact name.
    pub(super) hidden: bool,
    /// True for a secret, which is never shown in errors or notices.
    pub(super) sensitive: bool,
    /// True if CONFIG SET needs `enable-protected-configs`.
    pub(super) protected: bool,
    /// The reason why the value is accepted but has no effect here.
    pub(super) inert: Option<&'static str>,
    /// A further condition on the canonical value.
    pub(super) check: Option<Check>,
    pub(super) doc: &'static str,
}

impl Directive {
    /// Creates a live, plain directive; the methods below change its properties.
    pub(super) const fn new(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        doc: &'static str,
    ) -> Self {
        Self {
            name,
            alias: None,
            kind,
            default,
            mutability: Mutability::Live,
            hidden: false,
            sensitive: false,
            protected: false,
            inert: None,
            check: None,
            doc,
        }
    }

    pub(super) const fn alias(mut self, alias: &'static str) -> Self {
        self.alias = Some(alias);
        self
    }

    pub(super) const fn immutable(mut self) -> Self {
        self.mutability = Mutability::Immutable;
        self
    }

    pub(super) const fn at_start(mut self) -> Self {
        self.mutability = Mutability::AtStart;
        self
    }

    pub(super) const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    pub(super) const fn sensitive(mut self) -> Self {
        self.sensitive = true;
        self
    }

    pub(super) const fn protected(mut self) -> Self {
        self.protected = true;
        self
    }

    pub(super) const fn inert(mut self, reason: &'static str) -> Self {
        self.inert = Some(reason);
        self
    }

    pub(super) const fn check(mut self, check: Check) -> Self {
        self.check = Some(check);
        self
    }

    /// Returns true if the directive takes any number of words.
    pub(super) fn is_multi(&self) -> bool {
        match self.kind {
            Kind::SomeOf(_) => true,
            Kind::Structured(structure) => structure.is_multi(),
            _ => false,
        }
    }
}

/// Refuses an empty value, or a path in place of a bare file name.
macro_rules! base_name_check {
    ($function:ident, $name:literal, $noun:literal) => {
        pub(super) fn $function(value: &str) -> Result<(), &'static str> {
            if value.is_empty() {
                return Err(concat!($name, " can't be empty"));
            }
            if value.contains(['/', '\\']) {
                return Err(concat!($name, " can't be a path, just a ", $noun));
            }
            Ok(())
        }
    };
}

base_name_check!(dbfilename, "dbfilename", "filename");
base_name_check!(appendfilename, "appendfilename", "filename");
base_name_check!(appenddirname, "appenddirname", "dirname");

pub(super) fn dir(value: &str) -> Result<(), &'static str> {
    if value.is_empty() { Err("dir can't be empty") } else { Ok(()) }
}

pub(super) fn cluster_config_file(value: &str) -> Result<(), &'static str> {
    if value.is_empty() { Err("cluster-config-file can't be empty") } else { Ok(()) }
}

pub(super) fn active_defrag(value: &str) -> Result<(), &'static str> {
    if value == "yes" {
        return Err(
            "Active defragmentation cannot be enabled: it requires a server compiled with \
                    a modified Jemalloc like the one shipped by default with the source \
                    distribution",
        );
    }
    Ok(())
}

pub(super) fn shutdown_flags(value: &str) -> Result<(), &'static str> {
    let has = |flag| value.split(' ').any(|word| word == flag);
    if has("save") && has("nosave") {
        return Err("shutdown options SAVE and NOSAVE can't be used simultaneously");
    }
    Ok(())
}

/// Longest announced host name, in bytes.
const HOST_NAME_LIMIT: usize = 256;

pub(super) fn announced_hostname(value: &str) -> Result<(), &'static str> {
    if value.len() >= HOST_NAME_LIMIT {
        return Err("Hostnames must be less than 256 characters");
    }
    if !value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.') {
        return Err("Hostnames may only contain alphanumeric characters, hyphens or dots");
    }
    Ok(())
}

/// Other servers and clients get it in lines of text, where it is one word.
pub(super) fn announced_address(value: &str) -> Result<(), &'static str> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:_%".contains(&byte);
    match value.len() < HOST_NAME_LIMIT && value.bytes().all(is_part) {
        true => Ok(()),
        false => Err("An announced address is an IP address or a host name"),
    }
}

pub(super) fn announced_nodename(value: &str) -> Result<(), &'static str> {
    let forbidden = |byte: u8| b"!#$%&()*+;<>?@[]^{|}~".contains(&byte);
    if value.bytes().any(forbidden) {
        return Err("Announced human node name contained invalid character");
    }
    Ok(())
}

pub(super) fn ipv4(value: &str) -> Result<(), &'static str> {
    let valid = value.is_empty() || value.parse::<Ipv4Addr>().is_ok();
    if valid { Ok(()) } else { Err("Invalid IPv4 address") }
}

pub(super) fn ipv6(value: &str) -> Result<(), &'static str> {
    let valid = value.is_empty() || value.parse::<Ipv6Addr>().is_ok();
    if valid { Ok(()) } else { Err("Invalid IPv6 address") }
}

/// Variables that a process title may name.
const TITLE_VARIABLES: [&str; 7] =
    ["title", "listen-addr", "server-mode", "port", "tls-port", "unixsocket", "config-file"];

pub(super) fn proc_title_template(value: &str) -> Result<(), &'static str> {
    const INVALID: &str = "template format is invalid or contains unknown variables";
    let mut rest = value;
    while let Some(open) = rest.find('{') {
        let inside = &rest[open + 1..];
        if let Some(after_quoted_brace) = inside.strip_prefix('{') {
            rest = after_quoted_brace;
            continue;
        }
        let close = inside.find('}').ok_or(INVALID)?;
        if !TITLE_VARIABLES.contains(&&inside[..close]) {
            return Err(INVALID);
        }
        rest = &inside[close + 1..];
    }
    if value.is_empty() { Err(INVALID) } else { Ok(()) }
}

/// Refuses every value except the one that requests nothing: the feature is absent, and a user who
/// relied on it would be harmed.
macro_rules! absent_check {
    ($function:ident, except $on:literal, $reason:expr) => {
        pub(super) fn $function(value: &str) -> Result<(), &'static str> {
            if value == $on { Err($reason) } else { Ok(()) }
        }
    };
    ($function:ident, $off:literal, $reason:expr) => {
        pub(super) fn $function(value: &str) -> Result<(), &'static str> {
            if value == $off { Ok(()) } else { Err($reason) }
        }
    };
}

absent_check!(no_syslog, "no", "this server does not write to syslog: use logfile");
absent_check!(no_upstart, except "upstart", "upstart is not supported: use systemd, auto or no");
absent_check!(no_insecure_api, "no", "this server does not offer deprecated functions to scripts");

/// The reason why a key has no password.
pub(super) const NO_KEY_PASSWORD: &str = "encrypted keys are not supported: decrypt the key (openssl pkey -in KEY -out PLAIN), and let only \
    the server's user read it";

absent_check!(no_key_password, "", NO_KEY_PASSWORD);

pub(super) fn tls_protocols(value: &str) -> Result<(), &'static str> {
    for word in value.split_whitespace() {
        let is = |name: &str| word.eq_ignore_ascii_case(name);
        if is("TLSv1") || is("TLSv1.1") {
            return Err("TLSv1 and TLSv1.1 are not supported: use TLSv1.2 and TLSv1.3");
        }
        if !is("TLSv1.2") && !is("TLSv1.3") {
            return Err("Invalid tls-protocols specified. Use a combination of 'TLSv1.2' and \
                       'TLSv1.3'.");
        }
    }
    Ok(())
}

pub(super) fn rdma_unsupported(value: &str) -> Result<(), &'static str> {
    let off = value == "0" || value.is_empty();
    if off { Ok(()) } else { Err("No RDMA building support.") }
}
