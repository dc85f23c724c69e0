//! The wire format: requests and replies of the Redis protocol ([`resp`]), numbers as text
//! ([`num`]) and glob patterns ([`glob`]). These are functions over bytes; they share only the
//! account of the clients' memory ([`client_memory`]), which replies check before they grow.

pub mod client_memory;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod glob;
pub mod num;
pub mod resp;
