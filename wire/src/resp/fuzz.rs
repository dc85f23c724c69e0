//! Fuzz target: the pieces in which requests arrive do not change their meaning.

use super::parse::{Limits, Parsed, Parser, ProtocolError};

type Commands = Vec<Vec<Vec<u8>>>;

/// Limits that a fuzzer's inputs can reach.
const LIMITS: Limits =
    Limits { max_bulk: 4096, max_args: 64, max_inline: 256, authenticated: true };

/// Parses `data` at once, and in pieces of a size given by its first byte.
pub fn resp(data: &[u8]) {
    let Some((&piece, data)) = data.split_first() else { return };
    let whole = commands(data, data.len().max(1));
    let pieces = commands(data, usize::from(piece).max(1));
    assert_eq!(whole, pieces, "read in pieces of {piece} bytes");
}

/// Returns the commands in `data`, which arrives in pieces, and the error at their end.
fn commands(data: &[u8], piece: usize) -> (Commands, Option<ProtocolError>) {
    let (mut parser, mut found) = (Parser::new(), Commands::new());
    let (mut start, mut arrived) = (0, 0);
    loop {
        match parser.parse(&data[start..arrived], &LIMITS) {
            Err(error) => return (found, Some(error)),
            Ok(Parsed::Incomplete { need }) => {
                assert!(need > 0, "an incomplete request needs something");
                if arrived == data.len() {
                    return (found, None);
                }
                arrived = (arrived + piece).min(data.len());
            }
            Ok(parsed) => {
                if parsed == Parsed::Command {
                    let args = parser.args(&data[start..arrived]);
                    found.push(args.iter().map(<[u8]>::to_vec).collect());
                }
                assert!(parser.consumed() > 0, "a request takes bytes");
                start += parser.consumed();
                assert!(start <= arrived, "a request takes no bytes that have not arrived");
            }
        }
    }
}
