//! The options that XREAD and XREADGROUP share.

use crate::commands::{Stop, arg, error, int_arg, is_word};
use crate::num::parse_i64;
use crate::resp::Args;

/// See the module's description.
#[derive(Debug)]
pub struct ReadOptions<'a> {
    /// BLOCK: for how many ms to wait; 0: for any time.
    pub timeout_ms: Option<u64>,
    /// Entries of each stream at most.
    pub count: u64,
    /// XREADGROUP: NOACK.
    pub no_ack: bool,
    /// XREADGROUP: group and consumer.
    pub group: Option<(&'a [u8], &'a [u8])>,
    args: Args<'a>,
    first: usize,
    keys: usize,
}

/// Milliseconds as clients write them.
fn timeout_ms(text: &[u8], now_ms: u64) -> Result<u64, Stop> {
    let ms = parse_i64(text).ok_or("ERR timeout is not an integer or out of range")?;
    let ms = u64::try_from(ms).map_err(|_| "ERR timeout is negative")?;
    if now_ms.checked_add(ms).is_none_or(|end| end > i64::MAX as u64) {
        return Err("ERR timeout is out of range".into());
    }
    Ok(ms)
}

impl<'a> ReadOptions<'a> {
    /// The options of XREAD, or of XREADGROUP.
    pub fn parse(args: Args<'a>, of_group: bool, now_ms: u64) -> Result<Self, Stop> {
        let mut options = Self {
            timeout_ms: None,
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
                options.timeout_ms = Some(timeout_ms(arg(args, at + 1)?, now_ms)?);
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

    /// The keys, and the id of each as it was given.
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
