//! `redis.call`: a script calls a command.

use super::run::{Run, current};
use crate::acl::DenialContext;
use crate::cluster::SlotOwner;
use crate::command::{Command, registry};
use crate::node::limits;
use crate::unit::UnitStop;
use flagstone_commands::{CommandFlags, Ctx, Stop, flag};
use flagstone_lua::{CallArg, CallArgs, Called, charge_time};
use flagstone_wire::num::format_f64;
use flagstone_wire::resp::Args;

/// Limit of numbers that are written as integers if they are whole.
const EXACT: f64 = (1_u64 << 52) as f64;

/// Error of words that take too much memory.
pub(super) const TOO_LONG: &str = "ERR the arguments take more memory than a script may have";

const NO_SCRIPT: &[u8] = b"ERR redis.call/pcall can only be called inside a script invocation";

/// Calls a command for the script that runs on this thread.
pub(super) fn call(args: &CallArgs<'_>) -> Called {
    current(|run| run.call(args)).unwrap_or(Called::Misused(NO_SCRIPT))
}

impl Run<'_, '_> {
    fn call(&mut self, args: &CallArgs<'_>) -> Called {
        // Another coroutine has been stopped, and the script has caught that error.
        if self.stop.is_some() {
            return Called::Ended;
        }
        if let Err(text) = self.take_args(args) {
            return Called::Misused(text.as_bytes());
        }
        let args = std::mem::take(&mut self.args);
        let called = match self.admit(args.args()) {
            Ok(command) => self.execute(command, args.args()),
            Err(text) => self.fail(&text),
        };
        self.args = args;
        called
    }

    /// Ends the call with an error.
    fn fail(&mut self, text: &[u8]) -> Called {
        self.failure.clear();
        self.failure.extend_from_slice(text);
        Called::Error(&*self.failure)
    }

    /// Copies the arguments as bytes.
    fn take_args(&mut self, args: &CallArgs<'_>) -> Result<(), &'static str> {
        let most = self.unit.node.code.scripts.max_words_bytes();
        self.args.clear();
        for arg in args.iter() {
            match arg {
                CallArg::Text(text) if text.len() > most.saturating_sub(self.args.memory()) => {
                    return Err(TOO_LONG);
                }
                CallArg::Text(text) => self.args.push(text),
                CallArg::Number(n) if n.abs() < EXACT && n == (n as i64) as f64 => {
                    self.args.push(itoa::Buffer::new().format(n as i64).as_bytes());
                }
                CallArg::Number(n) => self.args.push(format_f64(n).as_bytes()),
                CallArg::Other => return Err("ERR Command arguments must be strings or integers"),
            }
            // The same string may occur many times.
            if self.args.memory() > most {
                return Err(TOO_LONG);
            }
        }
        if self.args.is_empty() {
            return Err("ERR Please specify at least one argument for this redis.call() call");
        }
        Ok(())
    }

    /// Returns the command if the script may call it, else the error text.
    fn admit(&self, args: Args<'_>) -> Result<&'static Command, Vec<u8>> {
        let Some(command) = registry::resolve(args) else {
            let text = "ERR Unknown command called from script";
            self.unit.effects().refused(None, text);
            return Err(text.into());
        };
        let spec = command.spec;
        let refusal = if !spec.arity_allows(args.len()) || !command.subcommands.is_empty() {
            "ERR Wrong number of args calling command from script"
        } else if spec.flags.intersects(flag!(ALONE | AT_REST))
            || spec.has(flag!(NOSCRIPT))
                && (spec.runs_others() || !self.unit.node.code.scripts.allow_all())
        {
            "ERR This Redis command is not allowed from script"
        } else if let Err((user, denied)) =
            self.unit.admit_part(command, args, DenialContext::Script)
        {
            let text = denied.text(&user, command);
            let text = [b"ERR ACL failure in script: ", &text[..]].concat();
            self.unit.effects().refused(Some(command), "ERR");
            return Err(text);
        } else if self.read_only && (spec.has(flag!(WRITE)) || spec.has(flag!(MAY_REPLICATE))) {
            "ERR Write commands are not allowed from read-only scripts."
        } else if let Some(text) = self.refusal(spec.flags) {
            text
        } else {
            let refused = command.too_long_key(args).or_else(|| self.crosses_slots(command, args));
            return match refused.or_else(|| self.stalled(command, args)) {
                Some(text) => Err(text.into_bytes()),
                None => Ok(command),
            };
        };
        self.unit.effects().refused(Some(command), refusal);
        Err(refusal.into())
    }

    /// Returns the error if, in a cluster, a command's keys are in several slots, or in another one
    /// than those that the script has named before.
    fn crosses_slots(&self, command: &Command, args: Args<'_>) -> Option<String> {
        if !self.unit.settings.cluster_enabled {
            return None;
        }
        let mut slots = command.slots(args);
        let first = slots.next()?;
        if slots.any(|slot| slot != first) {
            return Some(format!(
                "ERR Command '{}' in script attempted to access keys that don't hash to the same \
                slot",
                command.full_name
            ));
        }
        // A client that followed a redirection to the slot's server would be sent back from there.
        if self.declared != Some(first) && self.is_elsewhere(first) {
            let text = "ERR Script attempted to access a non local key in a cluster node script";
            return Some(text.to_owned());
        }
        let before = self.slot.get().unwrap_or(first);
        self.slot.set(Some(before));
        (before != first && !self.may_cross_slots).then(|| {
            "ERR Script attempted to access keys that do not hash to the same slot".to_owned()
        })
    }

    /// Returns true if a slot belongs to another server, or to none.
    fn is_elsewhere(&self, slot: u16) -> bool {
        let owner = self.unit.node.cluster.as_ref().map(|cluster| cluster.owner_of(slot));
        matches!(owner, Some(SlotOwner::There(_) | SlotOwner::Nobody))
    }

    /// Returns the error if a command's keys belong to a shard that cannot store rows.
    fn stalled(&self, command: &Command, args: Args<'_>) -> Option<String> {
        let node = &self.unit.node;
        if self.wrote || !node.health.stalls.any() {
            return None;
        }
        let keys = command.keys(args, self.cx.db).into_iter().map(|(_, key)| key);
        node.health.stalls.refusal(&node.layout, command.spec.flags, keys)
    }

    /// Returns the error if the node refuses commands with these flags. Once a script has written,
    /// it is no longer refused.
    fn refusal(&self, flags: CommandFlags) -> Option<&'static str> {
        let unit = self.unit;
        // Commands of another server's stream are not refused.
        if self.wrote || unit.request.is_of_stream() {
            return None;
        }
        let refused = limits::refusal(&unit.node.health, unit.settings, flags & flag!(WRITE));
        refused.or(self.no_memory.filter(|_| flags.contains(flag!(DENYOOM))))
    }

    fn execute(&mut self, command: &'static Command, args: Args<'_>) -> Called {
        if command.spec.has(flag!(WRITE)) {
            self.writes();
        }
        let unit = self.unit;
        if unit.node.broadcast.monitors.any() && !command.spec.has(flag!(ADMIN | SKIP_MONITOR)) {
            unit.effects().show(self.cx.db, true, args);
        }
        self.reply.clear();
        self.reply.set_proto(self.proto);
        let cx = &mut *self.cx;
        let inner = Ctx::new(&mut *cx.store, &mut self.reply, cx.db, cx.settings);
        let mut inner = Ctx { in_script: true, ..inner };
        let outcome = unit.run_part(&mut inner, command, args);
        cx.db = inner.db;
        charge_time(unit.part_ns.take());
        match outcome {
            Ok(()) => Called::Reply(self.reply.as_bytes()),
            Err(UnitStop::Handler(Stop::Error(text))) => self.fail(&text),
            Err(stop) => {
                self.stop.get_or_insert(stop);
                Called::Ended
            }
        }
    }
}
