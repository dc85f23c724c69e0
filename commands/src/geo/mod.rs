//! Geospatial indexes: sorted sets whose scores are positions.

mod area;
mod grid;
pub mod members;
pub mod search;
mod select;

use super::{KeySpec, Stop, arg, error, is_word, key};
use flagstone_wire::num::parse_f64;
use flagstone_wire::resp::{Args, Reply};
use grid::{EARTH, Position};

/// Returns the key spec of an argument that is read.
const fn read_key(at: usize) -> KeySpec {
    KeySpec::one(at, key!(RO | ACCESS))
}

/// Parses a longitude and a latitude, at an argument and the next one.
fn position_arg(args: Args<'_>, at: usize) -> Result<Position, Stop> {
    let degree = |at| parse_f64(arg(args, at)?).ok_or_else(|| Stop::from(error::NOT_FLOAT));
    let position = Position { longitude: degree(at)?, latitude: degree(at + 1)? };
    if EARTH.contains(position) {
        return Ok(position);
    }
    let Position { longitude, latitude } = position;
    Err(format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}").into())
}

/// Returns the meters of the unit at an argument.
fn unit_arg(args: Args<'_>, at: usize) -> Result<f64, Stop> {
    let word = arg(args, at)?;
    [("m", 1.0), ("km", 1000.0), ("ft", 0.3048), ("mi", 1609.34)]
        .into_iter()
        .find(|(name, _)| is_word(word, name))
        .map(|(_, meters)| meters)
        .ok_or_else(|| "ERR unsupported unit provided. please use M, KM, FT, MI".into())
}

/// Writes a distance, with four decimals.
fn reply_distance(out: &mut Reply, distance: f64) {
    const SCALE: f64 = 10_000.0;
    let scaled = (distance * SCALE).round_ties_even() as u64;
    out.bulk_str(&format!("{}.{:04}", scaled / SCALE as u64, scaled % SCALE as u64));
}

/// Writes a position.
fn reply_position(out: &mut Reply, position: Position) {
    out.array(2);
    out.long_double(position.longitude.into());
    out.long_double(position.latitude.into());
}

#[cfg(test)]
mod tests;
