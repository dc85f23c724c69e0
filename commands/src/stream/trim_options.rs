//! The options that XADD and XTRIM share.

use super::parse::{self, NewId};
use super::text_of;
use crate::DataSettings;
use crate::{Stop, error, is_word};
use flagstone_storage::value::StreamId;
use flagstone_storage::value::stream::{Threshold, Trim};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;

/// Default LIMIT of an approximate trim: this many nodes, but at most `LIMIT_MAX` entries; or
/// `LIMIT_ENTRIES` if the settings do not limit the entries of a node.
const LIMIT_NODES: u64 = 100;
const LIMIT_ENTRIES: u64 = 10_000;
const LIMIT_MAX: u64 = 1_000_000;

/// The options of XADD and XTRIM.
#[derive(Debug, Default)]
pub struct TrimOptions {
    pub no_mkstream: bool,
    pub trim: Option<Trim>,
    /// Position of the threshold of the trim.
    pub threshold_at: usize,
    /// XADD: position of the id.
    pub at: usize,
    pub id: Option<NewId>,
}

fn not_negative(text: &[u8], error: &'static str) -> Result<u64, Stop> {
    let number = parse_i64(text).ok_or(error::NOT_INTEGER)?;
    u64::try_from(number).map_err(|_| error.into())
}

impl TrimOptions {
    /// Parses the options from the third argument on; with `add`, up to the id of a new entry.
    /// `obeys`: they come from a primary, which has computed the threshold: the limit does not count.
    pub fn parse(
        args: Args<'_>,
        add: bool,
        obeys: bool,
        settings: &DataSettings,
    ) -> Result<Self, Stop> {
        let mut options = Self::default();
        let (mut limit, mut to) = (None, None);
        let mut at = 2;
        while let Some(option) = args.get(at) {
            let value = args.get(at + 1);
            match value {
                _ if add && option == b"*" => {
                    options.id = Some(NewId::Auto);
                    break;
                }
                Some(value) if is_word(option, "maxlen") || is_word(option, "minid") => {
                    if to.is_some() {
                        return Err(BOTH.into());
                    }
                    let approximate = value == b"~" && args.get(at + 2).is_some();
                    let is_marked = approximate || (value == b"=" && args.get(at + 2).is_some());
                    at += usize::from(is_marked);
                    let value = args.get(at + 1).ok_or(error::SYNTAX)?;
                    to = Some((threshold(option, value)?, approximate));
                    at += 1;
                    options.threshold_at = at;
                }
                Some(value) if is_word(option, "limit") => {
                    limit = Some(not_negative(value, "ERR The LIMIT argument must be >= 0.")?);
                    at += 1;
                }
                _ if add && is_word(option, "nomkstream") => options.no_mkstream = true,
                _ if add => {
                    options.id = Some(parse::new_id(option)?);
                    break;
                }
                _ => return Err(error::SYNTAX.into()),
            }
            at += 1;
        }
        options.at = at;
        limit = limit.filter(|_| !obeys);
        options.trim = trim(to, limit, add, settings)?;
        Ok(options)
    }
}

impl TrimOptions {
    /// Returns the words of a command with what it has really done: the id of a new entry, if it was
    /// not given, and, after an approximate trim, a threshold that leaves the same entries.
    pub fn said(
        &self,
        args: Args<'_>,
        id: Option<StreamId>,
        left: (u64, Option<StreamId>),
    ) -> Vec<Vec<u8>> {
        let mut words: Vec<Vec<u8>> = args.iter().map(<[u8]>::to_vec).collect();
        if let Some(id) = id.filter(|id| self.id != Some(NewId::Given(*id))) {
            words[self.at] = text_of(id);
        }
        if let Some(trim) = self.trim.as_ref().filter(|trim| trim.approximate) {
            words[self.threshold_at - 1] = b"=".to_vec();
            words[self.threshold_at] = match (trim.to, left.1) {
                (Threshold::MinId(_), Some(first)) => text_of(first),
                (Threshold::MinId(_), None) => {
                    // The first entry is not in memory, but as many are left.
                    words[self.threshold_at - 2] = b"MAXLEN".to_vec();
                    left.0.to_string().into_bytes()
                }
                (Threshold::MaxLen(_), _) => left.0.to_string().into_bytes(),
            };
        }
        words
    }
}

const BOTH: &str = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible";

fn threshold(option: &[u8], value: &[u8]) -> Result<Threshold, Stop> {
    if is_word(option, "maxlen") {
        not_negative(value, "ERR The MAXLEN argument must be >= 0.").map(Threshold::MaxLen)
    } else {
        parse::id(value, 0).map(Threshold::MinId)
    }
}

fn trim(
    to: Option<(Threshold, bool)>,
    limit: Option<u64>,
    add: bool,
    settings: &DataSettings,
) -> Result<Option<Trim>, Stop> {
    let Some((to, approximate)) = to else {
        if limit.is_some_and(|limit| limit > 0) {
            let text =
                "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy";
            return Err(text.into());
        }
        if !add {
            return Err("ERR syntax error, XTRIM must be called with a trimming strategy".into());
        }
        if limit.is_some() {
            return Err(NOT_APPROXIMATE.into());
        }
        return Ok(None);
    };
    let limit = match limit {
        Some(_) if !approximate => return Err(NOT_APPROXIMATE.into()),
        Some(limit) => limit,
        None if approximate => match settings.stream_node_max_entries {
            0 => LIMIT_ENTRIES,
            entries => entries.saturating_mul(LIMIT_NODES).min(LIMIT_MAX),
        },
        None => 0,
    };
    Ok(Some(Trim { to, approximate, limit }))
}

const NOT_APPROXIMATE: &str = "ERR syntax error, LIMIT cannot be used without the special ~ option";
