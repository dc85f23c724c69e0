//! The steps that lives, the bucket and time take. Each file has those of one subject: a function
//! says when its step is possible, another one takes it.

pub mod journal;
pub mod maps;
pub mod proposal;
pub mod take;
pub mod time;
