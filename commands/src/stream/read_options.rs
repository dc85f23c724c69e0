//! The options that XREAD and XREADGROUP share.

use crate::timeout::milliseconds_arg;
use crate::{Stop, arg, error, int_arg, is_word};
use flagstone_wire::resp::Args;

/// Returns the words that begin an option, with their positions, up to STREAMS.
fn option_words<'a>(args: Args<'a>) -> impl Iterator<Item = (usize, &'a [u8])> {
    let mut next = 1;
    std::iter::from_fn(move || {
        let (at, word) = (next, args.get(next)?);
        next += match word {
            _ if is_word(word, "streams") => args.len(),
            _ if is_word(word, "group") => 3,
            _ if is_word(word, "block") || is_word(word, "count") => 2,
            _ => 1,
        };
        Some((at, word))
    })
}

/// The options of XREAD and XREADGROUP.
#[derive(Debug)]
pub struct ReadOptions<'a> {
    /// BLOCK: end of the wait, ms since the Unix epoch; 0: never.
    pub until_ms: Option<u64>,
    /// Maximum number of entries of each stream.
    pub count: u64,
    /// XREADGROUP: true with NOACK.
    pub no_ack: bool,
    /// XREADGROUP: group and consumer.
    pub group: Option<(&'a [u8], &'a [u8])>,
    args: Args<'a>,
    first: usize,
    keys: usize,
}

impl<'a> ReadOptions<'a> {
    /// Parses the options of XREAD, or of XREADGROUP.
    pub fn parse(args: Args<'a>, of_group: bool, now_ms: u64) -> Result<Self, Stop> {
        let mut options = Self {
            until_ms: None,
            count: u64::MAX,
            no_ack: false,
            group: None,
            args,
            first: 0,
            keys: 0,
        };
        let mut at = 1;
        while let Some(option) = args.get(at) {
            let more = args.len() - at - 1;
            if is_word(option, "block") && more > 0 {
                options.until_ms = Some(milliseconds_arg(arg(args, at + 1)?, now_ms)?);
                at += 1;
            } else if is_word(option, "count") && more > 0 {
                let count = u64::try_from(int_arg(args, at + 1)?).unwrap_or(0);
                options.count = if count == 0 { u64::MAX } else { count };
                at += 1;
            } else if is_word(option, "streams") && more > 0 {
                options.first = at + 1;
                if !more.is_multiple_of(2) {
                    return Err(unbalanced(of_group).into());
                }
                options.keys = more / 2;
                break;
            } else if is_word(option, "group") && more >= 2 {
                if !of_group {
                    return Err(only_of_groups("GROUP").into());
                }
                options.group = Some((arg(args, at + 1)?, arg(args, at + 2)?));
                at += 2;
            } else if is_word(option, "noack") {
                if !of_group {
                    return Err(only_of_groups("NOACK").into());
                }
                options.no_ack = true;
            } else {
                return Err(error::SYNTAX.into());
            }
            at += 1;
        }
        if options.keys == 0 {
            return Err(error::SYNTAX.into());
        }
        if of_group && options.group.is_none() {
            return Err("ERR Missing GROUP option for XREADGROUP".into());
        }
        Ok(options)
    }

    /// Returns true if the arguments have BLOCK.
    pub fn has_block(args: Args<'_>) -> bool {
        option_words(args).any(|(_, word)| is_word(word, "block"))
    }

    /// Appends the positions of the keys: behind the option STREAMS, which is not the first such word
    /// if a group or a consumer has that name.
    pub fn add_keys(args: Args<'_>, out: &mut Vec<usize>) {
        let found = option_words(args).find(|(_, word)| is_word(word, "streams"));
        if let Some(first) = found.map(|(at, _)| at + 1) {
            out.extend(first..first + (args.len() - first) / 2);
        }
    }

    /// Returns the position of the id of the `n`-th key.
    pub fn id_at(&self, n: usize) -> usize {
        self.first + self.keys + n
    }

    /// Returns the keys, each with the text of its id.
    pub fn streams(&self) -> impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let (args, first, keys) = (self.args, self.first, self.keys);
        let text = move |at| args.get(at).unwrap_or_default();
        (first..first + keys).map(move |at| (text(at), text(at + keys)))
    }
}

fn unbalanced(of_group: bool) -> String {
    let (name, id) = if of_group { ("xreadgroup", '>') } else { ("xread", '$') };
    format!(
        "ERR Unbalanced '{name}' list of streams: for each stream key an ID or '{id}' must be \
         specified."
    )
}

fn only_of_groups(option: &str) -> String {
    format!("ERR The {option} option is only supported by XREADGROUP. You called XREAD instead.")
}
