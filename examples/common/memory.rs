//! Whether a problem fits the machine, before an allocation fails or the system ends the rank that needs it.

use std::ffi::c_ulong;

/// Refuses what needs more bytes on each rank than this machine has, which all ranks of a machine decide alike.
///
/// # Errors
/// A sentence that names `what`.
pub(crate) fn check(what: &str, bytes: usize) -> Result<(), String> {
    let system = rustix::system::sysinfo();
    let units = system.totalram.saturating_add(system.totalswap);
    let total = units.saturating_mul(c_ulong::from(system.mem_unit));
    if c_ulong::try_from(bytes).is_ok_and(|bytes| bytes <= total) {
        return Ok(());
    }
    let (needed, there) = (bytes >> 30, total >> 30);
    Err(format!(
        "{what} needs at least {needed} GiB on each rank, and this machine has {there} GiB: \
         make it smaller, or take ranks on more machines"
    ))
}
