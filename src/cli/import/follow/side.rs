//! One of the two servers of a move, as a client sees it.

use crate::cli::connection::{Address, Reply, ServerConnection};
use anyhow::{Context, Result, anyhow, bail};
use std::time::Duration;

/// Time for which a server may say nothing: shorter than a hold of its writers.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);

/// Codes of errors about the login.
const REFUSALS: [&str; 4] = ["NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH"];

/// A server, with a connection that is made again when it is used after its loss.
pub(super) struct Side {
    /// Role and address, for messages.
    pub(super) name: String,
    pub(super) address: Address,
    connection: Option<ServerConnection>,
    /// Database that the connection has selected.
    selected: u64,
}

impl Side {
    /// Connects and logs in. `hint`: advice if it refuses the login.
    ///
    /// # Errors
    /// If there is no such server, or it refuses.
    pub(super) fn connect(role: &str, address: Address, hint: &str) -> Result<Self> {
        let name = format!("the {role} {address}");
        let mut side = Side { name, address, connection: None, selected: 0 };
        if let Err(error) = side.connected() {
            let text = format!("{error:#}");
            let is_refusal = REFUSALS.iter().any(|code| text.contains(code));
            let hint = if is_refusal { format!(" ({hint})") } else { String::new() };
            return Err(error.context(format!("{} cannot be used{hint}", side.name)));
        }
        Ok(side)
    }

    fn connected(&mut self) -> Result<&mut ServerConnection> {
        if self.connection.is_none() {
            let connection = self.address.connect_within(SILENCE_LIMIT)?;
            self.selected = 0;
            self.connection = Some(connection);
        }
        self.connection.as_mut().context("the connection is lost")
    }

    /// Names the server in an error.
    fn blamed<T>(&self, result: Result<T>) -> Result<T> {
        result.with_context(|| self.name.clone())
    }

    /// Runs a command; its reply may be an error.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub(super) fn ask(&mut self, command: &[&[u8]]) -> Result<Reply> {
        let asked = self.connected().and_then(|connection| {
            connection.send(command)?;
            connection.flush()?;
            connection.receive()
        });
        self.settled(asked)
    }

    /// Gives a connection up that has failed.
    fn settled<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.connection = None;
        }
        self.blamed(result)
    }

    /// Runs a command.
    ///
    /// # Errors
    /// If the server cannot be reached, or answers with an error.
    pub(super) fn call(&mut self, command: &[&[u8]]) -> Result<Reply> {
        match self.ask(command)? {
            Reply::Error(error) => {
                let mut words = command.iter().take(2).map(|word| String::from_utf8_lossy(word));
                let (first, second) = (words.next().unwrap_or_default(), words.next());
                // Further words may be secrets or keys.
                let second = second.filter(|_| matches!(&*first, "CLIENT" | "CONFIG" | "FUNCTION"));
                let command =
                    second.map_or(first.to_string(), |second| format!("{first} {second}"));
                Err(anyhow!("{} answers {command} with: {error}", self.name))
            }
            reply => Ok(reply),
        }
    }

    /// Returns a section of INFO.
    ///
    /// # Errors
    /// As [`Side::call`].
    pub(super) fn info(&mut self, section: &str) -> Result<InfoText> {
        let reply = self.call(&[b"INFO", section.as_bytes()])?;
        let text = self.blamed(reply.into_bulk())?;
        Ok(InfoText(String::from_utf8_lossy(&text).into_owned()))
    }

    /// Returns the value of a directive; empty if the server does not have it.
    ///
    /// # Errors
    /// As [`Side::call`].
    pub(super) fn directive(&mut self, name: &str) -> Result<String> {
        let reply = self.call(&[b"CONFIG", b"GET", name.as_bytes()])?;
        let mut words = self.blamed(reply.into_array())?.into_iter();
        let value = words.nth(1).map(Reply::into_bulk).transpose();
        Ok(String::from_utf8_lossy(&self.blamed(value)?.unwrap_or_default()).into_owned())
    }

    /// Selects a database.
    ///
    /// # Errors
    /// As [`Side::call`].
    pub(super) fn select(&mut self, database: u64) -> Result<()> {
        if self.selected != database || self.connection.is_none() {
            self.call(&[b"SELECT", database.to_string().as_bytes()])?;
            self.selected = database;
        }
        Ok(())
    }

    /// Sends commands; [`Side::receive`] returns their replies.
    ///
    /// # Errors
    /// If the connection is lost: the next one would have another database.
    pub(super) fn send(&mut self, commands: &[Vec<Vec<u8>>]) -> Result<()> {
        let sent = self.connection.as_mut().map_or_else(
            || Err(anyhow!("the connection is lost")),
            |connection| {
                for command in commands {
                    let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
                    connection.send(&words)?;
                }
                connection.flush()
            },
        );
        self.settled(sent)
    }

    /// Returns the next reply.
    ///
    /// # Errors
    /// If the connection is lost.
    pub(super) fn receive(&mut self) -> Result<Reply> {
        let received = match &mut self.connection {
            Some(connection) => connection.receive(),
            None => Err(anyhow!("the connection is lost")),
        };
        self.settled(received)
    }
}

/// The source and the target of a move.
pub(super) struct Pair {
    pub(super) source: Side,
    pub(super) target: Side,
}

impl Pair {
    /// Asks both servers the same things, in pieces of a few bytes, and passes the replies on in their
    /// order: the number of the question, the source's reply, the target's.
    ///
    /// # Errors
    /// If a connection is lost, or `take` fails.
    pub(super) fn ask_both(
        &mut self,
        questions: &[Vec<Vec<u8>>],
        mut take: impl FnMut(usize, Reply, Reply) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < questions.len() {
            let count = fitting(&questions[at..]);
            let piece = &questions[at..at + count];
            self.source.send(piece)?;
            self.target.send(piece)?;
            for number in at..at + count {
                let reply = self.source.receive()?;
                take(number, reply, self.target.receive()?)?;
            }
            at += count;
        }
        Ok(())
    }

    /// Asks both servers one thing.
    ///
    /// # Errors
    /// If a connection is lost, or one answers with an error.
    pub(super) fn ask_one(&mut self, question: Vec<Vec<u8>>) -> Result<(Reply, Reply)> {
        let mut replies = None;
        self.ask_both(&[question], |_, here, there| {
            replies = Some((here, there));
            Ok(())
        })?;
        replies.context("there is no reply")
    }

    /// Selects a database on both servers.
    ///
    /// # Errors
    /// If a connection is lost, or one answers with an error.
    pub(super) fn select(&mut self, database: u64) -> Result<()> {
        self.source.select(database)?;
        self.target.select(database)
    }
}

/// Bytes of questions that are sent before their replies are read, so that neither side waits for the
/// other one to read.
const QUESTION_BYTES: usize = 64 << 10;

/// Returns how many of the first questions are sent at once: at least one.
pub(super) fn fitting(questions: &[Vec<Vec<u8>>]) -> usize {
    let mut bytes = 0;
    let fits = |question: &&Vec<Vec<u8>>| {
        bytes += question.iter().map(|word| word.len() + 16).sum::<usize>();
        bytes <= QUESTION_BYTES
    };
    questions.iter().take_while(fits).count().max(1).min(questions.len())
}

/// Returns the words of a command.
pub(super) fn words(words: &[&[u8]]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.to_vec()).collect()
}

/// A section of INFO.
pub(super) struct InfoText(String);

impl InfoText {
    /// Returns a field; empty if it is not there.
    pub(super) fn text(&self, name: &str) -> &str {
        let mut lines = self.0.lines();
        let field = |line: &'_ str| line.split_once(':').is_some_and(|(field, _)| field == name);
        let line = lines.find(|line| field(line));
        line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim_end())
    }

    /// Returns a field that is a number; 0 if it is none.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// Returns the databases that have keys (section `keyspace`), and the number of those.
    pub(super) fn databases(&self) -> Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        for line in self.0.lines() {
            let Some((number, counts)) = line.strip_prefix("db").and_then(|l| l.split_once(':'))
            else {
                continue;
            };
            let keys = counts.split(',').find_map(|part| part.strip_prefix("keys="));
            let (Ok(number), Some(Ok(keys))) = (number.parse(), keys.map(str::parse)) else {
                bail!("a malformed reply to INFO: {line}")
            };
            found.push((number, keys));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read() {
        let text = "# Keyspace\r\ndb0:keys=7,expires=0,avg_ttl=0\r\ndb15:keys=1,expires=1\r\n";
        assert_eq!(InfoText(text.into()).databases().unwrap(), [(0, 7), (15, 1)]);
        let facts = InfoText("role:slave\r\nreason:it answers: no\r\noffset:12\r\n".into());
        assert_eq!((facts.text("role"), facts.text("reason")), ("slave", "it answers: no"));
        assert_eq!((facts.number("offset"), facts.number("role"), facts.text("ro")), (12, 0, ""));
    }

    #[test]
    fn questions_go_out_in_pieces() {
        let question = |len: usize| vec![vec![0; len]];
        assert_eq!(fitting(&[]), 0);
        assert_eq!(fitting(&[question(QUESTION_BYTES), question(1)]), 1);
        assert_eq!(fitting(&[question(1), question(QUESTION_BYTES), question(1)]), 1);
        assert_eq!(fitting(&[question(1), question(1)]), 2);
    }
}
