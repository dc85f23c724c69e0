//! Subcommands of FUNCTION that change the libraries.

use super::store::store;
use crate::functions::{Edit, Library, Metadata, Policy, SharedLibraries};
use crate::node::Node;
use crate::routing::{Call, Waiting};
use flagstone_commands::help::syntax;
use flagstone_commands::{ErrorText, arg, is_word};
use flagstone_rdb::restore_functions;
use flagstone_wire::resp::Args;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time for inspecting the libraries of a payload, except the last one.
const RESTORE_LIMIT: Duration = Duration::from_secs(30);

/// A change of the libraries that a client asks for. It may be made several times, each time from
/// other libraries.
pub(super) enum LibraryChange {
    /// FUNCTION LOAD and RESTORE.
    Add {
        /// The name of the library of FUNCTION LOAD.
        loaded: Option<Box<[u8]>>,
        codes: Arc<Vec<Vec<u8>>>,
        policy: Policy,
        /// The libraries of the codes, once these were looked at.
        inspected: Option<Vec<Arc<Library>>>,
    },
    Delete {
        name: Box<[u8]>,
        /// True if it may be gone already.
        or_gone: bool,
    },
    Flush,
}

impl LibraryChange {
    /// Returns true if no library that is there before matters.
    pub(super) fn removes_all(&self) -> bool {
        matches!(self, Self::Flush | Self::Add { policy: Policy::Flush, .. })
    }

    /// Has it succeed if it was made before: commands of a stream may be applied again after a crash.
    pub(super) fn may_repeat(&mut self) {
        match self {
            Self::Add { policy, .. } if *policy == Policy::Append => *policy = Policy::Replace,
            Self::Delete { or_gone, .. } => *or_gone = true,
            Self::Add { .. } | Self::Flush => {}
        }
    }

    /// Makes the change. In a cluster of several servers, clients send the same command to each of them:
    /// there it succeeds if another one has done the same.
    ///
    /// # Errors
    /// If the libraries that are there do not allow it, or the codes cannot be loaded.
    pub(super) async fn make(
        &mut self,
        node: &Node,
        edit: &mut Edit,
        shared: Option<&SharedLibraries>,
    ) -> Result<(), ErrorText> {
        match self {
            Self::Flush => edit.clear(),
            Self::Delete { name, or_gone } => {
                let was_deleted = || shared.is_some_and(|shared| shared.was_deleted(name));
                if !edit.remove(name) && !*or_gone && !was_deleted() {
                    return Err("ERR Library not found".into());
                }
            }
            Self::Add { loaded, codes, policy, inspected } => {
                let there = |code: &[u8]| {
                    shared.and_then(|_| edit.libraries().with_code(code)).map(Arc::clone)
                };
                let known: Vec<_> = codes.iter().map(|code| there(code)).collect();
                let is_known = known.iter().all(Option::is_some);
                if let Some(name) = loaded
                    && *policy == Policy::Append
                    && !is_known
                    && edit.libraries().get(name).is_some()
                {
                    let name = String::from_utf8_lossy(name);
                    return Err(format!("ERR Library '{name}' already exists").into());
                }
                if !is_known && inspected.is_none() {
                    *inspected = Some(inspect(node, edit, codes.clone()).await?);
                }
                let new = inspected.iter().flatten().map(Some).chain(std::iter::repeat(None));
                let is_added = |known: &Option<_>| known.is_none() || *policy != Policy::Append;
                let both = known.into_iter().zip(new).filter(|(known, _)| is_added(known));
                let libraries = both.filter_map(|(known, new)| known.or_else(|| new.cloned()));
                edit.add(&libraries.collect::<Vec<_>>(), *policy)?;
            }
        }
        Ok(())
    }
}

/// Looks at the codes of libraries, each for up to half a second, on a thread of its own.
async fn inspect(
    node: &Node,
    edit: &Edit,
    codes: Arc<Vec<Vec<u8>>>,
) -> Result<Vec<Arc<Library>>, ErrorText> {
    let max_vm_bytes = node.code.scripts.max_vm_bytes;
    edit.has_room(codes.iter().map(Vec::len).sum())?;
    let mut room = edit.max_bytes();
    let inspect = move || {
        let began = Instant::now();
        let library = |code: &Vec<u8>| {
            if began.elapsed() > RESTORE_LIMIT {
                return Err("ERR the libraries of the payload take too long".to_owned());
            }
            let library = Library::inspect(code, max_vm_bytes, room)?;
            room = room.saturating_sub(library.bytes());
            Ok(Arc::new(library))
        };
        codes.iter().map(library).collect::<Result<Vec<_>, String>>()
    };
    let done = node.background.spawn_blocking(inspect).await;
    Ok(done.map_err(|_| "ERR the libraries could not be looked at")??)
}

/// `FUNCTION LOAD [REPLACE] code`
pub(super) fn load<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let last = args.len() - 1;
        let mut options = (2..last).filter_map(|at| args.get(at));
        if let Some(word) = options.find(|word| !is_word(word, "replace")) {
            let word = String::from_utf8_lossy(word);
            return Err(format!("ERR Unknown option given: {word}").into());
        }
        let policy = if last > 2 { Policy::Replace } else { Policy::Append };
        let code = arg(args, last)?.to_vec();
        let Metadata { name, .. } = Metadata::read(&code)?;
        let (codes, loaded) = (Arc::new(vec![code]), Some(name.clone()));
        let change = LibraryChange::Add { loaded, codes, policy, inspected: None };
        store(cx, change, args).await?;
        cx.out.bulk(&name);
        Ok(())
    })
}

/// `FUNCTION DELETE library`
pub(super) fn delete<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        store(cx, LibraryChange::Delete { name: arg(args, 2)?.into(), or_gone: false }, args)
            .await?;
        cx.out.ok();
        Ok(())
    })
}

/// `FUNCTION FLUSH [ASYNC | SYNC]`: both modes are the same.
pub(super) fn flush<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        if args.len() > 3 {
            return Err(syntax("FUNCTION", arg(args, 1)?).into());
        }
        let known = args.get(2).is_none_or(|word| is_word(word, "sync") || is_word(word, "async"));
        if !known {
            return Err("ERR FUNCTION FLUSH only supports SYNC|ASYNC option".into());
        }
        store(cx, LibraryChange::Flush, args).await?;
        cx.out.ok();
        Ok(())
    })
}

/// `FUNCTION RESTORE payload [FLUSH | APPEND | REPLACE]`
pub(super) fn restore<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        if args.len() > 4 {
            return Err(syntax("FUNCTION", arg(args, 1)?).into());
        }
        let policy = match args.get(3) {
            None => Policy::Append,
            Some(word) if is_word(word, "append") => Policy::Append,
            Some(word) if is_word(word, "replace") => Policy::Replace,
            Some(word) if is_word(word, "flush") => Policy::Flush,
            Some(_) => {
                return Err(
                    "ERR Wrong restore policy given, value should be either FLUSH, APPEND \
                            or REPLACE."
                        .into(),
                );
            }
        };
        let newer = cx.worker.settings().data.rdb_newer_versions;
        let codes = restore_functions(arg(args, 2)?, newer)?;
        let (codes, loaded) = (Arc::new(codes), None);
        let change = LibraryChange::Add { loaded, codes, policy, inspected: None };
        store(cx, change, args).await?;
        cx.out.ok();
        Ok(())
    })
}
