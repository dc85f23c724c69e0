//! Splits the primary's stream into batches of commands.

use super::apply::{StreamCommand, known};
use crate::config::Settings;
use crate::followers::LeaseQuestion;
use crate::transaction::runs_in_unit;
use bytes::{Buf, BytesMut};
use flagstone_storage::encoding::SourcePosition;
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::{Args, Limits, Parsed, Parser};
use std::collections::BTreeSet;

/// Number of commands, and of their bytes, from which on a batch takes no more. A transaction of the
/// primary is never divided.
const BATCH_COMMANDS: usize = 512;
const BATCH_BYTES: usize = 1 << 20;

/// Maximum size of a transaction of the primary in bytes, as it is held in memory, and the part of
/// the memory budget that it may take; a single command may be larger.
const MAX_TRANSACTION_BYTES: usize = 1 << 30;
const TRANSACTION_PART: u64 = 8;

/// Maximum size of a command of the primary in bytes. The primary has admitted it, so no setting of this
/// server refuses it. It is queued as the command of a unit, and a queue holds fewer than 4 GiB.
const MAX_COMMAND: usize = 3 << 30;

/// Maximum number of its arguments, as in the reference.
const MAX_ARGS: usize = i32::MAX as usize;

/// Limits of a stream, by the settings of this server.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamLimits {
    /// Number of databases.
    pub(super) databases: u32,
    /// Maximum size of a transaction in memory.
    pub(super) transaction: usize,
    /// Bytes of the stream that are kept for replicas.
    pub(super) kept: usize,
}

impl StreamLimits {
    pub(super) fn of(settings: &Settings) -> Self {
        let part = settings.memory_budget / TRANSACTION_PART;
        Self {
            databases: settings.databases,
            transaction: usize::try_from(part).unwrap_or(usize::MAX).min(MAX_TRANSACTION_BYTES),
            kept: settings.repl_backlog_size,
        }
    }
}

/// Maximum number of unknown commands whose names are logged.
const MAX_UNKNOWN: usize = 64;

/// Commands that are applied as one, with the position that they reach.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) commands: Vec<StreamCommand>,
    pub(super) reached: SourcePosition,
    /// The bytes of the stream up to there, or the last of them.
    pub(super) bytes: Vec<u8>,
}

/// Commands, and their memory.
#[derive(Debug, Default)]
struct Gathered {
    commands: Vec<StreamCommand>,
    bytes: usize,
}

impl Gathered {
    fn push(&mut self, command: StreamCommand) {
        self.bytes += command.args.memory();
        self.commands.push(command);
    }

    fn is_full(&self) -> bool {
        self.commands.len() >= BATCH_COMMANDS || self.bytes >= BATCH_BYTES
    }
}

/// The stream from a position on.
#[derive(Debug)]
pub(super) struct StreamSplitter {
    parser: Parser,
    limits: Limits,
    /// Number of databases of this server.
    databases: u32,
    /// Maximum size of a transaction in memory.
    max_transaction: usize,
    /// Position behind the last command that was parsed.
    parsed: SourcePosition,
    /// Position behind the last one of `gathered`.
    gathered_to: SourcePosition,
    gathered: Gathered,
    /// Commands since the primary's MULTI.
    transaction: Option<Gathered>,
    /// Bytes of the stream up to the end of the last batch.
    batched: u64,
    /// The last bytes of the stream up to `parsed`, and the number of them that the next batch may have.
    bytes: Vec<u8>,
    kept: usize,
    /// True if the gathered commands are a batch by themselves.
    ends: bool,
    /// True (`Some`) if the primary has asked for the position; within: its question of `repl-ack`.
    asked: Option<Option<LeaseQuestion>>,
    /// True if a transaction exceeds the memory for it.
    is_too_large: bool,
    /// Names of commands that are not known here, and were logged.
    unknown: BTreeSet<String>,
}

impl StreamSplitter {
    pub(super) fn new(position: SourcePosition, limits: StreamLimits) -> Self {
        Self {
            parser: Parser::new(),
            limits: Limits { max_bulk: MAX_COMMAND, max_args: MAX_ARGS, ..Limits::default() },
            databases: limits.databases,
            max_transaction: limits.transaction,
            batched: position.offset,
            bytes: Vec::new(),
            kept: limits.kept,
            gathered_to: position.clone(),
            parsed: position,
            gathered: Gathered::default(),
            transaction: None,
            ends: false,
            asked: None,
            is_too_large: false,
            unknown: BTreeSet::new(),
        }
    }

    /// Takes whole commands from the front of the buffer, until there are enough for a batch.
    ///
    /// # Errors
    /// Returns the reason why the stream cannot be followed any further.
    pub(super) fn take(&mut self, buf: &mut BytesMut) -> Result<(), String> {
        while !self.is_full() {
            let parsed = self.parser.parse(buf, &self.limits).map_err(|error| error.to_string())?;
            let consumed = match parsed {
                Parsed::Incomplete { need } => return check_size(buf.len().saturating_add(need)),
                Parsed::Empty => self.parser.consumed(),
                Parsed::Command => {
                    let parser = std::mem::take(&mut self.parser);
                    let taken = self.command(parser.args(buf), parser.consumed());
                    self.parser = parser;
                    if !taken? {
                        // It begins the next batch; the parser reads it again.
                        self.parser = Parser::new();
                        return Ok(());
                    }
                    self.parser.consumed()
                }
            };
            self.parsed.offset += consumed as u64;
            self.keep(&buf[..consumed]);
            buf.advance(consumed);
            if self.transaction.is_none() {
                (self.gathered_to.offset, self.gathered_to.db) =
                    (self.parsed.offset, self.parsed.db);
            }
        }
        Ok(())
    }

    /// Keeps a copy of bytes that were parsed. Those of an open transaction have no batch yet.
    fn keep(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(&bytes[bytes.len().saturating_sub(self.kept)..]);
        if self.bytes.len() > 2 * self.kept {
            self.bytes.drain(..self.bytes.len() - self.kept);
        }
    }

    fn is_full(&self) -> bool {
        self.ends || (self.transaction.is_none() && self.gathered.is_full())
    }

    /// Takes a command; returns false if it has to begin a batch.
    fn command(&mut self, args: Args<'_>, bytes: usize) -> Result<bool, String> {
        let name = args.get(0).unwrap_or_default().to_ascii_uppercase();
        match name.as_slice() {
            b"PING" => {}
            b"SELECT" => self.select(args)?,
            b"MULTI" => self.transaction = Some(Gathered::default()),
            b"EXEC" => {
                let transaction = self.transaction.take().unwrap_or_default();
                transaction.commands.into_iter().for_each(|one| self.gathered.push(one));
            }
            b"REPLCONF" => {
                if args.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"getack")) {
                    let question = args.get(2).and_then(LeaseQuestion::parse);
                    self.asked = Some(question.or(self.asked.take().flatten()));
                }
            }
            _ => return self.gather(args, bytes),
        }
        Ok(true)
    }

    fn select(&mut self, args: Args<'_>) -> Result<(), String> {
        let number = args.get(1).and_then(parse_i64).and_then(|number| u32::try_from(number).ok());
        let number = number.ok_or("the primary selects a malformed database")?;
        if number >= self.databases {
            return Err(format!(
                "the primary has a database {number}, this server has {}: raise `databases`",
                self.databases
            ));
        }
        self.parsed.db = number;
        Ok(())
    }

    fn gather(&mut self, args: Args<'_>, bytes: usize) -> Result<bool, String> {
        let command = StreamCommand { db: self.parsed.db, args: args.into() };
        if let Some(transaction) = &mut self.transaction {
            transaction.push(command);
            if transaction.bytes <= self.max_transaction || transaction.commands.len() == 1 {
                return Ok(true);
            }
            self.is_too_large = true;
            return Err(format!(
                "a transaction of the primary takes more than {} bytes (a part of memory-budget): \
                the data set is loaded anew",
                self.max_transaction
            ));
        }
        let declared = known(args);
        if declared.is_none() {
            self.tell_unknown(args);
        }
        let is_part = declared.is_none_or(runs_in_unit);
        let is_first = self.gathered.commands.is_empty();
        if !is_first && (!is_part || self.gathered.bytes + bytes > BATCH_BYTES) {
            self.ends = true;
            return Ok(false);
        }
        // A command that is no part of a unit is a batch by itself.
        self.ends = !is_part;
        self.gathered.push(command);
        Ok(true)
    }

    /// Logs a command that this server does not know in this form, or that is about the server
    /// itself; each name once.
    fn tell_unknown(&mut self, args: Args<'_>) {
        let name = String::from_utf8_lossy(args.get(0).unwrap_or_default()).into_owned();
        if self.unknown.len() < MAX_UNKNOWN && self.unknown.insert(name.clone()) {
            tracing::error!(%name, "the primary sends a command that is not followed here: it is left out");
        }
    }

    /// Returns the gathered commands, if the position has advanced.
    pub(super) fn batch(&mut self) -> Option<Batch> {
        self.ends = false;
        let Gathered { commands, .. } = std::mem::take(&mut self.gathered);
        if self.gathered_to.offset == self.batched {
            return None;
        }
        self.batched = self.gathered_to.offset;
        let serial = self.parsed.serial + 1;
        self.parsed.serial = serial;
        self.gathered_to.serial = serial;
        let ahead = (self.parsed.offset - self.gathered_to.offset) as usize;
        let rest = self.bytes.split_off(self.bytes.len().saturating_sub(ahead));
        let bytes = std::mem::replace(&mut self.bytes, rest);
        Some(Batch { commands, reached: self.gathered_to.clone(), bytes })
    }

    /// Returns the offset behind the last command that was parsed.
    pub(super) fn parsed_to(&self) -> u64 {
        self.parsed.offset
    }

    /// Returns true if a transaction exceeds the memory for it: the stream cannot be followed from
    /// this position.
    pub(super) fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// Returns the last question of the primary since the last call, if there was one; within: its
    /// question of `repl-ack`.
    pub(super) fn take_asked(&mut self) -> Option<Option<LeaseQuestion>> {
        self.asked.take()
    }
}

/// Refuses a command of which so many bytes are announced.
fn check_size(bytes: usize) -> Result<(), String> {
    let fits = bytes <= MAX_COMMAND;
    fits.then_some(())
        .ok_or_else(|| format!("a command of the primary exceeds {MAX_COMMAND} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ReplAck;

    const LIMITS: StreamLimits = StreamLimits { databases: 16, transaction: 1 << 16, kept: 64 };

    fn splitter() -> StreamSplitter {
        let id = b"i".repeat(40).into();
        let position = SourcePosition { serial: 4, offset: 100, id, ..Default::default() };
        StreamSplitter::new(position, LIMITS)
    }

    fn shown(batch: &Batch) -> String {
        let words = |command: &StreamCommand| {
            let words = command.args.args();
            let words = words.iter().map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
            format!("{}:{words}", command.db)
        };
        batch.commands.iter().map(words).collect::<Vec<_>>().join(", ")
    }

    fn input(commands: &[&str]) -> BytesMut {
        let mut out = flagstone_wire::resp::Reply::default();
        for command in commands {
            let words: Vec<&str> = command.split(' ').collect();
            out.array(words.len());
            words.iter().for_each(|word| out.bulk(word.as_bytes()));
        }
        BytesMut::from(out.as_bytes())
    }

    #[test]
    fn commands_are_gathered_with_their_database_and_the_position() {
        let (mut splitter, mut buf) =
            (splitter(), input(&["SELECT 3", "SET a 1", "PING", "DEL b"]));
        let len = buf.len() as u64;
        splitter.take(&mut buf).unwrap();
        let batch = splitter.batch().unwrap();
        assert_eq!(shown(&batch), "3:SET a 1, 3:DEL b");
        assert_eq!((batch.reached.serial, batch.reached.offset), (5, 100 + len));
        assert_eq!((batch.reached.db, buf.len()), (3, 0));
    }

    #[test]
    fn a_transaction_is_never_divided() {
        let (mut splitter, all) = (splitter(), input(&["SET a 1", "MULTI", "INCR b", "EXEC"]));
        let first = input(&["SET a 1"]).len();
        for cut in 0..all.len() {
            let mut splitter = StreamSplitter::new(splitter.parsed.clone(), LIMITS);
            let mut buf = BytesMut::from(&all[..cut]);
            splitter.take(&mut buf).unwrap();
            let batch = splitter.batch();
            let found = batch.map(|batch| (batch.commands.len(), batch.reached.offset - 100));
            assert_eq!(found, (cut >= first).then_some((1, first as u64)), "{cut}");
            buf.extend_from_slice(&all[cut..]);
            splitter.take(&mut buf).unwrap();
            let rest = splitter.batch().unwrap();
            assert_eq!(rest.commands.len(), if cut < first { 2 } else { 1 }, "{cut}");
            assert_eq!(rest.reached.offset - 100, all.len() as u64);
        }
        splitter.take(&mut all.clone()).unwrap();
        assert_eq!(shown(&splitter.batch().unwrap()), "0:SET a 1, 0:INCR b");
    }

    #[test]
    fn a_batch_has_its_bytes_up_to_a_size() {
        let mut splitter = splitter();
        let all = input(&["SET a 1", "PING", "MULTI", "INCR b", "INCR c", "EXEC"]);
        let behind = input(&["SET a 1", "PING"]).len();
        let mut buf = BytesMut::from(&all[..all.len() - 3]);
        splitter.take(&mut buf).unwrap();
        let batch = splitter.batch().unwrap();
        assert_eq!((&batch.bytes[..], batch.reached.offset), (&all[..behind], 100 + behind as u64));
        buf.extend_from_slice(&all[all.len() - 3..]);
        splitter.take(&mut buf).unwrap();
        let batch = splitter.batch().unwrap();
        assert!(batch.bytes.len() >= 64 && all.ends_with(&batch.bytes));
    }

    #[test]
    fn a_batch_has_an_end() {
        let (mut splitter, mut buf) = (splitter(), input(&["INCR n"; 1000]));
        let one = input(&["INCR n"]).len() as u64;
        splitter.take(&mut buf).unwrap();
        let batch = splitter.batch().unwrap();
        assert_eq!(batch.commands.len(), BATCH_COMMANDS);
        assert_eq!(batch.reached.offset, 100 + BATCH_COMMANDS as u64 * one);
        splitter.take(&mut buf).unwrap();
        assert_eq!(splitter.batch().unwrap().commands.len(), 1000 - BATCH_COMMANDS);
    }

    #[test]
    fn a_command_that_is_no_part_of_a_unit_is_a_batch_by_itself() {
        let mut splitter = splitter();
        let mut buf = input(&["SET a 1", "FUNCTION FLUSH", "SET b 1"]);
        let mut batches = Vec::new();
        for _ in 0..3 {
            splitter.take(&mut buf).unwrap();
            batches.push(shown(&splitter.batch().unwrap()));
        }
        assert_eq!(batches, ["0:SET a 1", "0:FUNCTION FLUSH", "0:SET b 1"]);
    }

    #[test]
    fn a_transaction_takes_no_more_than_its_part_of_the_budget() {
        let settings = Settings { memory_budget: 1 << 20, ..Settings::default() };
        assert_eq!(StreamLimits::of(&settings).transaction, 1 << 17);
        let settings = Settings { memory_budget: 1 << 50, ..Settings::default() };
        assert_eq!(StreamLimits::of(&settings).transaction, MAX_TRANSACTION_BYTES);
        let long = format!("SET a {}", "v".repeat(60 << 10));
        // One command may take more by itself.
        for commands in [&["MULTI", &long, "EXEC"][..], &["MULTI", &long.repeat(3), "EXEC"]] {
            let mut splitter = splitter();
            splitter.take(&mut input(commands)).unwrap();
            assert_eq!(splitter.batch().unwrap().commands.len(), 1);
        }
        let mut splitter = splitter();
        let error = splitter.take(&mut input(&["MULTI", &long, &long])).unwrap_err();
        assert!(error.contains("65536 bytes (a part of memory-budget)"), "{error}");
        assert!(splitter.is_too_large() && splitter.batch().is_none());
    }

    #[test]
    fn a_command_may_have_more_arguments_and_longer_ones_than_that_of_a_client() {
        let limits = Limits::default();
        let mut splitter = splitter();
        let many = format!("SADD s{}", " m".repeat(limits.max_args));
        splitter.take(&mut input(&[&many])).unwrap();
        let batch = splitter.batch().unwrap();
        assert_eq!(batch.commands[0].args.len(), 2 + limits.max_args);
        // Only bytes that have come take memory, whatever is announced.
        let begin = |bytes: usize| {
            let mut buf = BytesMut::from(&*format!("*2\r\n$3\r\nDEL\r\n${bytes}\r\n"));
            let (len, mut splitter) = (buf.len(), self::splitter());
            splitter.take(&mut buf).map(|()| assert_eq!(buf.len(), len))
        };
        assert_eq!(begin(2 * limits.max_bulk), Ok(()));
        let error = begin(MAX_COMMAND).unwrap_err();
        assert!(error.contains("exceeds 3221225472 bytes"), "{error}");
    }

    #[test]
    fn a_stream_that_cannot_be_followed_is_an_error() {
        for (commands, reason) in
            [(&["SELECT 16"], "raise `databases`"), (&["SELECT x"], "malformed database")]
        {
            let error = splitter().take(&mut input(commands)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let mut buf = BytesMut::from(&b"*1\r\n+x\r\n"[..]);
        assert!(splitter().take(&mut buf).is_err());
        let (mut splitter, mut buf) = (splitter(), input(&["REPLCONF GETACK *"]));
        splitter.take(&mut buf).unwrap();
        assert_eq!((splitter.take_asked(), splitter.take_asked()), (Some(None), None));
        let commands =
            ["REPLCONF GETACK sync-7-1", "REPLCONF GETACK sync-7-2", "REPLCONF GETACK *"];
        splitter.take(&mut input(&commands)).unwrap();
        let asked = splitter.take_asked().flatten().unwrap();
        assert_eq!((asked.text(), asked.level), ("sync-7-2", ReplAck::Sync));
    }
}
