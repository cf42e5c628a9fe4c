//! Checks that a problem fits the machine, before an allocation fails or the system ends the rank that needs it.

use std::ffi::c_ulong;

/// Refuses a problem that needs `bytes` bytes on the `ranks` of this machine, if it has less.
///
/// # Errors
/// A sentence that names `what`.
pub(crate) fn check(what: &str, bytes: usize, ranks: usize) -> Result<(), String> {
    let system = rustix::system::sysinfo();
    let units = system.totalram.saturating_add(system.totalswap);
    let total = units.saturating_mul(c_ulong::from(system.mem_unit));
    if c_ulong::try_from(bytes).is_ok_and(|bytes| bytes <= total) {
        return Ok(());
    }
    let (needed, there) = (bytes.div_ceil(1 << 30), total >> 30);
    let held = if ranks == 1 {
        "one rank"
    } else {
        &format!("{ranks} ranks")
    };
    Err(format!(
        "{what} needs at least {needed} GiB for {held} on this machine, which has {there} GiB: \
         make it smaller, or take ranks on more machines"
    ))
}
