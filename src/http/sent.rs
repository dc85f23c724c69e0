//! Commands of a request, as the server's clients send them, and their form as JSON.
//!
//! The bytes count as the clients' memory as they grow: numbers of one digit take three times as many
//! as in the body.

use super::answer::Denial;
use flagstone_wire::client_memory::Taken;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Maximum number of commands of a request.
const MAX_COMMANDS: usize = 10_000;

/// End of a line of the protocol.
const END: &[u8] = b"\r\n";

/// Commands of a request.
#[derive(Debug, Default)]
pub(super) struct SentCommands {
    bytes: Vec<u8>,
    count: usize,
    /// The memory of `bytes`.
    taken: Taken,
    /// True if there was no memory for more.
    is_refused: bool,
}

/// There is no memory for the commands.
#[derive(Debug)]
struct NoRoom;

impl SentCommands {
    /// Returns one command.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn of<'a>(
        args: impl IntoIterator<Item = &'a [u8], IntoIter: ExactSizeIterator>,
    ) -> Result<Self, Denial> {
        let mut sent = Self::default();
        sent.push(args)?;
        Ok(sent)
    }

    /// Adds a command.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn push<'a>(
        &mut self,
        args: impl IntoIterator<Item = &'a [u8], IntoIter: ExactSizeIterator>,
    ) -> Result<(), Denial> {
        let mut args = args.into_iter();
        let (start, count) = (self.bytes.len(), args.len());
        let pushed = args.try_for_each(|arg| self.put_argument(arg));
        pushed.and_then(|()| self.end_command(start, count)).map_err(|NoRoom| Denial::no_memory())
    }

    /// Adds the command of a body: an array of its name and its arguments.
    ///
    /// # Errors
    /// It is none, or there is no memory for it.
    pub(super) fn push_json(&mut self, body: &[u8]) -> Result<(), Denial> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let parsed = OneCommand(self).deserialize(&mut json).and_then(|()| json.end());
        self.parsed(parsed)
    }

    /// Adds the commands of a body, which is an array of them.
    ///
    /// # Errors
    /// It is none, or there is no memory for them.
    pub(super) fn push_all_json(&mut self, body: &[u8]) -> Result<(), Denial> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let parsed = ManyCommands(self).deserialize(&mut json).and_then(|()| json.end());
        self.parsed(parsed)
    }

    fn parsed(&self, parsed: serde_json::Result<()>) -> Result<(), Denial> {
        match parsed {
            Ok(()) => Ok(()),
            Err(_) if self.is_refused => Err(Denial::no_memory()),
            Err(error) => Err(Denial::bad(format!("ERR failed to parse the commands: {error}"))),
        }
    }

    /// Returns the number of commands.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the bytes to send.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Makes room for so many further bytes.
    fn reserve(&mut self, more: usize) -> Result<(), NoRoom> {
        let len = self.bytes.len() + more;
        if len > self.bytes.capacity() {
            let grown = len.max(2 * self.bytes.capacity());
            if !self.taken.try_set(grown) {
                self.is_refused = true;
                return Err(NoRoom);
            }
            self.bytes.reserve_exact(grown - self.bytes.len());
        }
        Ok(())
    }

    fn put_argument(&mut self, arg: &[u8]) -> Result<(), NoRoom> {
        let len = itoa::Buffer::new().format(arg.len()).len();
        self.reserve(1 + len + arg.len() + 2 * END.len())?;
        self.bytes.push(b'$');
        self.bytes.extend_from_slice(itoa::Buffer::new().format(arg.len()).as_bytes());
        self.bytes.extend_from_slice(END);
        self.bytes.extend_from_slice(arg);
        self.bytes.extend_from_slice(END);
        Ok(())
    }

    /// Puts the head of a command before its arguments, which are the bytes from `start` on.
    fn end_command(&mut self, start: usize, arguments: usize) -> Result<(), NoRoom> {
        let mut head = format!("*{arguments}").into_bytes();
        head.extend_from_slice(END);
        self.reserve(head.len())?;
        drop(self.bytes.splice(start..start, head));
        self.count += 1;
        Ok(())
    }

    /// Adds an argument: a string, or a number, a boolean or null by its own text.
    fn put_value<E: Error>(&mut self, json: &str) -> Result<(), E> {
        let no_room = |NoRoom| E::custom("there is no memory for the commands");
        match json.as_bytes() {
            [b'"', text @ .., b'"'] if !text.contains(&b'\\') => {
                self.put_argument(text).map_err(no_room)
            }
            [b'"', ..] => {
                let mut taken = Taken::default();
                if !taken.try_set(json.len()) {
                    self.is_refused = true;
                    return Err(no_room(NoRoom));
                }
                let text: String = serde_json::from_str(json).map_err(E::custom)?;
                self.put_argument(text.as_bytes()).map_err(no_room)
            }
            [b'[' | b'{', ..] => {
                Err(E::custom("an argument is a string, a number, a boolean or null"))
            }
            text => self.put_argument(text).map_err(no_room),
        }
    }
}

/// Reads a command: the arguments go to the buffer as they come, so that many small ones take
/// little memory.
struct OneCommand<'a>(&'a mut SentCommands);

/// Reads an array of commands.
struct ManyCommands<'a>(&'a mut SentCommands);

impl<'de> DeserializeSeed<'de> for OneCommand<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for OneCommand<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a command: an array of its name and its arguments")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let (start, mut count) = (self.0.bytes.len(), 0_usize);
        while let Some(argument) = seq.next_element::<&RawValue>()? {
            self.0.put_value(argument.get())?;
            count += 1;
        }
        if count == 0 {
            return Err(A::Error::custom("a command is empty"));
        }
        if self.0.count > MAX_COMMANDS {
            return Err(A::Error::custom(format!("there are more than {MAX_COMMANDS} commands")));
        }
        let ended = self.0.end_command(start, count);
        ended.map_err(|NoRoom| A::Error::custom("there is no memory for the commands"))
    }
}

impl<'de> DeserializeSeed<'de> for ManyCommands<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ManyCommands<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of commands")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(OneCommand(self.0))?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(commands: &[&[&str]]) -> String {
        let mut sent = SentCommands::default();
        for command in commands {
            sent.push(command.iter().map(|arg| arg.as_bytes())).expect("there is memory");
        }
        text(&sent)
    }

    fn text(sent: &SentCommands) -> String {
        format!("{} {}", sent.count(), String::from_utf8_lossy(sent.bytes()))
    }

    fn parsed(body: &str) -> Option<String> {
        let mut found = SentCommands::default();
        found.push_all_json(body.as_bytes()).ok().map(|()| text(&found))
    }

    #[test]
    fn bodies_are_arrays_of_scalars() {
        let body = r#" [["SET","a b", 1 ,-2.5,true,null,""], ["GET","\u00e4\n\"", "ä"]] "#;
        let expected =
            sent(&[&["SET", "a b", "1", "-2.5", "true", "null", ""], &["GET", "ä\n\"", "ä"]]);
        assert_eq!(parsed(body), Some(expected));
        assert_eq!(parsed("[]"), Some(sent(&[])));
        for wrong in [
            "",
            "{}",
            "[[]]",
            "[\"GET\"]",
            "[[\"GET\",[1]]]",
            "[[\"GET\",{}]]",
            "[[1]",
            "[[1]]x",
            "[[\"\\ud800\"]]",
            "[[\"\n\"]]",
            "[[01]]",
            "[[1.]]",
            "[[tru]]",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
        let many = format!("[{}]", vec!["[1]"; MAX_COMMANDS + 2].join(","));
        assert_eq!(parsed(&many), None);
    }

    #[test]
    fn numbers_stay_as_they_are_written() {
        let numbers =
            ["123456789012345678901234567890", "1e308", "-0", "0.1000", "18446744073709551616"];
        let body = format!("[[{}]]", numbers.join(","));
        assert_eq!(parsed(&body), Some(sent(&[&numbers])));
    }

    #[test]
    fn commands_take_a_few_times_the_bytes_of_their_body() {
        for argument in ["1", "1e308", "\"\"", "\"\\n\""] {
            let mut sent = SentCommands::default();
            let body = format!("[{}]", vec![argument; 100_000].join(","));
            sent.push_json(body.as_bytes()).expect("there is memory");
            assert!(sent.bytes.capacity() <= 8 * body.len(), "{argument}");
        }
    }
}
