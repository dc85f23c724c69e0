//! The replies of HELP subcommands.

use flagstone_wire::resp::Reply;

/// Writes the HELP of a command: its subcommands, each followed by its description.
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

/// Returns the error for an unknown subcommand of a command that parses its subcommands itself.
pub fn syntax(name: &str, sub: &[u8]) -> String {
    let sub = String::from_utf8_lossy(&sub[..sub.len().min(128)]);
    format!("ERR unknown subcommand or wrong number of arguments for '{sub}'. Try {name} HELP.")
}
