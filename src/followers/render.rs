//! Renders the words of a record as replicas read them.
//!
//! The offsets of the stream count these bytes, over restarts, too: a change here ends the streams of
//! earlier versions (`FORM` in `storage/src/feed.rs`).

use flagstone_storage::words::{Said, groups};
use flagstone_wire::resp::reply::write_request;

/// Appends the words of a record; `None` if they are damaged. The stream has selected database 0
/// before a record and behind it.
pub fn render(words: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut selected = 0;
    for group in groups(words)? {
        let is_unit = group.len() > 1;
        if is_unit {
            write(out, &[b"MULTI"]);
        }
        for said in &group {
            select(out, &mut selected, said.db());
            match said {
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
    select(out, &mut selected, 0);
    Some(())
}

/// Appends the command that selects database 0, if another one is selected. Returns its length.
pub(super) fn select_first(mut selected: u32, out: &mut Vec<u8>) -> u64 {
    let before = out.len();
    select(out, &mut selected, 0);
    (out.len() - before) as u64
}

fn write(out: &mut Vec<u8>, words: &[&[u8]]) {
    write_request(out, words.iter().copied());
}

fn select(out: &mut Vec<u8>, selected: &mut u32, db: u32) {
    if *selected != db {
        write(out, &[b"SELECT", db.to_string().as_bytes()]);
        *selected = db;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_storage::words::RoundWords;

    fn rendered(words: RoundWords) -> String {
        let mut out = Vec::new();
        render(&words.into_bytes(), &mut out).unwrap();
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
        words.removal(3, b"old");
        words.command(3, [&b"set"[..], b"b", b"2"].into_iter());
        words.end_group();
        words.fields(0, b"h", [&b"f"[..]].into_iter());
        words.command(2, [&b"incr"[..], b"n"].into_iter());
        assert_eq!(
            rendered(words),
            "set a 1 MULTI SELECT 3 UNLINK old set b 2 EXEC SELECT 0 HDEL h f SELECT 2 incr n SELECT 0"
        );
    }
}
