//! ACL CAT, GETUSER, LIST, USERS and WHOAMI.

use crate::acl::Selector;
use crate::command::registry;
use crate::routing::{Call, CallOutcome};
use flagstone_commands::help::syntax;
use flagstone_commands::{Categories, arg, is_word};
use flagstone_wire::resp::{Args, Reply};

/// Maximum number of bytes of a category that its error shows.
const SHOWN: usize = 128;

/// `ACL CAT [category]`
pub(super) fn cat(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let mut all = Categories::all().iter_names();
    let Some(wanted) = args.get(2) else {
        let names: Vec<&str> = all.map(|(name, _)| name).collect();
        cx.out.array(names.len());
        names.iter().for_each(|name| cx.out.bulk_str(name));
        return Ok(());
    };
    if args.len() > 3 {
        return Err(syntax("ACL", arg(args, 1)?).into());
    }
    let Some((_, category)) = all.find(|(name, _)| is_word(wanted, name)) else {
        let shown = &wanted[..wanted.len().min(SHOWN)];
        return Err([b"ERR Unknown category '", shown, b"'"].concat().into());
    };
    let belonging =
        registry::every().filter(|command| command.spec.categories().intersects(category));
    let names: Vec<&str> = belonging.map(|command| command.full_name).collect();
    cx.out.array(names.len());
    names.iter().for_each(|name| cx.out.bulk_str(name));
    Ok(())
}

/// `ACL WHOAMI`
pub(super) fn whoami(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.out.bulk(&cx.session.account.name);
    Ok(())
}

/// `ACL USERS`
pub(super) fn users(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let accounts = cx.node.access.accounts.all();
    cx.out.array(accounts.len());
    accounts.iter().for_each(|account| cx.out.bulk(&account.name));
    Ok(())
}

/// `ACL LIST`
pub(super) fn list(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let accounts = cx.node.access.accounts.all();
    cx.out.array(accounts.len());
    for account in accounts {
        let rules = account.user().describe();
        cx.out.bulk(&[b"user ", &*account.name, b" ", &rules[..]].concat());
    }
    Ok(())
}

/// `ACL GETUSER name`
pub(super) fn getuser(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let Some(account) = cx.node.access.accounts.get(arg(args, 2)?) else {
        cx.out.null();
        return Ok(());
    };
    let user = account.user();
    let out = &mut *cx.out;
    out.map(6);
    out.bulk_str("flags");
    let flags = user.flags();
    out.set(flags.len());
    flags.iter().for_each(|flag| out.bulk_str(flag));
    out.bulk_str("passwords");
    let hashes = user.password_hashes();
    out.array(hashes.len());
    hashes.for_each(|hash| out.bulk_str(&hash));
    let [own, others @ ..] = user.selectors() else { return Ok(()) };
    describe(out, own);
    out.bulk_str("selectors");
    out.array(others.len());
    for selector in others {
        out.map(3);
        describe(out, selector);
    }
    Ok(())
}

/// Writes the three fields of a selector.
fn describe(out: &mut Reply, selector: &Selector) {
    out.bulk_str("commands");
    out.bulk(&selector.command_rules());
    out.bulk_str("keys");
    out.bulk(&selector.key_patterns());
    out.bulk_str("channels");
    out.bulk(&selector.channel_patterns());
}
