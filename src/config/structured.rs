//! Directives whose value has a grammar of its own.

use std::fmt::Write as _;

use flagstone_wire::num::parse_memory;

use flagstone_storage::notify::NotifyFlags;

/// The grammar of a structured value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Structure {
    /// Pairs of seconds and changes.
    Save,
    /// Groups of class, hard bytes, soft bytes, soft seconds.
    ClientOutputBufferLimit,
    /// Three scores.
    OomScores,
    /// Letters of event classes.
    NotifyKeyspaceEvents,
    /// Up to 16 addresses.
    Bind,
    /// Host and port, or `no one`.
    ReplicaOf,
    /// Numbers from 0 to 100.
    Percentiles,
    /// Addresses and networks, or `no`.
    Networks,
}

/// Maximum number of addresses to listen on.
const BIND_LIMIT: usize = 16;
/// Client classes in the order of CONFIG GET.
pub(super) const CLIENT_CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

impl Structure {
    /// Returns true if the value has several words.
    pub(super) fn is_multi(self) -> bool {
        self != Self::NotifyKeyspaceEvents
    }

    /// Returns the canonical text of `words`; `current` is the present value, for grammars that
    /// change a part.
    pub(super) fn canonical(self, words: &[&str], current: &str) -> Result<String, String> {
        match self {
            Self::Save => save(words),
            Self::ClientOutputBufferLimit => client_output_buffer_limit(words, current),
            Self::OomScores => oom_scores(words),
            Self::NotifyKeyspaceEvents => notify_keyspace_events(words),
            Self::Bind => bind(words),
            Self::ReplicaOf => replica_of(words),
            Self::Percentiles => percentiles(words),
            Self::Networks => super::networks::canonical(words),
        }
    }
}

/// Returns true if there are no words, or a single empty one: an empty value.
fn is_empty(words: &[&str]) -> bool {
    matches!(words, [] | [""])
}

/// Returns true if a word means itself in a configuration file, without quotes.
pub(super) fn is_plain(word: &str) -> bool {
    !word.contains(|c: char| c.is_control() || c.is_whitespace() || "\"'\\".contains(c))
}

fn wrong_number_of_arguments<T>() -> Result<T, String> {
    Err("wrong number of arguments".to_owned())
}

fn save(words: &[&str]) -> Result<String, String> {
    const INVALID: &str = "Invalid save parameters";
    if is_empty(words) {
        return Ok(String::new());
    }
    let (pairs, rest) = words.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(INVALID.to_owned());
    }
    let mut points = Vec::with_capacity(pairs.len());
    for [seconds, changes] in pairs {
        let seconds: i64 = seconds.parse().map_err(|_| INVALID)?;
        let changes: i32 = changes.parse().map_err(|_| INVALID)?;
        if seconds < 1 || changes < 0 {
            return Err(INVALID.to_owned());
        }
        points.push(format!("{seconds} {changes}"));
    }
    Ok(points.join(" "))
}

fn client_output_buffer_limit(words: &[&str], current: &str) -> Result<String, String> {
    const COUNT: &str = "Wrong number of arguments in buffer limit configuration.";
    const CLASS: &str = "Invalid client class specified in buffer limit configuration.";
    const LIMIT: &str =
        "Error in hard, soft or soft_seconds setting in buffer limit configuration.";
    let words = if is_empty(words) { &[] } else { words };
    let (groups, rest) = words.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(COUNT.to_owned());
    }
    let mut limits: Vec<String> = current.split(' ').map(str::to_owned).collect();
    for [class, hard, soft, soft_seconds] in groups {
        let class = if class.eq_ignore_ascii_case("replica") { "slave" } else { class };
        let row = CLIENT_CLASSES.iter().position(|known| known.eq_ignore_ascii_case(class));
        let row = row.ok_or(CLASS)? * 4;
        let hard = parse_memory(hard).ok_or(LIMIT)?;
        let soft = parse_memory(soft).ok_or(LIMIT)?;
        let soft_seconds: u32 = soft_seconds.parse().map_err(|_| LIMIT)?;
        for (offset, number) in [hard, soft, u64::from(soft_seconds)].iter().enumerate() {
            limits[row + 1 + offset] = number.to_string();
        }
    }
    Ok(limits.join(" "))
}

fn oom_scores(words: &[&str]) -> Result<String, String> {
    const RANGE: &str = "Invalid oom-score-adj-values, elements must be between -2000 and 2000.";
    if words.len() != 3 {
        return wrong_number_of_arguments();
    }
    let mut scores = Vec::with_capacity(3);
    for word in words {
        let score: i32 = word.parse().map_err(|_| RANGE)?;
        if !(-2000..=2000).contains(&score) {
            return Err(RANGE.to_owned());
        }
        scores.push(score.to_string());
    }
    Ok(scores.join(" "))
}

fn notify_keyspace_events(words: &[&str]) -> Result<String, String> {
    let [classes] = words else { return wrong_number_of_arguments() };
    NotifyFlags::parse(classes)
        .map(|flags| flags.to_string())
        .ok_or_else(|| "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".to_owned())
}

fn bind(words: &[&str]) -> Result<String, String> {
    if words.len() > BIND_LIMIT {
        return Err("Too many bind addresses specified.".to_owned());
    }
    // A rewritten file has one line for them.
    if !words.iter().all(|word| is_plain(word)) {
        return Err("an address has a character that no address has".to_owned());
    }
    Ok(words.join(" "))
}

fn replica_of(words: &[&str]) -> Result<String, String> {
    let [host, port] = words else { return wrong_number_of_arguments() };
    if host.eq_ignore_ascii_case("no") && port.eq_ignore_ascii_case("one") {
        return Ok(String::new());
    }
    let port: u16 = port.parse().map_err(|_| "Invalid primary port")?;
    Ok(format!("{host} {port}"))
}

fn percentiles(words: &[&str]) -> Result<String, String> {
    const INVALID: &str = "Invalid latency-tracking-info-percentiles parameters";
    const RANGE: &str =
        "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]";
    if is_empty(words) {
        return Ok(String::new());
    }
    let mut text = String::new();
    for word in words {
        let percentile: f64 = word.parse().map_err(|_| INVALID)?;
        if percentile.is_nan() {
            return Err(INVALID.to_owned());
        }
        if !(0.0..=100.0).contains(&percentile) {
            return Err(RANGE.to_owned());
        }
        if !text.is_empty() {
            text.push(' ');
        }
        let digits = format!("{percentile:.6}");
        let digits = digits.trim_end_matches('0').trim_end_matches('.');
        // Writing into a String cannot fail.
        let _ = write!(text, "{digits}");
    }
    Ok(text)
}
