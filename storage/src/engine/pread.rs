//! Reads of ranges of files into memory that was not cleared before.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;

/// Appends up to `most` bytes of a file to `buffer`, whose first byte is the one at `offset`; if
/// `in_place`, only bytes that the system has in memory. Returns their number; 0 is the end of the
/// file.
pub(super) fn read_on(
    file: &File,
    buffer: &mut Vec<u8>,
    most: usize,
    offset: u64,
    in_place: bool,
) -> io::Result<usize> {
    buffer.reserve(most);
    let at = offset + buffer.len() as u64;
    let spare = &mut buffer.spare_capacity_mut()[..most];
    let read = match in_place {
        true => read_cached(file, spare, at)?,
        false => rustix::io::pread(file, spare, at)?.0.len(),
    };
    // SAFETY: the first `read` bytes of the spare capacity were written.
    unsafe { buffer.set_len(buffer.len() + read) };
    Ok(read)
}

/// Writes bytes of a file that the system has in memory to the beginning of `to`, and returns their
/// number.
#[cfg(target_os = "linux")]
fn read_cached(file: &File, to: &mut [MaybeUninit<u8>], at: u64) -> io::Result<usize> {
    use std::os::fd::AsRawFd;
    let at = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    let slice = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    // SAFETY: `slice` is `to`, which is borrowed and writable; the descriptor is open as long as `file`
    // is borrowed.
    let read =
        unsafe { libc::preadv2(file.as_raw_fd(), &raw const slice, 1, at, libc::RWF_NOWAIT) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

#[cfg(not(target_os = "linux"))]
fn read_cached(_: &File, _: &mut [MaybeUninit<u8>], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}
