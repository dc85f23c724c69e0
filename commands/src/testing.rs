//! What the tests of commands on keys share.

use crate::DataSettings;
use crate::registry::Registry;
use crate::{Ctx, FAMILIES, Run, Stop};
use flagstone_storage::Store;
use flagstone_storage::slot::Layout;
use flagstone_storage::store::Versions;
use flagstone_wire::resp::{OwnedArgs, Proto, Reply};
use std::sync::{Arc, LazyLock};

/// The time of a command unless it matters, ms.
pub(crate) const NOW_MS: u64 = 1_000_000;

/// The commands of this crate.
pub(crate) static COMMANDS: LazyLock<Registry> =
    LazyLock::new(|| Registry::new(FAMILIES.iter().copied().flatten()));

/// A store of one database; `partial`: there may be keys on disk.
pub(crate) fn store(partial: bool) -> Store {
    let layout = Arc::new(Layout { shards: 2, seed: 1 });
    Store::new(layout, Arc::new(Versions::new(1)), &[1], partial)
}

/// Runs a command once at a time; its reply, or why it stopped.
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
        &mut Ctx { store, out: &mut out, db: 0, settings, again: false, in_script: false },
        args,
    )?;
    Ok(String::from_utf8(out.into_bytes()).unwrap())
}

/// Runs a command, its words between blanks, once; its reply, or why it stopped.
pub(crate) fn try_line(
    store: &mut Store,
    settings: &DataSettings,
    proto: Proto,
    command: &str,
) -> Result<String, Stop> {
    let words: Vec<&str> = command.split(' ').collect();
    try_run(store, settings, proto, NOW_MS, &words)
}

/// The same for a command that misses nothing; its reply on one line, an error as its text.
pub(crate) fn run_line(
    store: &mut Store,
    settings: &DataSettings,
    proto: Proto,
    command: &str,
) -> String {
    match try_line(store, settings, proto, command) {
        Ok(reply) => reply.replace("\r\n", " ").trim_end().to_owned(),
        Err(Stop::Error(text)) => text.into_owned(),
        Err(other) => panic!("{command}: {other:?}"),
    }
}
