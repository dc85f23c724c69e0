//! Positions on the earth, and the grid of cells whose numbers are the scores.

/// A position, in degrees.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Position {
    pub(super) longitude: f64,
    pub(super) latitude: f64,
}

/// A range of degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DegreeRange {
    pub(super) min: f64,
    pub(super) max: f64,
}

/// A rectangular part of the earth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub(super) longitude: DegreeRange,
    pub(super) latitude: DegreeRange,
}

const LONGITUDES: DegreeRange = DegreeRange { min: -180.0, max: 180.0 };

/// Area of valid positions: the square of the Web Mercator projection (EPSG:3857), without the
/// poles.
pub(super) const EARTH: Area =
    Area { longitude: LONGITUDES, latitude: DegreeRange { min: -85.05112878, max: 85.05112878 } };

/// The area that standard geohashes divide.
pub(super) const WHOLE_EARTH: Area =
    Area { longitude: LONGITUDES, latitude: DegreeRange { min: -90.0, max: 90.0 } };

/// Number of bits of each coordinate in a score.
pub(super) const MAX_STEP: u32 = 26;

/// A cell: both ranges are halved `step` times. The latitude has the even bits of its number, the
/// longitude the odd ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) bits: u64,
    pub(super) step: u32,
}

const EVEN: u64 = 0x5555_5555_5555_5555;
const ODD: u64 = !EVEN;

impl DegreeRange {
    fn contains(&self, degree: f64) -> bool {
        self.min <= degree && degree <= self.max
    }

    /// Returns the index of the part, of 2^`step`, that contains a degree. The last degree has a
    /// part of its own.
    fn part(&self, degree: f64, step: u32) -> u32 {
        let offset = (degree - self.min) / (self.max - self.min);
        (offset * (1u64 << step) as f64) as u32
    }

    /// Returns a part by its index.
    fn of_part(&self, part: u32, step: u32) -> Self {
        let scale = self.max - self.min;
        let edge = |part: u32| self.min + f64::from(part) / (1u64 << step) as f64 * scale;
        Self { min: edge(part), max: edge(part.wrapping_add(1)) }
    }

    fn middle(&self) -> f64 {
        (self.min + self.max) / 2.0
    }
}

impl Area {
    pub(super) fn contains(&self, position: Position) -> bool {
        self.longitude.contains(position.longitude) && self.latitude.contains(position.latitude)
    }
}

impl Position {
    /// Returns the position of a member: the middle of its cell.
    pub(super) fn of_score(score: f64) -> Self {
        let area = Cell { bits: integer(score), step: MAX_STEP }.area();
        Self {
            longitude: area.longitude.middle().clamp(EARTH.longitude.min, EARTH.longitude.max),
            latitude: area.latitude.middle().clamp(EARTH.latitude.min, EARTH.latitude.max),
        }
    }

    /// Returns the score of a member at this position.
    pub(super) fn score(self) -> f64 {
        Cell::of(self, &EARTH, MAX_STEP).bits as f64
    }
}

/// Converts a score to an integer as the reference does on x86-64, where it is out of range, too.
fn integer(score: f64) -> u64 {
    const HALF: f64 = (1u64 << 63) as f64;
    if score < HALF {
        signed_integer(score) as u64
    } else {
        signed_integer(score - HALF) as u64 ^ 1 << 63
    }
}

/// Converts a score to a signed integer; a score out of range becomes the minimum.
pub(super) fn signed_integer(score: f64) -> i64 {
    const HALF: f64 = (1u64 << 63) as f64;
    if (-HALF..HALF).contains(&score) { score as i64 } else { i64::MIN }
}

/// Moves the bits of a number to the even positions.
fn spread(part: u32) -> u64 {
    let mut bits = u64::from(part);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, EVEN),
    ] {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// Returns the number formed by the bits at the even positions.
fn gather(bits: u64) -> u32 {
    let mut bits = bits & EVEN;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u32
}

impl Cell {
    /// Returns the cell of a position in a grid that divides `area`.
    pub(super) fn of(position: Position, area: &Area, step: u32) -> Self {
        let latitude = area.latitude.part(position.latitude, step);
        let longitude = area.longitude.part(position.longitude, step);
        Self { bits: spread(latitude) | spread(longitude) << 1, step }
    }

    /// Returns the area that the cell covers.
    pub(super) fn area(self) -> Area {
        Area {
            longitude: EARTH.longitude.of_part(gather(self.bits >> 1), self.step),
            latitude: EARTH.latitude.of_part(gather(self.bits), self.step),
        }
    }

    /// Returns a neighbouring cell, around the earth if needed: `east` and `north` are -1, 0 or 1.
    pub(super) fn neighbour(self, east: i32, north: i32) -> Self {
        self.moved(ODD, east).moved(EVEN, north)
    }

    /// Adds `by` to the coordinate whose bits are `own`.
    fn moved(self, own: u64, by: i32) -> Self {
        let unused = u64::BITS - 2 * self.step;
        let (part, other) = (self.bits & own, self.bits & !own);
        // A carry passes through the bits of the other coordinate.
        let carry = !own >> unused;
        let part = match by {
            0 => return self,
            1.. => part.wrapping_add(carry + 1),
            _ => (part | carry).wrapping_sub(carry + 1),
        };
        Self { bits: part & (own >> unused) | other, ..self }
    }

    /// Returns the range of its members' scores: the first included, the second excluded.
    pub(super) fn scores(self) -> (f64, f64) {
        let shift = 2 * (MAX_STEP - self.step);
        ((self.bits << shift) as f64, ((self.bits + 1) << shift) as f64)
    }

    /// Returns the standard geohash of a cell of [`WHOLE_EARTH`]: eleven characters, though the
    /// bits suffice for ten.
    pub(super) fn text(self) -> [u8; 11] {
        const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
        std::array::from_fn(|i| match i {
            10 => ALPHABET[0],
            _ => ALPHABET[(self.bits >> (2 * MAX_STEP as usize - 5 * (i + 1))) as usize & 31],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PALERMO: Position = Position { longitude: 13.361389, latitude: 38.115556 };

    #[test]
    fn positions_have_scores() {
        assert_eq!(PALERMO.score(), 3_479_099_956_230_698.0);
        let back = Position::of_score(PALERMO.score());
        assert_eq!(back.longitude, 13.361_389_338_970_184);
        assert_eq!(back.latitude, 38.115_556_395_496_3);
        assert_eq!(back.score(), PALERMO.score());
        let text = Cell::of(back, &WHOLE_EARTH, MAX_STEP).text();
        assert_eq!(&text, b"sqc8b49rny0");
    }

    #[test]
    fn corners_have_scores() {
        let corner = |longitude, latitude| Position { longitude, latitude }.score();
        let (longitude, latitude) = (EARTH.longitude, EARTH.latitude);
        assert_eq!(corner(longitude.min, latitude.min), 0.0);
        // One cell beyond the last of each coordinate.
        assert_eq!(corner(longitude.min, latitude.max), (1u64 << 52) as f64);
        assert_eq!(corner(longitude.max, latitude.max), (3u64 << 52) as f64);
        let far = Position::of_score((3u64 << 52) as f64);
        assert_eq!((far.longitude, far.latitude), (longitude.max, latitude.max));
    }

    #[test]
    fn any_score_is_a_position() {
        for score in [-1.0, 0.5, 1e18, 1e19, 1e300, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(EARTH.contains(Position::of_score(score)), "{score}");
        }
        assert_eq!(integer(-1.0), u64::MAX);
        assert_eq!(integer(1e19), 10_000_000_000_000_000_000);
        assert_eq!((integer(1e20), integer(-1e20)), (0, 1 << 63));
        assert_eq!(signed_integer(f64::INFINITY), i64::MIN);
    }

    #[test]
    fn neighbours_are_next_to_each_other() {
        let cell = Cell::of(PALERMO, &EARTH, 12);
        let (area, scale) = (cell.area(), 1u64 << 12);
        let east = cell.neighbour(1, 0).area();
        assert_eq!(east.longitude.min, area.longitude.max);
        assert_eq!(east.latitude, area.latitude);
        let south_west = cell.neighbour(-1, -1).area();
        assert_eq!(south_west.longitude.max, area.longitude.min);
        assert_eq!(south_west.latitude.max, area.latitude.min);
        let mut around = cell;
        for _ in 0..scale {
            around = around.neighbour(1, 0);
        }
        assert_eq!(around, cell);
        let edge = Cell { bits: 0, step: 12 };
        assert_eq!(edge.neighbour(-1, -1).bits, (1 << 24) - 1);
    }

    #[test]
    fn cells_have_the_scores_of_their_members() {
        for step in [1, 5, 26] {
            let (first, end) = Cell::of(PALERMO, &EARTH, step).scores();
            assert!(first <= PALERMO.score() && PALERMO.score() < end);
            assert_eq!(end - first, (1u64 << (2 * (26 - step))) as f64);
        }
    }
}
