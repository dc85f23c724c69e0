//! CLIENT TRACKING, CACHING, TRACKINGINFO and GETREDIR.

use super::flags::ANY_TIME;
use crate::clients::ClientState;
use crate::commands::{Handler, Spec};
use crate::routing::{Call, CallOutcome};
use crate::tracking::{Mode, Tracked};
use flagstone_commands::{ErrorText, Group, arg, error, int_arg, is_word};
use flagstone_wire::resp::Args;

const NO_ROOM: &str = "OOM the prefixes of all clients take all the memory they may";

/// The options of CLIENT TRACKING.
#[derive(Default)]
struct Options<'a> {
    /// Client that receives the messages; 0 if none is given.
    redirect: u64,
    broadcast: bool,
    opt_in: bool,
    opt_out: bool,
    noloop: bool,
    prefixes: Vec<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(cx: &Call<'_>, args: Args<'a>) -> Result<Self, ErrorText> {
        let mut options = Self::default();
        let mut at = 3;
        while let Some(word) = args.get(at) {
            let value = args.get(at + 1);
            match value {
                Some(_) if is_word(word, "redirect") => {
                    at += 1;
                    options.set_redirect(cx, int_arg(args, at)?)?;
                }
                Some(prefix) if is_word(word, "prefix") => {
                    at += 1;
                    options.prefixes.push(prefix);
                }
                _ if is_word(word, "bcast") => options.broadcast = true,
                _ if is_word(word, "optin") => options.opt_in = true,
                _ if is_word(word, "optout") => options.opt_out = true,
                _ if is_word(word, "noloop") => options.noloop = true,
                _ => return Err(error::SYNTAX.into()),
            }
            at += 1;
        }
        Ok(options)
    }

    fn set_redirect(&mut self, cx: &Call<'_>, id: i64) -> Result<(), ErrorText> {
        if self.redirect != 0 {
            return Err("ERR A client can only redirect to a single other client".into());
        }
        let client = u64::try_from(id).ok().and_then(|id| cx.node.clients.get(id));
        self.redirect = client
            .filter(|client| client.may_hear())
            .map(|client| client.id)
            .ok_or("ERR The client ID you want redirect to does not exist")?;
        Ok(())
    }

    /// Returns the requested mode, if the options are compatible with each other and with the
    /// current mode.
    fn mode(&self, now: Option<Mode>) -> Result<Mode, ErrorText> {
        if !self.broadcast && !self.prefixes.is_empty() {
            return Err("ERR PREFIX option requires BCAST mode to be enabled".into());
        }
        if now.is_some_and(|now| (now == Mode::Broadcast) != self.broadcast) {
            return Err("ERR You can't switch BCAST mode on/off before disabling tracking for \
                        this client, and then re-enabling it with a different mode."
                .into());
        }
        if self.broadcast && (self.opt_in || self.opt_out) {
            return Err("ERR OPTIN and OPTOUT are not compatible with BCAST".into());
        }
        if self.opt_in && self.opt_out {
            return Err("ERR You can't specify both OPTIN mode and OPTOUT mode".into());
        }
        if (self.opt_in && now == Some(Mode::OptOut)) || (self.opt_out && now == Some(Mode::OptIn))
        {
            return Err("ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for \
                        this client, and then re-enabling it with a different mode."
                .into());
        }
        Ok(match self {
            Self { broadcast: true, .. } => Mode::Broadcast,
            Self { opt_in: true, .. } => Mode::OptIn,
            Self { opt_out: true, .. } => Mode::OptOut,
            _ => Mode::All,
        })
    }

    /// Checks that no key can have two of the client's prefixes.
    fn check_overlaps(&self, tracked: Option<&Tracked>) -> Result<(), ErrorText> {
        let old = tracked.into_iter().flat_map(|tracked| tracked.prefixes());
        let old = old.map(|prefix| (&prefix[..], None));
        let new = self.prefixes.iter().enumerate().map(|(at, prefix)| (*prefix, Some(at)));
        let mut sorted: Vec<(&[u8], Option<usize>)> = old.chain(new).collect();
        sorted.sort_unstable();
        // A prefix that begins with another one is sorted directly behind it, or behind one that
        // begins with it, too.
        let Some(pair) = sorted.windows(2).find(|pair| pair[1].0.starts_with(pair[0].0)) else {
            return Ok(());
        };
        // If both are new, the error names the first one given as the overlapping one.
        let (mut one, mut other) = (pair[0], pair[1]);
        if one.1.is_none() || (other.1.is_some() && other.1 < one.1) {
            std::mem::swap(&mut one, &mut other);
        }
        let what = if other.1.is_some() { "another provided" } else { "an existing" };
        let (one, other) = (String::from_utf8_lossy(one.0), String::from_utf8_lossy(other.0));
        let text = format!(
            "ERR Prefix '{one}' overlaps with {what} prefix '{other}'. Prefixes for a single client \
             must not overlap."
        );
        Err(text.into())
    }
}

/// `CLIENT TRACKING <ON | OFF> [REDIRECT client-id] [PREFIX prefix]… [BCAST] [OPTIN] [OPTOUT]
/// [NOLOOP]`
fn tracking(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let options = Options::parse(cx, args)?;
    if is_word(arg(args, 2)?, "on") {
        begin(cx, options)?;
    } else if is_word(arg(args, 2)?, "off") {
        cx.session.tracking = None;
    } else {
        return Err(error::SYNTAX.into());
    }
    cx.out.ok();
    Ok(())
}

fn begin(cx: &mut Call<'_>, mut options: Options<'_>) -> CallOutcome {
    let now = cx.session.tracking.as_deref();
    let mode = options.mode(now.map(Tracked::mode))?;
    options.check_overlaps(now)?;
    if mode == Mode::Broadcast && options.prefixes.is_empty() {
        options.prefixes.push(b"");
    }
    if !cx.node.broadcast.listeners.prefixes.fits(options.prefixes.iter().copied()) {
        return Err(NO_ROOM.into());
    }
    let client = &cx.session.client;
    let tracked = cx.session.tracking.get_or_insert_with(|| {
        Box::new(Tracked::new(
            &cx.node.broadcast.listeners.prefixes,
            &cx.node.broadcast.listeners.count,
            client,
        ))
    });
    tracked.set(mode, options.noloop, options.redirect);
    options.prefixes.iter().for_each(|prefix| tracked.add_prefix(prefix));
    Ok(())
}

/// `CLIENT CACHING <YES | NO>`
fn caching(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let Some(tracked) = &mut cx.session.tracking else {
        return Err("ERR CLIENT CACHING can be called only when the client is in tracking mode \
                    with OPTIN or OPTOUT mode enabled"
            .into());
    };
    let word = arg(args, 2)?;
    if is_word(word, "yes") {
        if tracked.mode() != Mode::OptIn {
            return Err("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN \
                        mode."
                .into());
        }
    } else if is_word(word, "no") {
        if tracked.mode() != Mode::OptOut {
            return Err("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT \
                        mode."
                .into());
        }
    } else {
        return Err(error::SYNTAX.into());
    }
    tracked.caching = true;
    cx.out.ok();
    Ok(())
}

/// Returns the client that receives the messages: 0 for the client itself, -1 without tracking.
fn redirect(cx: &Call<'_>) -> i64 {
    if cx.session.tracking.is_some() { cx.session.client.redirect().cast_signed() } else { -1 }
}

/// `CLIENT GETREDIR`
fn getredir(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let redirect = redirect(cx);
    cx.out.int(redirect);
    Ok(())
}

/// `CLIENT TRACKINGINFO`
fn trackinginfo(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let (client, redirect) = (&cx.session.client, redirect(cx));
    let tracked = cx.session.tracking.as_deref();
    let is = |mode| tracked.is_some_and(|tracked| tracked.mode() == mode);
    let caching = tracked.is_some_and(|tracked| tracked.caching);
    let flags = [
        (tracked.is_none(), "off"),
        (tracked.is_some(), "on"),
        (is(Mode::Broadcast), "bcast"),
        (is(Mode::OptIn), "optin"),
        (is(Mode::OptIn) && caching, "caching-yes"),
        (is(Mode::OptOut), "optout"),
        (is(Mode::OptOut) && caching, "caching-no"),
        (client.is(ClientState::NOLOOP), "noloop"),
        (client.is(ClientState::BROKEN_REDIRECT), "broken_redirect"),
    ];
    let out = &mut *cx.out;
    out.map(3);
    out.bulk_str("flags");
    out.set(flags.iter().filter(|(holds, _)| *holds).count());
    flags.iter().filter(|(holds, _)| *holds).for_each(|(_, flag)| out.bulk_str(flag));
    out.bulk_str("redirect");
    out.int(redirect);
    out.bulk_str("prefixes");
    let prefixes = tracked.into_iter().flat_map(Tracked::prefixes);
    out.array(prefixes.clone().count());
    prefixes.for_each(|prefix| out.bulk(prefix));
    Ok(())
}

pub(super) const CACHING: Spec = Spec {
    name: "caching",
    group: Group::Connection,
    since: "6.0.0",
    summary: "Has the reads of the next command tracked, or not.",
    arity: 3,
    flags: ANY_TIME,
    run: Handler::Session(caching),
    ..Spec::NEW
};

pub(super) const GETREDIR: Spec = Spec {
    name: "getredir",
    group: Group::Connection,
    since: "6.0.0",
    summary: "Answers the connection that invalidation messages go to.",
    arity: 2,
    flags: ANY_TIME,
    run: Handler::Session(getredir),
    ..Spec::NEW
};

pub(super) const TRACKING: Spec = Spec {
    name: "tracking",
    group: Group::Connection,
    since: "6.0.0",
    complexity: "O(1). Some options may introduce additional complexity.",
    summary: "Has the client told when keys that it has read change.",
    arity: -3,
    flags: ANY_TIME,
    run: Handler::Session(tracking),
    ..Spec::NEW
};

pub(super) const TRACKINGINFO: Spec = Spec {
    name: "trackinginfo",
    group: Group::Connection,
    since: "6.2.0",
    summary: "Describes the tracking of keys that the connection has read.",
    arity: 2,
    flags: ANY_TIME,
    run: Handler::Session(trackinginfo),
    ..Spec::NEW
};
