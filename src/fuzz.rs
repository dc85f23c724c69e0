//! Fuzz targets for bytes that a primary and proxies send, and for the file of users. `fuzz/` runs
//! them under libFuzzer; the tests here run them over the same corpora.

pub use crate::acl::fuzz::aclfile;
pub use crate::replication::fuzz::stream;
pub use crate::transport::fuzz::proxy_header;

#[cfg(test)]
#[path = "../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn files_of_users_are_read_or_refused() {
        replay("aclfile", super::aclfile);
    }

    #[test]
    fn streams_are_split_in_the_same_way_however_they_arrive() {
        replay("stream", super::stream);
    }

    #[test]
    fn headers_of_proxies_are_read_or_refused() {
        replay("proxy_header", super::proxy_header);
    }
}
