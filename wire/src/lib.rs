//! The wire format: requests and replies of the Redis protocol ([`resp`]), numbers as text
//! ([`num`]) and glob patterns ([`glob`]). Functions over bytes; the one thing that they share is
//! the account of the memory that clients take ([`client_memory`]), which replies ask before they
//! grow.

pub mod client_memory;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod glob;
pub mod num;
pub mod resp;
