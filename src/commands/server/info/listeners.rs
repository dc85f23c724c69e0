//! The fields about the places that the server listens on.

use crate::config::Settings;

/// Returns the values of `listener0`, `listener1` and so on.
pub(super) fn listeners(settings: &Settings) -> Vec<String> {
    let bound = settings.bind.join(",bind=");
    let mut all = Vec::new();
    if settings.port != 0 {
        all.push(format!("name=tcp,bind={bound},port={}", settings.port));
    }
    if let Some(path) = &settings.unixsocket {
        all.push(format!("name=unix,bind={path}"));
    }
    if settings.tls_port != 0 {
        all.push(format!("name=tls,bind={bound},port={}", settings.tls_port));
    }
    all
}
