//! A promotion that waits until other replicas have told what they have (RFC 18).
//!
//! With `repl-group-size`, a write is acknowledged once a majority of the servers has it. Whoever is
//! promoted hears so many others first that one of them has each such write, and takes from them
//! whatever it lacks. Until then it neither reads nor writes for clients.

use flagstone_storage::encoding::FormerStream;
use flagstone_storage::lease::BootTime;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Display};
use std::time::Duration;

/// Questions that replicas may answer still.
const OPEN_QUESTIONS: usize = 64;

/// Servers about which complaints are remembered.
const MAX_TOLD: usize = 64;

/// Former streams that a message may have.
const MAX_MESSAGE_FORMERS: usize = 16;

/// Word that stands for something that is not there.
const NOTHING: &str = "-";

/// The streams whose changes a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// Id of the stream that it follows, and the number of bytes that are applied.
    pub id: Box<[u8]>,
    pub offset: u64,
    /// The streams that went over into this one, the last one first, as far as they are known.
    pub formers: Vec<FormerStream>,
}

/// Comparison of another server's data with that of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precedence {
    /// It has nothing that this server lacks.
    Known,
    /// It has all that this server has, and the stream from here on.
    More,
    /// It has followed a later primary, and not what this server has had at the end.
    Later,
    /// They have no stream in common.
    Unrelated,
}

impl Lineage {
    /// Returns that of a server without a position in a stream.
    pub fn of_nobody() -> Self {
        Self { id: NOTHING.as_bytes().into(), offset: 0, formers: Vec::new() }
    }

    /// Returns true if it is that of a server without a position.
    pub fn is_of_nobody(&self) -> bool {
        *self.id == *NOTHING.as_bytes()
    }

    /// Returns the stream in which its data is: a former one, as long as it has nothing else.
    fn plain(&self) -> Self {
        let at = self.formers.iter().take_while(|former| self.offset <= former.offset).count();
        match at.checked_sub(1).map(|last| &self.formers[last]) {
            Some(former) => Self {
                id: former.id.clone(),
                offset: self.offset,
                formers: self.formers[at..].to_vec(),
            },
            None => self.clone(),
        }
    }

    /// Returns where a stream ended that went over into this one, if it did.
    fn end_of(&self, id: &[u8]) -> Option<u64> {
        let former = self.formers.iter().find(|former| *former.id == *id);
        former.map(|former| former.offset)
    }

    /// Compares the data of another server.
    pub fn compare(&self, other: &Self) -> Precedence {
        let in_one = |own: &Self, other: &Self| {
            if other.offset > own.offset { Precedence::More } else { Precedence::Known }
        };
        if other.id == self.id {
            // One of them may not know the streams before.
            return in_one(self, other);
        }
        let (own, other) = (self.plain(), other.plain());
        if other.id == own.id {
            return in_one(&own, &other);
        }
        match (other.end_of(&own.id), own.end_of(&other.id)) {
            (Some(end), _) if own.offset <= end => Precedence::More,
            (Some(_), _) => Precedence::Later,
            // Nothing behind the end of the former stream was acknowledged.
            (None, Some(_)) => Precedence::Known,
            (None, None) => Precedence::Unrelated,
        }
    }
}

/// A message of a replica: its data, and the question that it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Testimony {
    pub lineage: Lineage,
    pub question: Option<String>,
}

impl Testimony {
    /// Reads the text of a message.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let (id, offset) = (words.next()?.as_bytes().into(), words.next()?.parse().ok()?);
        let question = words.next().map(|word| (word != NOTHING).then(|| word.to_owned()))?;
        let formers = parse_formers(words)?;
        Some(Self { lineage: Lineage { id, offset, formers }, question })
    }
}

impl Display for Testimony {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lineage: Lineage { id, offset, formers }, question } = self;
        let (id, question) = (String::from_utf8_lossy(id), question.as_deref().unwrap_or(NOTHING));
        write!(f, "{id} {offset} {question}{}", shown_formers(formers))
    }
}

/// Returns streams as text, with a space before each word.
pub fn shown_formers(formers: &[FormerStream]) -> String {
    let shown = |former: &FormerStream| {
        format!(" {} {}", String::from_utf8_lossy(&former.id), former.offset)
    };
    formers.iter().map(shown).collect()
}

/// Reads streams; `None`: that is malformed, or too many.
pub fn parse_formers<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Vec<FormerStream>> {
    let mut formers = Vec::new();
    while let Some(id) = words.next() {
        let offset = words.next()?.parse().ok()?;
        formers.push(FormerStream { id: id.as_bytes().into(), offset });
        if id.is_empty() || formers.len() > MAX_MESSAGE_FORMERS {
            return None;
        }
    }
    Some(formers)
}

/// State of the hearing after a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hearing {
    /// The message answers no question, or an old one: this one is to be answered.
    Asks(String),
    /// It counts; others have to be heard. The next question.
    Waits(String),
    /// Enough were heard.
    Enough,
}

/// A promotion that waits.
#[derive(Debug)]
pub struct Succession {
    /// Number of servers that have to be heard.
    awaited: usize,
    /// Those that were heard, and until when that counts: so long they follow nobody else.
    heard: Vec<(String, BootTime)>,
    /// Distinguishes the questions of this promotion.
    nonce: u64,
    asked: u64,
    questions: VecDeque<(u64, BootTime)>,
    /// Complaint about each server that was logged last.
    told: BTreeMap<String, String>,
}

impl Succession {
    /// Begins a promotion that has to hear so many others.
    pub fn new(awaited: usize) -> Self {
        let (heard, questions, told) = Default::default();
        Self { awaited, heard, nonce: rand::random(), asked: 0, questions, told }
    }

    /// Returns the next question.
    fn ask(&mut self) -> String {
        self.asked += 1;
        if self.questions.len() == OPEN_QUESTIONS {
            self.questions.pop_front();
        }
        self.questions.push_back((self.asked, BootTime::now()));
        format!("{:016x}.{}", self.nonce, self.asked)
    }

    /// Returns the time of a question.
    fn time_of(&self, question: &str) -> Option<BootTime> {
        let (nonce, number) = question.split_once('.')?;
        let number: u64 = number.parse().ok()?;
        let is_own = u64::from_str_radix(nonce, 16).ok() == Some(self.nonce);
        let found = self.questions.iter().find(|(asked, _)| is_own && *asked == number);
        found.map(|(_, at)| *at)
    }

    /// Hears a server that has nothing this one lacks. `question`: the one that it answers, and
    /// `valid`: how long after that it follows nobody else.
    pub fn hear(&mut self, server: &str, question: Option<&str>, valid: Duration) -> Hearing {
        let until = question.and_then(|it| self.time_of(it)).map(|at| at.later(valid));
        let Some(until) = until.filter(|until| !until.left().is_zero()) else {
            return Hearing::Asks(self.ask());
        };
        self.heard.retain(|(other, until)| other != server && !until.left().is_zero());
        self.heard.push((server.to_owned(), until));
        match self.is_complete() {
            true => Hearing::Enough,
            false => Hearing::Waits(self.ask()),
        }
    }

    /// Returns the next question: what the server has said before does not count.
    pub fn ask_again(&mut self, server: &str) -> String {
        self.heard.retain(|(other, _)| other != server);
        self.ask()
    }

    /// Returns the numbers of servers that were heard, and that have to be.
    pub fn counts(&self) -> (usize, usize) {
        let is_valid = |(_, until): &&(String, BootTime)| !until.left().is_zero();
        (self.heard.iter().filter(is_valid).count(), self.awaited)
    }

    fn is_complete(&self) -> bool {
        let (heard, awaited) = self.counts();
        heard >= awaited
    }

    /// Changes the number of servers that have to be heard; returns true if it is reached.
    pub fn set_awaited(&mut self, awaited: usize) -> bool {
        self.awaited = awaited;
        self.is_complete()
    }

    /// Returns true if a complaint about a server is another one than the last.
    pub fn is_new(&mut self, server: &str, complaint: &str) -> bool {
        if self.told.len() == MAX_TOLD {
            self.told.clear();
        }
        let last = self.told.insert(server.to_owned(), complaint.to_owned());
        last.as_deref() != Some(complaint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: Duration = Duration::from_secs(3600);

    fn lineage<'a>(
        id: &str,
        offset: u64,
        formers: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> Lineage {
        let former = |(id, offset): (&str, u64)| FormerStream { id: id.as_bytes().into(), offset };
        let formers = formers.into_iter().map(former).collect();
        Lineage { id: id.as_bytes().into(), offset, formers }
    }

    #[test]
    fn data_is_compared_by_the_streams_that_led_to_it() {
        use Precedence::{Known, Later, More, Unrelated};
        let own = lineage("x", 100, Some(("w", 50)));
        for (other, expected) in [
            (lineage("x", 100, None), Known),
            (lineage("x", 99, None), Known),
            (lineage("x", 101, None), More),
            // It went on with a later primary, which had all of this.
            (lineage("y", 120, Some(("x", 100))), More),
            (lineage("y", 110, Some(("x", 105))), More),
            // It was to go on with one, but has not got that far.
            (lineage("y", 100, Some(("x", 100))), Known),
            (lineage("y", 101, Some(("x", 105))), More),
            (lineage("y", 120, Some(("x", 99))), Later),
            // It has followed the primary before, and perhaps for longer.
            (lineage("w", 50, None), Known),
            (lineage("w", 70, None), Known),
            (lineage("y", 120, None), Unrelated),
            (lineage("y", 10, Some(("v", 5))), Unrelated),
        ] {
            assert_eq!(own.compare(&other), expected, "{other:?}");
        }
        let own = lineage("z", 200, [("y", 150), ("x", 100)]);
        for (other, expected) in [
            (lineage("x", 500, None), Known),
            (lineage("a", 300, [("z", 250), ("y", 150), ("x", 100)]), More),
            (lineage("a", 300, [("z", 150), ("y", 150), ("x", 100)]), Later),
            // They have gone on from one stream on different ways.
            (lineage("b", 300, [("y", 150), ("x", 100)]), Unrelated),
        ] {
            assert_eq!(own.compare(&other), expected, "{other:?}");
        }
        assert_eq!(own.compare(&lineage("z", 150, None)), Known, "it does not know the others");
        // It was to go on with two others, and has the first one's data only.
        let behind = lineage("z", 90, [("y", 150), ("x", 100)]);
        assert_eq!(behind.compare(&lineage("x", 95, None)), More);
        let own = lineage("x", 40, Some(("w", 50)));
        for (other, expected) in [
            (lineage("w", 41, None), More),
            (lineage("w", 40, None), Known),
            (lineage("x", 60, Some(("w", 50))), More),
        ] {
            assert_eq!(own.compare(&other), expected, "{other:?}");
        }
    }

    #[test]
    fn a_message_is_read_as_it_is_written() {
        for testimony in [
            Testimony { lineage: lineage("x", 1, None), question: None },
            Testimony {
                lineage: lineage("x", 9, [("w", 5), ("v", 3)]),
                question: Some("1.2".into()),
            },
        ] {
            assert_eq!(Testimony::parse(testimony.to_string().as_bytes()), Some(testimony));
        }
        for text in ["", "x", "x 1", "x y -", "x 1 - w", "x 1 - w z", "x 1 - w 1 v", "x 1 -  1"] {
            assert_eq!(Testimony::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn enough_different_servers_answer_questions_of_this_promotion() {
        let mut succession = Succession::new(2);
        let Hearing::Asks(first) = succession.hear("a", None, VALID) else {
            panic!("nobody has asked")
        };
        let mut another = Succession::new(1);
        assert!(matches!(another.hear("a", Some(&first), VALID), Hearing::Asks(_)));
        for question in ["", ".", "0.1", "x.y", "0000000000000000.1"] {
            assert!(
                matches!(succession.hear("a", Some(question), VALID), Hearing::Asks(_)),
                "{question}"
            );
        }
        let Hearing::Waits(second) = succession.hear("a", Some(&first), VALID) else {
            panic!("it counts")
        };
        assert_eq!(succession.counts(), (1, 2));
        let Hearing::Waits(third) = succession.hear("a", Some(&second), VALID) else {
            panic!("the same")
        };
        assert_eq!(succession.counts(), (1, 2));
        // One that has more after all.
        let third = (third, succession.ask_again("a")).1;
        assert_eq!(succession.counts(), (0, 2));
        assert!(matches!(succession.hear("b", Some(&third), VALID), Hearing::Waits(_)));
        assert_eq!(succession.hear("a", Some(&third), VALID), Hearing::Enough);
    }

    #[test]
    fn an_answer_counts_as_long_as_its_server_follows_nobody_else() {
        let mut succession = Succession::new(2);
        let question = succession.ask();
        assert!(matches!(succession.hear("a", Some(&question), VALID), Hearing::Waits(_)));
        for (_, until) in &mut succession.heard {
            *until = BootTime::now();
        }
        assert_eq!(succession.counts(), (0, 2));
        assert!(matches!(succession.hear("b", Some(&question), VALID), Hearing::Waits(_)));
        succession.questions.clear();
        assert!(
            matches!(succession.hear("a", Some(&question), VALID), Hearing::Asks(_)),
            "it is too old"
        );
        assert!(!succession.set_awaited(2) && succession.set_awaited(1));
    }
}
