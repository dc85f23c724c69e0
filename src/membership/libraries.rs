//! Follows the libraries of functions that the map names.

use super::{AbortOnDrop, RETRY, Seated};

/// Loads the libraries of each newer map, until the handle is dropped.
pub(super) fn follow(own: &Seated) -> AbortOnDrop {
    let own = own.clone();
    AbortOnDrop(own.node.background.clone().spawn(async move {
        let Some(shared) = own.node.code.shared.clone() else { return };
        let mut is_told = false;
        loop {
            own.cluster.until_libraries_change().await;
            match shared.follow(&own.node.code.functions).await {
                Ok(()) => is_told = false,
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::error!(
                            "the libraries of functions cannot be loaded, and are tried again: {error}"
                        );
                    }
                    tokio::time::sleep(RETRY * own.cluster.map().lease()).await;
                }
            }
        }
    }))
}
