//! Ways to a server on which a test sees what passes, and changes or breaks it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Bytes that pass.
pub(crate) enum Passing<'a> {
    Request(&'a mut [u8]),
    Reply(&'a mut [u8]),
}

/// A look at the bytes of one connection, as they come. It breaks if this returns false.
pub(crate) type Look = Box<dyn FnMut(Passing<'_>) -> bool + Send>;

/// Makes a way to a server: `begin` returns the look at each connection. Returns its port; it ends with the
/// test's process.
pub(crate) fn way_to(server: u16, mut begin: impl FnMut() -> Look + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    thread::spawn(move || {
        for here in listener.incoming().flatten() {
            let Ok(there) = TcpStream::connect(("127.0.0.1", server)) else { continue };
            let [forth, back] = [&here, &there].map(|end| end.try_clone().expect("a clone"));
            let look = Arc::new(Mutex::new(begin()));
            let of_replies = look.clone();
            thread::spawn(move || pass(forth, there, &look, |bytes| Passing::Request(bytes)));
            thread::spawn(move || pass(back, here, &of_replies, |bytes| Passing::Reply(bytes)));
        }
    });
    port
}

/// Passes bytes on until one end is closed, or the look breaks the connection.
fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    look: &Mutex<Look>,
    passing: impl Fn(&mut [u8]) -> Passing<'_>,
) {
    let mut bytes = [0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        let passed = &mut bytes[..read];
        let mut look = look.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = (*look)(passing(passed));
        drop(look);
        if !goes_on || to.write_all(passed).is_err() {
            break;
        }
    }
    for end in [from, to] {
        // It may be closed already.
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// Returns the place of some bytes among others.
pub(crate) fn place(of: &[u8], bytes: &[u8]) -> Option<usize> {
    bytes.windows(of.len()).position(|found| found == of)
}
