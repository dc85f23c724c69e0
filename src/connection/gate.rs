//! Admits or refuses each command before it runs, by checks in a fixed order.

use crate::acl::{DenialContext, Denied, DeniedAccess};
use crate::clients::ClientState;
use crate::cluster::{Cluster, ExpectedPart, SlotOwner};
use crate::command::{Command, aborted_by, registry};
use crate::config::Settings;
use crate::followers::FailoverStep;
use crate::node::{Node, limits};
use crate::routing;
use crate::session::Session;
use crate::transaction::queued;
use crate::worker::Worker;
use flagstone_commands::{CommandFlags, error, flag};
use flagstone_wire::resp::Args;

/// Maximum number of bytes that an unknown command's error shows of its arguments.
const SHOWN: usize = 128;

/// Decision of the gate.
pub(super) enum Admitted {
    Run(&'static Command),
    Refused(Refusal),
    /// Clients are paused, or at least those that may write: this command waits for the end of that.
    Wait {
        may_write: bool,
    },
    /// It writes, and there is no room for its rows yet.
    NoRoom,
    /// A part of this server that it needs is not here yet.
    Soon(ExpectedPart),
    /// The peer is not a Redis client: the connection is closed without a reply.
    Hostile,
}

/// Reason why a command is refused.
pub(super) enum Refusal {
    /// Error text; it may contain any bytes that the client has sent. An EXEC is aborted because of
    /// it.
    Text(Vec<u8>),
    /// In a cluster, its keys are in several slots.
    CrossSlot,
    /// Another server has to be asked.
    Redirect(String),
}

impl Refusal {
    /// Returns the error text; `exec`: the command is EXEC, and its transaction is aborted.
    pub(super) fn text(self, exec: bool) -> Vec<u8> {
        match self {
            Self::Text(text) if exec => aborted_by(&text),
            Self::Text(text) => text,
            Self::CrossSlot => CROSS_SLOT.into(),
            Self::Redirect(text) => text.into(),
        }
    }
}

impl From<Vec<u8>> for Refusal {
    fn from(text: Vec<u8>) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Refusal {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

/// Error of a command whose keys are in several slots.
const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// Returns true if a command names keys of several slots; EXEC, its queued commands.
fn crosses_slots(session: &Session, command: &Command, args: Args<'_>) -> bool {
    if !command.spec.has(flag!(EXEC)) {
        return are_different(command.slots(args));
    }
    session.transaction.as_ref().is_some_and(|transaction| {
        are_different(queued(transaction.args()).flat_map(|q| q.command.slots(q.args)))
    })
}

/// Returns the part of this server, beside the shard of its slot, that a command needs and that is not
/// here yet; of EXEC, that its queued commands need.
fn awaited(
    session: &Session,
    node: &Node,
    cluster: &Cluster,
    command: &Command,
) -> Option<ExpectedPart> {
    let any = |found: &dyn Fn(&Command) -> bool| match session
        .transaction
        .as_ref()
        .filter(|_| command.spec.has(flag!(EXEC)))
    {
        None => found(command),
        Some(transaction) => queued(transaction.args()).any(|it| found(it.command)),
    };
    if cluster.lacks_libraries() && any(&|it| it.spec.has(flag!(LIBRARIES))) {
        return Some(ExpectedPart::Libraries);
    }
    // A server that is cut off hears of maps that it cannot read: it refuses these commands at once.
    if !any(&|it| it.spec.has(flag!(ALL_SHARDS))) || node.health.lost_shards().is_some() {
        return None;
    }
    let and_to_come = any(&|it| it.spec.flags.contains(flag!(ALL_SHARDS | WRITE)));
    let part = ExpectedPart::AllShards { and_to_come };
    cluster.awaits(part).then_some(part)
}

/// Returns the decision on a command of which not all keys are in one slot, in a cluster, or whose
/// slot this server does not serve, or that needs another part of it which is not here yet.
fn elsewhere(
    session: &Session,
    node: &Node,
    command: &Command,
    args: Args<'_>,
) -> Option<Admitted> {
    if crosses_slots(session, command, args) {
        return Some(Admitted::Refused(Refusal::CrossSlot));
    }
    let cluster = node.cluster.as_ref()?;
    let slot = first_slot(session, command, args);
    let is_shown = |slot: u16| {
        let reads = || {
            let flags = flags_of(session, node, command, args);
            let may_write =
                flags.contains(flag!(MAY_REPLICATE)) && !flags.contains(flag!(READONLY));
            !flags.contains(flag!(WRITE)) && !may_write
        };
        session.client.is(ClientState::READONLY) && cluster.mirrors(slot) && reads()
    };
    if let Some(slot) = slot.filter(|slot| !cluster.serves(*slot) && !is_shown(*slot)) {
        let secured = session.client.is(ClientState::SECURED);
        match cluster.owner_of(slot) {
            SlotOwner::Here => {}
            SlotOwner::Soon => return Some(Admitted::Soon(ExpectedPart::Slot(slot))),
            SlotOwner::There(_) | SlotOwner::Nobody => {
                let refusal = Refusal::Redirect(cluster.refusal(slot, secured));
                return Some(Admitted::Refused(refusal));
            }
        }
    }
    awaited(session, node, cluster, command).map(Admitted::Soon)
}

/// Returns the first slot that a command names, or EXEC with what is queued.
fn first_slot(session: &Session, command: &Command, args: Args<'_>) -> Option<u16> {
    match session.transaction.as_ref().filter(|_| command.spec.has(flag!(EXEC))) {
        None => command.slots(args).next(),
        Some(transaction) => {
            queued(transaction.args()).flat_map(|q| q.command.slots(q.args)).next()
        }
    }
}

/// Returns the error of a command on a slot, a shard channel's too, while other servers of the cluster may
/// have this one's shards.
fn lost(session: &Session, node: &Node, command: &Command, args: Args<'_>) -> Option<String> {
    let text = node.health.lost_shards()?;
    first_slot(session, command, args).map(|_| text.to_owned())
}

fn are_different(mut slots: impl Iterator<Item = u16>) -> bool {
    let first = slots.next();
    first.is_some_and(|first| slots.any(|slot| slot != first))
}

/// Returns the command or subcommand that the arguments name, or the error text if there is none.
pub(super) fn resolve(args: Args<'_>) -> Result<&'static Command, Vec<u8>> {
    let name = args.get(0).unwrap_or_default();
    let command = registry::lookup(name).ok_or_else(|| unknown_command(args))?;
    if command.subcommands.is_empty() {
        return Ok(command);
    }
    match args.get(1) {
        None => Ok(command),
        Some(sub) => command.subcommand(sub).ok_or_else(|| unknown_subcommand(args)),
    }
}

/// Checks that the command exists, its arity, the client's authentication, and the server's state.
/// `command`: the command, if it was looked up already.
pub(super) fn admit(
    session: &Session,
    worker: &Worker,
    command: Option<&'static Command>,
    args: Args<'_>,
    settings: &Settings,
) -> Admitted {
    let command = match command.map_or_else(|| resolve(args), Ok) {
        Ok(command) => command,
        Err(text) => return refuse_unknown(session, args, text),
    };
    if !command.spec.arity_allows(args.len()) {
        return Admitted::Refused(error::arity(command.full_name).into());
    }
    if command.spec.has(flag!(PROTECTED))
        && let Some(text) = protected(session, command, settings)
    {
        return Admitted::Refused(text.into());
    }
    let node = &worker.node;
    if !session.authenticated
        && node.access.accounts.needs_password()
        && !command.spec.has(flag!(NO_AUTH))
    {
        return Admitted::Refused("NOAUTH Authentication required.".into());
    }
    if session.transaction.is_some() && command.spec.flags.intersects(flag!(NO_MULTI | ALONE)) {
        return Admitted::Refused("ERR Command not allowed inside a transaction".into());
    }
    if !session.account.is_free()
        && let Some(text) = denied(session, node, command, args, settings)
    {
        return Admitted::Refused(text.into());
    }
    if let Some(text) = command.too_long_key(args) {
        return Admitted::Refused(text.into());
    }
    if settings.cluster_enabled
        && let Some(elsewhere) = elsewhere(session, node, command, args)
    {
        return elsewhere;
    }
    let flags = || flags_of(session, node, command, args);
    if session.client.is(ClientState::CAPA_REDIRECT)
        && let Some(redirected) = redirected(session, node, settings, flags())
    {
        return redirected;
    }
    if limits::any(&node.health, settings) {
        let refusal = limits::refusal(&node.health, settings, flags()).map(str::to_owned);
        let lost = || lost(session, node, command, args);
        if let Some(text) = refusal.or_else(lost).or_else(|| stalled(session, node, command, args))
        {
            return Admitted::Refused(text.into());
        }
        if node.health.lacks_room() && adds_rows(command, flags()) {
            return Admitted::NoRoom;
        }
    }
    if session.is_subscriber() && !command.spec.has(flag!(SUBSCRIBER)) {
        return Admitted::Refused(only_of_subscribers(command).into());
    }
    if let Some(kind) = node.code.scripts.running.busy()
        && !command.spec.flags.intersects(flag!(ALLOW_BUSY | ENDS_STREAM))
    {
        return Admitted::Refused(kind.busy_text().into());
    }
    if let Some(pause) = node.pauses.now()
        && !command.spec.has(flag!(PAUSELESS))
        && (!pause.writes_only || may_be_paused(flags()))
    {
        return Admitted::Wait { may_write: may_be_paused(flags()) };
    }
    Admitted::Run(command)
}

/// Returns the error of a command that a subscriber may not run.
fn only_of_subscribers(command: &Command) -> String {
    format!(
        "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
        are allowed in this context",
        command.full_name
    )
}

/// Refuses what is no command.
fn refuse_unknown(session: &Session, args: Args<'_>, text: Vec<u8>) -> Admitted {
    let name = args.get(0).unwrap_or_default();
    if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
        tracing::warn!(
            client = session.client.id,
            "possible attack: an HTTP request on the RESP port; the connection is closed"
        );
        return Admitted::Hostile;
    }
    Admitted::Refused(text.into())
}

/// Returns the decision on a command of a client that can be redirected, if this replica sends it to its
/// primary. While the roles are exchanged, the client waits.
fn redirected(
    session: &Session,
    node: &Node,
    settings: &Settings,
    flags: CommandFlags,
) -> Option<Admitted> {
    let is_read = flags.contains(flag!(READONLY)) && !session.client.is(ClientState::READONLY);
    if settings.cluster_enabled || !(is_read || flags.contains(flag!(WRITE))) {
        return None;
    }
    let primary = node.health.replica.link().primary.clone()?;
    if node.followers.failover.step() == FailoverStep::InProgress {
        // Until then, writes are held.
        return Some(Admitted::Wait { may_write: true });
    }
    let text = format!("REDIRECT {}:{}", primary.host, primary.port);
    Some(Admitted::Refused(Refusal::Redirect(text)))
}

/// Returns true if a session's user may run a command; logs nothing.
pub(super) fn is_allowed(session: &Session, command: &Command, args: Args<'_>) -> bool {
    session.account.is_free() || session.account.user().check(command, args).is_ok()
}

/// Returns the error if a session's user may not run a command, and logs that.
fn denied(
    session: &Session,
    node: &Node,
    command: &Command,
    args: Args<'_>,
    settings: &Settings,
) -> Option<Vec<u8>> {
    let context = match session.transaction {
        Some(_) => DenialContext::Multi,
        None => DenialContext::TopLevel,
    };
    let denied = check(session, node, (command, args), context, settings).err()?;
    Some([b"NOPERM ", &denied.text(&session.account.name, command)[..]].concat())
}

/// Checks a queued command that the connection runs behind EXEC: the user's rights may have changed
/// since it was queued.
///
/// # Errors
/// The error text.
pub(super) fn admit_queued(
    session: &Session,
    node: &Node,
    command: &Command,
    args: Args<'_>,
    settings: &Settings,
) -> Result<(), String> {
    if session.account.is_free() {
        return Ok(());
    }
    check(session, node, (command, args), DenialContext::Multi, settings)
        .map_err(Denied::text_at_exec)
}

/// Checks if a session's user may run a command; a denial is logged.
fn check(
    session: &Session,
    node: &Node,
    (command, args): (&Command, Args<'_>),
    context: DenialContext,
    settings: &Settings,
) -> Result<(), Denied> {
    let checked = session.account.user().check(command, args);
    if let Err(denied) = checked {
        let access = DeniedAccess::of(denied, (command, args), context, &session.account.name);
        session.client.asks_for(command.id);
        node.log_denial(access, 1, Some(&session.client), settings);
    }
    checked
}

/// Returns the error if a command names keys of a shard that cannot store rows.
fn stalled(session: &Session, node: &Node, command: &Command, args: Args<'_>) -> Option<String> {
    if !node.health.stalls.any() {
        return None;
    }
    let flags = flags_of(session, node, command, args);
    let queued = session.transaction.as_ref().filter(|_| command.spec.has(flag!(EXEC)));
    let args = queued.map_or(args, |transaction| transaction.args());
    let keys = command.keys(args, session.db);
    node.health.stalls.refusal(&node.layout, flags, keys.into_iter().map(|(_, key)| key))
}

/// Returns the error of a DEBUG command that the configuration forbids this client.
fn protected(session: &Session, command: &Command, settings: &Settings) -> Option<String> {
    let name = command.full_name.split('|').next().unwrap_or_default();
    (!settings.enable_debug_command.allows(session.client.is_local())).then(|| {
        format!(
            "ERR {} command not allowed. If the enable-{name}-command option is set to \"local\", \
            you can run it from a local connection, otherwise you need to set this option in the \
            configuration file, and then restart the server.",
            name.to_uppercase()
        )
    })
}

/// Returns a command's flags; EXEC has those of the queued commands, too.
fn flags_of(session: &Session, node: &Node, command: &Command, args: Args<'_>) -> CommandFlags {
    let queued = session.transaction.as_ref().filter(|_| command.spec.has(flag!(EXEC)));
    let own = routing::flags(command, node, args);
    queued.map_or(own, |transaction| transaction.flags(own))
}

/// Returns true if the client is slowed after the command while the engines fall behind. Those that
/// run others may run some that write.
pub(super) fn may_change(command: &Command) -> bool {
    command.spec.has(flag!(WRITE | EXEC)) || command.spec.runs_others()
}

/// Returns true if a command with these flags may write rows, or run others that do.
fn adds_rows(command: &Command, flags: CommandFlags) -> bool {
    flags.contains(flag!(WRITE))
        || flags.contains(flag!(MAY_REPLICATE)) && command.spec.runs_others()
}

/// Returns true if CLIENT PAUSE WRITE delays a command with these flags.
fn may_be_paused(flags: CommandFlags) -> bool {
    flags.intersects(flag!(WRITE | MAY_REPLICATE))
}

fn unknown_command(args: Args<'_>) -> Vec<u8> {
    let mut shown = Vec::new();
    for arg in args.iter().skip(1) {
        if shown.len() >= SHOWN {
            break;
        }
        let room = SHOWN - shown.len();
        shown.extend_from_slice(&[b"'", shown_of(arg, room), b"' "].concat());
    }
    let name = shown_of(args.get(0).unwrap_or_default(), SHOWN);
    [b"ERR unknown command '", name, b"', with args beginning with: ", &shown].concat()
}

/// Returns the error text for a container's unknown subcommand.
fn unknown_subcommand(args: Args<'_>) -> Vec<u8> {
    let name = args.get(0).unwrap_or_default().to_ascii_uppercase();
    let sub = shown_of(args.get(1).unwrap_or_default(), SHOWN);
    [b"ERR unknown subcommand '", sub, b"'. Try ", &name, b" HELP."].concat()
}

/// Returns the part of an argument that an error shows: its bytes up to the first NUL.
fn shown_of(arg: &[u8], room: usize) -> &[u8] {
    let end = arg.iter().position(|byte| *byte == 0).unwrap_or(arg.len());
    &arg[..end.min(room)]
}
