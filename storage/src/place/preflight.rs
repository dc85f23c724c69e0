//! Preflight: checks that a store can be used, and explains why not.
//!
//! An operator with a wrong key or bucket gets one line that says so. A store that overwrites
//! existing objects must not be used: two servers could then write to one journal.

use super::Place;
use anyhow::{Context, Result, anyhow, bail};
use futures::future::join_all;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, PutMode};
use std::error::Error as _;
use std::time::Duration;

/// Time limit for the whole check.
const LIMIT: Duration = Duration::from_secs(15);

/// Number of concurrent creators of the same object.
const RIVALS: u8 = 4;

impl Place {
    /// Proves that the store answers, that it accepts the credentials, that its bucket exists, and
    /// that of several creators of an object only one succeeds. Costs about ten requests.
    ///
    /// A store that does not delete is used all the same, with a warning: data can be served for long before
    /// too many objects have piled up.
    ///
    /// # Errors
    /// The problem and its remedy, in a line, within seconds.
    pub async fn preflight(&self) -> Result<()> {
        let name = format!("preflight/{:016x}", rand::random::<u64>());
        let (one, many) = (self.path(&format!("{name}-1")), self.path(&format!("{name}-2")));
        let checked = tokio::time::timeout(LIMIT, async {
            self.creates_once(&one).await?;
            self.creates_for_one(&many).await
        });
        let checked = checked.await.unwrap_or_else(|_| {
            Err(anyhow!("it has not answered within {} seconds", LIMIT.as_secs()))
        });
        checked.with_context(|| format!("the store {self} cannot be used"))?;
        let deleted = tokio::time::timeout(LIMIT, self.deletes([&one, &many])).await;
        if let Ok(Err(error)) = deleted {
            tracing::warn!(
                "the store {self} does not delete objects, so they pile up: allow the credentials that, and lift a \
                retention policy of the bucket: {error:#}"
            );
        }
        Ok(())
    }

    /// Deletes the objects, which are small, and never read.
    async fn deletes(&self, paths: [&Path; 2]) -> Result<()> {
        for outcome in join_all(paths.map(|path| self.store.delete(path))).await {
            match outcome {
                // An attempt whose answer was lost has deleted it.
                Ok(()) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(explain(&error)),
            }
        }
        Ok(())
    }

    async fn create(&self, path: &Path, content: u8) -> object_store::Result<()> {
        let payload = vec![content].into();
        self.store.put_opts(path, payload, PutMode::Create.into()).await.map(drop)
    }

    async fn content(&self, path: &Path) -> Result<u8> {
        let read = async { self.store.get(path).await?.bytes().await };
        let bytes = read.await.map_err(|error| explain(&error))?;
        bytes.first().copied().context("an object that was written is empty")
    }

    /// Checks that an existing object is not created again.
    async fn creates_once(&self, path: &Path) -> Result<()> {
        match self.create(path, 1).await {
            Ok(()) => {}
            // The answer to the first attempt was lost.
            Err(Error::AlreadyExists { .. }) if self.content(path).await? == 1 => {}
            Err(error) => return Err(explain(&error)),
        }
        match self.create(path, 2).await {
            Err(Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(explain(&error)),
            Ok(()) => return Err(ignores_conditions()),
        }
        if self.content(path).await? != 1 {
            return Err(ignores_conditions());
        }
        Ok(())
    }

    /// Checks that of several concurrent creators of an object exactly one succeeds.
    async fn creates_for_one(&self, path: &Path) -> Result<()> {
        let rivals = join_all((0..RIVALS).map(|rival| self.create(path, rival))).await;
        let found = self.content(path).await?;
        for (rival, outcome) in (0..RIVALS).zip(rivals) {
            match outcome {
                Ok(()) if rival == found => {}
                Ok(()) => return Err(ignores_conditions()),
                Err(Error::AlreadyExists { .. }) => {}
                Err(error) => return Err(explain(&error)),
            }
        }
        if found >= RIVALS {
            bail!("an object that was written holds something else");
        }
        Ok(())
    }
}

fn ignores_conditions() -> anyhow::Error {
    anyhow!(
        "it overwrites objects although it is asked to create them (If-None-Match is ignored or \
         not atomic), so two servers could write to one journal: use another store"
    )
}

/// Explains a store's error, and its remedy.
fn explain(error: &Error) -> anyhow::Error {
    let cause = cause(error);
    let said = |code: &str| cause.contains(code);
    let advice = match error {
        _ if said("NoSuchBucket") || said("ContainerNotFound") => {
            "the bucket does not exist: create it, or correct the URL"
        }
        _ if said("SignatureDoesNotMatch") => {
            "the secret key is wrong: look at AWS_SECRET_ACCESS_KEY"
        }
        _ if said("InvalidAccessKeyId") => "the access key is unknown: look at AWS_ACCESS_KEY_ID",
        Error::NotFound { .. } => "the bucket does not exist: create it, or correct the URL",
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            "the credentials may not read, write, list and delete here"
        }
        Error::NotImplemented { .. } | Error::NotSupported { .. } => {
            "it cannot create an object only if there is none (If-None-Match): use another store"
        }
        _ if said("Connect") || said("connect") || said("dns error") => {
            "the endpoint cannot be reached: look at the endpoint, its port and the network"
        }
        _ => "it answers with an error",
    };
    anyhow!("{advice} ({cause})")
}

/// Returns the innermost cause in one line; of an answer in XML, its code and message.
pub(crate) fn cause(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    let mut last = String::new();
    while let Some(error) = source {
        last = error.to_string();
        if text.len() < 4096 && !text.contains(&last) {
            text = format!("{text}: {last}");
        }
        source = error.source();
    }
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
    };
    match (element("Code"), element("Message").filter(|message| !message.is_empty())) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code,
        _ if text.contains("onnect") && !last.is_empty() => format!("connecting: {last}"),
        _ => {
            let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            line.chars().take(300).collect()
        }
    }
}
