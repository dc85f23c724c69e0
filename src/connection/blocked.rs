//! Runs blocking commands on a connection, whose client may disconnect or be unblocked meanwhile.
//!
//! A disconnect is looked for only while the client counts as blocked: a client that shuts its side
//! down and waits for the replies to other commands gets them.

use super::Connection;
use super::wire::Wire;
use crate::blocking::{DEMOTED, UNBLOCKED};
use crate::clients::{Cancel, Ended};
use crate::command::{Answer, Command};
use crate::routing::run_or_wait;
use flagstone_wire::resp::Args;
use std::io::{ErrorKind, Result};
use std::pin::pin;

impl Connection {
    /// Runs a command that may block, and returns its reply.
    pub(super) async fn run_blocking(
        &mut self,
        command: &'static Command,
        args: Args<'_>,
    ) -> Result<Answer> {
        let request = self.session.request();
        let client = self.session.client.clone();
        let worker = self.worker.clone();
        let running = pin!(run_or_wait(&worker, &client, command, args, request));
        let waiting = match self.answer_meanwhile(running).await? {
            Ok(answer) => return Ok(answer),
            Err(waiting) => waiting,
        };
        let mut wire = Wire {
            worker: &self.worker,
            client: &client,
            stream: &mut self.stream,
            buf: &mut self.buf,
            taken: &mut self.taken,
            unread: &mut self.unread,
        };
        let ended = wire.keep_until(waiting.ended()).await?;
        if ended == Ended::Cancelled(Cancel::Gone) {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        self.session.closing |= ended == Ended::Cancelled(Cancel::Demoted);
        if matches!(ended, Ended::Cancelled(_)) {
            // Counts the call now; when the command is served, it is counted again as it runs.
            self.worker.start_watch();
            let settings = self.worker.settings();
            self.ran(command, args, 0, &settings);
        }
        let error = match ended {
            Ended::Cancelled(Cancel::Unblocked) => Some(UNBLOCKED),
            Ended::Cancelled(Cancel::Demoted) => Some(DEMOTED),
            _ => None,
        };
        if let Some(text) = error {
            // As in the reference, which counts them as refused.
            self.worker.stats().refused(Some(command), text);
        }
        Ok(waiting.answer(ended))
    }
}
