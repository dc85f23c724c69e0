//! ACL: users and their rights.

mod change;
mod check;
mod show;

use crate::commands::{Handler, Spec};
use flagstone_commands::help::help;
use flagstone_commands::{CommandFlags, Group, flag};
use flagstone_wire::resp::Reply;

/// `ACL HELP`
fn show_help(out: &mut Reply) {
    help(
        out,
        "ACL",
        &[
            ("CAT [<category>]", "Answers the categories, or the commands of one."),
            ("DELUSER <username> [<username> ...]", "Removes users and closes their connections."),
            (
                "DRYRUN <username> <command> [<arg> ...]",
                "Tells if the user may run the command, without running it.",
            ),
            ("GETUSER <username>", "Describes a user."),
            ("GENPASS [<bits>]", "Answers a random password of 256 bits, or of so many."),
            ("LIST", "Answers the users as lines of the configuration."),
            ("LOAD", "Reads the users from the aclfile."),
            ("LOG [<count> | RESET]", "Answers the latest denied accesses, or forgets them."),
            ("SAVE", "Writes the users to the aclfile."),
            (
                "SETUSER <username> <attribute> [<attribute> ...]",
                "Changes a user by rules, or creates it.",
            ),
            ("USERS", "Answers the names of the users."),
            ("WHOAMI", "Answers the name of the connection's user."),
        ],
    );
}

const ANYBODY: CommandFlags = flag!(NOSCRIPT | LOADING | STALE);
const ADMIN: CommandFlags = ANYBODY.union(flag!(ADMIN));

/// Base of the subcommands.
const SUB: Spec =
    Spec { group: Group::Server, since: "6.0.0", arity: 2, flags: ADMIN, ..Spec::NEW };

const OF_USERS: &str = "O(N). Where N is the number of configured users.";
const ON_ALL: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

/// Declarations of the subcommands of ACL.
const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "cat",
        complexity: "O(1) since the categories and commands are a fixed set.",
        summary: "Answers the categories of commands, or the commands of one.",
        arity: -2,
        flags: ANYBODY,
        run: Handler::Session(show::cat),
        ..SUB
    },
    Spec {
        name: "deluser",
        complexity: "O(1) amortized time considering the typical user.",
        summary: "Removes users and closes their connections.",
        arity: -3,
        tips: ON_ALL,
        run: Handler::Session(change::deluser),
        ..SUB
    },
    Spec {
        name: "dryrun",
        since: "7.0.0",
        complexity: "O(1).",
        summary: "Tells if a user may run a command, without running it.",
        arity: -4,
        run: Handler::Session(check::dryrun),
        ..SUB
    },
    Spec {
        name: "genpass",
        summary: "Answers a random password.",
        arity: -2,
        flags: ANYBODY,
        run: Handler::Session(check::genpass),
        ..SUB
    },
    Spec {
        name: "getuser",
        complexity: "O(N). Where N is the number of password, command and pattern rules that the \
            user has.",
        summary: "Describes a user.",
        arity: 3,
        run: Handler::Session(show::getuser),
        ..SUB
    },
    Spec {
        name: "help",
        summary: "Tells the subcommands.",
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show_help),
        ..SUB
    },
    Spec {
        name: "list",
        complexity: OF_USERS,
        summary: "Answers the users as lines of the configuration.",
        run: Handler::Session(show::list),
        ..SUB
    },
    Spec {
        name: "load",
        complexity: OF_USERS,
        summary: "Reads the users from the file of users.",
        run: Handler::Wait(change::load),
        ..SUB
    },
    Spec {
        name: "log",
        complexity: "O(N) with N being the number of entries shown.",
        summary: "Answers the latest denied accesses, or forgets them.",
        arity: -2,
        run: Handler::Session(check::log),
        ..SUB
    },
    Spec {
        name: "save",
        complexity: OF_USERS,
        summary: "Writes the users to the file of users.",
        tips: ON_ALL,
        run: Handler::Wait(change::save),
        ..SUB
    },
    Spec {
        name: "setuser",
        complexity: "O(N). Where N is the number of rules provided.",
        summary: "Changes a user by rules, or creates it.",
        arity: -3,
        tips: ON_ALL,
        run: Handler::Session(change::setuser),
        ..SUB
    },
    Spec {
        name: "users",
        complexity: OF_USERS,
        summary: "Answers the names of the users.",
        run: Handler::Session(show::users),
        ..SUB
    },
    Spec {
        name: "whoami",
        summary: "Answers the name of the connection's user.",
        flags: ANYBODY,
        run: Handler::Session(show::whoami),
        ..SUB
    },
];

/// Declaration of ACL.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "acl",
    group: Group::Server,
    since: "6.0.0",
    complexity: "Depends on subcommand.",
    summary: "Holds the commands on users and their rights.",
    arity: -2,
    subcommands: SUBCOMMANDS,
    ..Spec::NEW
}];
