//! The replies of HELP subcommands.

use flagstone_wire::resp::Reply;

/// Answers the HELP of a command: its subcommands, each followed by what it does.
pub fn help(out: &mut Reply, name: &str, subcommands: &[(&str, &str)]) {
    out.array(1 + 2 * (subcommands.len() + 1));
    out.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for (usage, meaning) in subcommands {
        out.simple(usage);
        out.simple(&format!("    {meaning}"));
    }
    out.simple("HELP");
    out.simple("    Print this help.");
}

/// The error for an unknown subcommand of a command that looks at its subcommands itself.
pub fn syntax(name: &str, sub: &[u8]) -> String {
    let sub = String::from_utf8_lossy(&sub[..sub.len().min(128)]);
    format!("ERR unknown subcommand or wrong number of arguments for '{sub}'. Try {name} HELP.")
}
