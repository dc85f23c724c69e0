//! A replica tells the server that it is to follow what it has: one that takes over hears it, and may
//! need the end of the stream from it (RFC 18).

use super::OTHER;
use super::succession::MARK;
use super::wire::PrimaryWire;
use crate::followers::promised_for;
use crate::replica::{Lineage, Primary, Replica, Testimony, parse_formers};
use flagstone_storage::encoding::FormerStream;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long it is told again and again, while other replicas have to be heard; then the link begins
/// anew.
const HEARING: Duration = Duration::from_secs(30);

/// Interval meanwhile.
const AGAIN: Duration = Duration::from_millis(200);

/// Tells a primary the data of this server. `epoch`: the choice of that primary. Returns the streams that
/// went over into the primary's own, if it names some.
///
/// # Errors
/// The connection breaks, or the primary does not want a stream to be asked for yet.
pub(super) async fn testify(
    wire: &mut PrimaryWire,
    replica: &Replica,
    (epoch, primary): (u64, &Primary),
) -> Result<Vec<FormerStream>, String> {
    let begun = Instant::now();
    let lineage = replica.lineage().unwrap_or_else(Lineage::of_nobody);
    let mut testimony = Testimony { lineage, question: None };
    let mut rest = None;
    while begun.elapsed() < HEARING {
        let is_bound = testimony.question.is_some();
        if is_bound && !replica.promise(epoch, Some(primary), promised_for()) {
            return Err(OTHER.to_owned());
        }
        let text = testimony.to_string();
        let mut words: Vec<&[u8]> = vec![b"REPLCONF", b"POSITION", text.as_bytes()];
        words.extend(rest.iter().flat_map(|rest: &Vec<u8>| [&b"REST"[..], rest]));
        let reply = wire.ask(&words).await?;
        rest = None;
        let words: Vec<&str> = reply.split_ascii_whitespace().collect();
        match words[..] {
            ["+OK", ref formers @ ..] => {
                return Ok(parse_formers(formers.iter().copied()).unwrap_or_default());
            }
            ["+AGAIN", question] => testimony.question = Some(question.to_owned()),
            ["+WAIT", question] => {
                testimony.question = Some(question.to_owned());
                sleep(AGAIN).await;
            }
            ["+SEND", from] => rest = Some(rest_from(replica, from)?),
            // A server of another kind does not know that.
            _ if reply.starts_with('+') || !reply.contains(MARK) => return Ok(Vec::new()),
            _ => return Err(format!("it does not take this server: {}", &reply[1..])),
        }
    }
    Err(format!("it waits for other replicas before it is a primary ({MARK})"))
}

/// Returns the bytes of the stream from an offset on.
fn rest_from(replica: &Replica, from: &str) -> Result<Vec<u8>, String> {
    let rest = from.parse().ok().and_then(|from| replica.applied_from(from));
    rest.ok_or_else(|| {
        format!(
            "this server has more of the stream than the primary, from {from} on, and no longer in \
             memory (repl-backlog-size): promote this one instead ({MARK})"
        )
    })
}
