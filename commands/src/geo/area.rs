//! Distances on the earth, and the grid cells that cover a circle or box.

use super::grid::{Area, Cell, DegreeRange, EARTH, MAX_STEP, Position};

/// Radius of the earth in meters; the quadratic mean of WGS 84.
const EARTH_RADIUS: f64 = 6_372_797.560856;

/// Half the width of the Web Mercator projection, in meters.
const HALF_EQUATOR: f64 = 20_037_726.37;

const DEGREE: f64 = std::f64::consts::PI / 180.0;

fn radians(degrees: f64) -> f64 {
    degrees * DEGREE
}

fn degrees(radians: f64) -> f64 {
    radians / DEGREE
}

/// Returns the meters between two latitudes.
fn latitude_distance(a: f64, b: f64) -> f64 {
    EARTH_RADIUS * (radians(b) - radians(a)).abs()
}

/// Returns the meters between two positions by the haversine formula.
pub(super) fn distance(a: Position, b: Position) -> f64 {
    let v = ((radians(b.longitude) - radians(a.longitude)) / 2.0).sin();
    if v == 0.0 {
        return latitude_distance(a.latitude, b.latitude);
    }
    let (from, to) = (radians(a.latitude), radians(b.latitude));
    let u = ((to - from) / 2.0).sin();
    let square = u * u + from.cos() * to.cos() * v * v;
    // Rounding may exceed half the circumference of the earth.
    2.0 * EARTH_RADIUS * square.sqrt().min(1.0).asin()
}

/// Dimensions of a search area, in units of [`Shape::unit`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Dimensions {
    Circle { radius: f64 },
    Box { width: f64, height: f64 },
}

/// An area to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) dimensions: Dimensions,
    /// Length of a unit in meters.
    pub(super) unit: f64,
}

impl Shape {
    /// Returns the distance in meters of a position from the center if it is in the shape.
    pub(super) fn distance(&self, center: Position, place: Position) -> Option<f64> {
        match self.dimensions {
            Dimensions::Circle { radius } => {
                let distance = distance(center, place);
                (distance <= radius * self.unit).then_some(distance)
            }
            Dimensions::Box { width, height } => {
                let (width, height) = (width * self.unit, height * self.unit);
                let same_latitude = Position { latitude: place.latitude, ..center };
                let is_outside = latitude_distance(place.latitude, center.latitude) > height / 2.0
                    || distance(place, same_latitude) > width / 2.0;
                (!is_outside).then(|| distance(center, place))
            }
        }
    }

    /// Returns the distance in meters from the center to the farthest point of the shape.
    fn reach(&self) -> f64 {
        let units = match self.dimensions {
            Dimensions::Circle { radius } => radius,
            Dimensions::Box { width, height } => {
                ((width / 2.0) * (width / 2.0) + (height / 2.0) * (height / 2.0)).sqrt()
            }
        };
        units * self.unit
    }

    /// Returns the approximate bounding box of a shape; it may exceed the edges of the earth.
    fn bounds(&self, center: Position) -> Area {
        let (width, height) = match self.dimensions {
            Dimensions::Circle { radius } => (radius, radius),
            Dimensions::Box { width, height } => (width / 2.0, height / 2.0),
        };
        let Position { longitude, latitude } = center;
        let north = degrees(self.unit * height / EARTH_RADIUS);
        // A parallel is shorter the nearer it is to a pole.
        let widest = if latitude < 0.0 { latitude - north } else { latitude + north };
        let east = degrees(self.unit * width / EARTH_RADIUS / radians(widest).cos());
        Area {
            longitude: DegreeRange { min: longitude - east, max: longitude + east },
            latitude: DegreeRange { min: latitude - north, max: latitude + north },
        }
    }

    /// Returns the cells that cover the shape, in the order in which they are searched.
    pub(super) fn cells(&self, center: Position) -> Vec<Cell> {
        let bounds = self.bounds(center);
        let step = steps(self.reach(), center.latitude);
        let mut cell = Cell::of(center, &EARTH, step);
        if step > 1 && !reaches(cell, &bounds) {
            cell = Cell::of(center, &EARTH, step - 1);
        }
        let area = cell.area();
        // With the largest cells the whole earth is searched.
        let leaves_out = cell.step >= 2;
        let is_needed = |(east, north): &(i32, i32)| {
            let is_past = match north {
                0 => false,
                1.. => area.latitude.max > bounds.latitude.max,
                _ => area.latitude.min < bounds.latitude.min,
            } || match east {
                0 => false,
                1.. => area.longitude.max > bounds.longitude.max,
                _ => area.longitude.min < bounds.longitude.min,
            };
            !(leaves_out && is_past)
        };
        let mut cells: Vec<Cell> = NEIGHBOURS
            .iter()
            .filter(|place| is_needed(place))
            .map(|&(east, north)| cell.neighbour(east, north))
            .collect();
        // Opposite sides of the earth may have the same cell.
        cells.dedup();
        cells.insert(0, cell);
        cells
    }
}

/// Directions of a cell's neighbours: east, north.
const NEIGHBOURS: [(i32, i32); 8] =
    [(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];

/// Returns the number of steps for cells that are, in most cases, wide enough that a distance in
/// meters from any point reaches no farther than the neighbouring cells.
fn steps(mut meters: f64, latitude: f64) -> u32 {
    if meters == 0.0 {
        return MAX_STEP;
    }
    let mut steps: i32 = -1;
    while meters < HALF_EQUATOR {
        meters *= 2.0;
        steps += 1;
    }
    steps -= i32::from(latitude.abs() > 66.0) + i32::from(latitude.abs() > 80.0);
    steps.clamp(1, MAX_STEP.cast_signed()).cast_unsigned()
}

/// Returns true if the cells around one cover the bounds.
fn reaches(cell: Cell, bounds: &Area) -> bool {
    let next = |east, north| cell.neighbour(east, north).area();
    let falls_short = next(0, 1).latitude.max < bounds.latitude.max
        || next(0, -1).latitude.min > bounds.latitude.min
        || next(1, 0).longitude.max < bounds.longitude.max
        || next(-1, 0).longitude.min > bounds.longitude.min;
    !falls_short
}

#[cfg(test)]
mod tests {
    use super::*;

    const PALERMO: Position = Position { longitude: 13.361389, latitude: 38.115556 };
    const CATANIA: Position = Position { longitude: 15.087269, latitude: 37.502669 };

    fn circle(radius: f64) -> Shape {
        Shape { dimensions: Dimensions::Circle { radius }, unit: 1000.0 }
    }

    #[test]
    fn distances_are_along_the_surface() {
        assert_eq!(distance(PALERMO, PALERMO), 0.0);
        assert!((distance(PALERMO, CATANIA) - 166_274.15).abs() < 1.0);
        let antipode =
            Position { longitude: PALERMO.longitude - 180.0, latitude: -PALERMO.latitude };
        assert!((distance(PALERMO, antipode) - EARTH_RADIUS * std::f64::consts::PI).abs() < 1.0);
    }

    #[test]
    fn shapes_have_edges() {
        let far = distance(PALERMO, CATANIA) / 1000.0;
        assert_eq!(circle(far + 0.001).distance(PALERMO, CATANIA), Some(far * 1000.0));
        assert_eq!(circle(far - 0.001).distance(PALERMO, CATANIA), None);
        let at = |width, height| {
            let shape = Shape { dimensions: Dimensions::Box { width, height }, unit: 1000.0 };
            shape.distance(PALERMO, CATANIA).is_some()
        };
        assert!(at(310.0, 140.0));
        assert!(!at(300.0, 140.0));
        assert!(!at(310.0, 130.0));
    }

    #[test]
    fn cells_shrink_with_the_shape() {
        let expected = [(0.0, 26), (0.1, 26), (100.0, 17), (1e5, 7), (6e6, 1), (f64::INFINITY, 1)];
        for (meters, step) in expected {
            assert_eq!(steps(meters, 38.0), step, "{meters}");
            let first = circle(meters / 1000.0).cells(PALERMO)[0];
            assert!(first.step == step || first.step == step - 1, "{meters}");
        }
        assert_eq!(steps(100_000.0, 70.0), steps(100_000.0, 0.0) - 1);
        assert_eq!(steps(100_000.0, -84.0), steps(100_000.0, 0.0) - 2);
    }

    #[test]
    fn cells_have_all_of_a_circle() {
        for (longitude, latitude) in [(0.0, 0.0), (179.9, 60.0), (-100.0, -84.9), (13.4, 38.1)] {
            let center = Position { longitude, latitude };
            for radius in [0.001, 1.0, 50.0, 700.0] {
                let shape = circle(radius);
                let cells = shape.cells(center);
                // Positions all around, slightly inside.
                for direction in 0..64 {
                    let (sin, cos) = (f64::from(direction) / 10.0).sin_cos();
                    let reach = degrees(radius * 999.0 / EARTH_RADIUS);
                    let place = Position {
                        longitude: longitude + cos * reach,
                        latitude: latitude + sin * reach,
                    };
                    if !EARTH.contains(place) {
                        continue;
                    }
                    assert!(shape.distance(center, place).is_some());
                    let score = place.score();
                    let is_in = |cell: &Cell| {
                        let (first, end) = cell.scores();
                        first <= score && score < end
                    };
                    assert!(cells.iter().any(is_in), "{center:?} {radius} {place:?}");
                }
            }
        }
    }
}
