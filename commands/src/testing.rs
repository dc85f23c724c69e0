//! Store and command runners for the tests of commands on keys.

use crate::DataSettings;
use crate::registry::Registry;
use crate::{Ctx, FAMILIES, Run, Stop};
use flagstone_storage::Store;
use flagstone_storage::slot::Layout;
use flagstone_storage::store::Versions;
use flagstone_wire::resp::{OwnedArgs, Proto, Reply};
use std::sync::{Arc, LazyLock};

/// Default time of a command, in ms since the Unix epoch.
pub(crate) const NOW_MS: u64 = 1_000_000;

/// The commands of this crate.
pub(crate) static COMMANDS: LazyLock<Registry> =
    LazyLock::new(|| Registry::new(FAMILIES.iter().copied().flatten()));

/// Returns a store of one database; with `partial`, keys may be on disk.
pub(crate) fn store(partial: bool) -> Store {
    let layout = Arc::new(Layout::new(2, 1));
    Store::new(layout, Arc::new(Versions::new(1)), &[1], partial)
}

/// Runs a command once at a given time; returns its reply, or why it stopped.
pub(crate) fn try_run(
    store: &mut Store,
    settings: &DataSettings,
    proto: Proto,
    now_ms: u64,
    words: &[&str],
) -> Result<String, Stop> {
    let owned: OwnedArgs = words.iter().collect();
    let args = owned.args();
    let command = COMMANDS.resolve(args).unwrap();
    let Run::Keys(handler) = command.spec.run else { panic!("not on keys") };
    let mut out = Reply::new(proto);
    store.begin(now_ms, true);
    handler(
        &mut Ctx {
            store,
            out: &mut out,
            db: 0,
            settings,
            again: false,
            in_script: false,
            reads_all: true,
        },
        args,
    )?;
    Ok(String::from_utf8(out.into_bytes()).unwrap())
}

/// Runs a command of words between blanks once; returns its reply, or why it stopped.
pub(crate) fn try_line(
    store: &mut Store,
    settings: &DataSettings,
    proto: Proto,
    command: &str,
) -> Result<String, Stop> {
    let words: Vec<&str> = command.split(' ').collect();
    try_run(store, settings, proto, NOW_MS, &words)
}

/// Runs a command that misses nothing; returns its reply on one line, an error as its text.
pub(crate) fn run_line(
    store: &mut Store,
    settings: &DataSettings,
    proto: Proto,
    command: &str,
) -> String {
    match try_line(store, settings, proto, command) {
        Ok(reply) => reply.replace("\r\n", " ").trim_end().to_owned(),
        Err(Stop::Error(text)) => text.to_string(),
        Err(other) => panic!("{command}: {other:?}"),
    }
}
