//! Numbers as text: strict integers, doubles, long doubles and memory sizes, read and written like
//! in Valkey.

mod float;
mod grisu;
mod integer;
mod longdouble;
mod memory;

pub use float::{FloatText, format_f64, format_f64_in_full, parse_f64, parse_f64_loosely};
pub use integer::{parse_i64, parse_u64};
pub use longdouble::LongDouble;
pub use memory::parse_memory;
