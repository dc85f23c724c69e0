//! Reads of ranges of files into memory that was not cleared before.

use std::fs::File;
use std::io;

/// Appends up to `most` bytes of a file to `buffer`, whose first byte is the one at `offset`; if
/// `in_place`, only bytes that the system has in memory. Returns their number; 0 is the end of the
/// file.
#[cfg(target_os = "linux")]
pub(super) fn read_on(
    file: &File,
    buffer: &mut Vec<u8>,
    most: usize,
    offset: u64,
    in_place: bool,
) -> io::Result<usize> {
    use std::os::fd::AsRawFd;
    buffer.reserve(most);
    let at = offset + buffer.len() as u64;
    let at = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    let spare = &mut buffer.spare_capacity_mut()[..most];
    let slice = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() };
    let flags = if in_place { libc::RWF_NOWAIT } else { 0 };
    // SAFETY: `slice` is `spare`, which is borrowed and writable; the descriptor is open as long as
    // `file` is borrowed.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), &raw const slice, 1, at, flags) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the call has written the first `read` bytes of the spare capacity, and no more than
    // there are.
    unsafe { buffer.set_len(buffer.len() + read) };
    Ok(read)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn read_on(
    file: &File,
    buffer: &mut Vec<u8>,
    most: usize,
    offset: u64,
    in_place: bool,
) -> io::Result<usize> {
    if in_place {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let begin = buffer.len();
    buffer.resize(begin + most, 0);
    let read = file.read_at(&mut buffer[begin..], offset + begin as u64);
    buffer.truncate(begin + *read.as_ref().unwrap_or(&0));
    read
}
