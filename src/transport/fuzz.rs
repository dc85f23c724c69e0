//! Fuzz target: the header of a proxy is read or refused, and no byte behind it is taken.

use super::proxy_header::read_header;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Reads `data` as the beginning of a connection.
pub fn proxy_header(data: &[u8]) {
    let read = |bytes: &[u8]| {
        let mut left = bytes;
        let mut cx = Context::from_waker(Waker::noop());
        let found = match pin!(read_header(&mut left)).poll(&mut cx) {
            Poll::Ready(found) => found.ok(),
            Poll::Pending => panic!("all bytes are there"),
        };
        found.map(|address| (address, bytes.len() - left.len()))
    };
    if let Some((address, taken)) = read(data) {
        assert_eq!(read(&data[..taken]), Some((address, taken)), "the header is enough");
        assert_eq!(read(&data[..taken - 1]), None, "a part of it is not");
    }
}
