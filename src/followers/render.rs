//! Renders the words of a record as replicas read them.
//!
//! The offsets of the stream count these bytes, over restarts, too: a change here ends the streams of
//! earlier versions (`FORM` in `storage/src/feed.rs`).

use flagstone_storage::words::{Said, groups};
use flagstone_wire::resp::reply::write_request;

/// Appends the words of a record; `None` if they are damaged. `selected`: the database that the stream has
/// selected before them, and then behind them.
pub fn render(words: &[u8], selected: &mut Option<u32>, out: &mut Vec<u8>) -> Option<()> {
    for group in groups(words)? {
        let is_unit = group.len() > 1;
        if is_unit {
            write(out, &[b"MULTI"]);
        }
        for said in &group {
            if !is_about_the_link(said) {
                select(out, selected, said.db());
            }
            match said {
                Said::Reselect => *selected = None,
                Said::Command { words, .. } => write(out, words),
                Said::Removal { key, .. } => write(out, &[b"UNLINK", key]),
                Said::Fields { key, names, .. } => {
                    write(out, &[&[b"HDEL", *key][..], names].concat());
                }
            }
        }
        if is_unit {
            write(out, &[b"EXEC"]);
        }
    }
    Some(())
}

/// Returns true for a ping or a question: it is of no database.
fn is_about_the_link(said: &Said<'_>) -> bool {
    let name = |words: &[&[u8]]| {
        words.first().is_some_and(|name| [&b"PING"[..], b"REPLCONF"].contains(name))
    };
    matches!(said, Said::Command { words, .. } if name(words))
}

fn write(out: &mut Vec<u8>, words: &[&[u8]]) {
    write_request(out, words.iter().copied());
}

fn select(out: &mut Vec<u8>, selected: &mut Option<u32>, db: Option<u32>) {
    if let Some(wanted) = db
        && *selected != db
    {
        write(out, &[b"SELECT", wanted.to_string().as_bytes()]);
        *selected = db;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_storage::words::{RemovalCause, RoundWords};

    fn rendered(words: RoundWords, mut selected: Option<u32>) -> String {
        let mut out = Vec::new();
        render(&words.into_bytes(), &mut selected, &mut out).unwrap();
        assert_eq!(selected, Some(2));
        let text = String::from_utf8(out).unwrap();
        let is_word = |line: &&str| !line.starts_with(['*', '$']);
        text.lines().filter(is_word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn groups_are_transactions_and_databases_are_selected() {
        let mut words = RoundWords::default();
        words.want(true);
        words.command(0, [&b"set"[..], b"a", b"1"].into_iter());
        words.begin_group();
        words.removal(3, b"old", RemovalCause::Expired);
        words.command(3, [&b"set"[..], b"b", b"2"].into_iter());
        words.end_group();
        words.fields(0, b"h", [&b"f"[..]].into_iter());
        words.command(2, [&b"incr"[..], b"n"].into_iter());
        words.reselect();
        words.command(2, [&b"incr"[..], b"n"].into_iter());
        assert_eq!(
            rendered(words, Some(0)),
            "set a 1 MULTI SELECT 3 UNLINK old set b 2 EXEC SELECT 0 HDEL h f SELECT 2 incr n SELECT 2 incr n"
        );
    }

    #[test]
    fn what_is_selected_stays_selected() {
        let words = || {
            let mut words = RoundWords::default();
            words.want(true);
            words.command(2, [&b"incr"[..], b"n"].into_iter());
            words
        };
        assert_eq!(rendered(words(), None), "SELECT 2 incr n");
        assert_eq!(rendered(words(), Some(2)), "incr n");
    }
}
