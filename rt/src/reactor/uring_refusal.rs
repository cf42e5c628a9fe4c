//! Why io_uring does not work on a machine.

use std::{fmt, io};

/// The reason why io_uring does not work on this machine, and what would help, as a text.
#[derive(Clone, Debug)]
pub struct UringRefusal {
    sentence: String,
    error: Option<i32>,
}

impl UringRefusal {
    pub(super) fn of(error: &io::Error) -> Self {
        Self {
            sentence: sentence(error),
            error: error.raw_os_error(),
        }
    }

    pub(super) fn of_old_kernel() -> Self {
        Self {
            sentence: "this kernel's io_uring is older than Linux 5.13".to_owned(),
            error: None,
        }
    }

    /// Returns the error number of the system call that failed. `None` if all succeeded, and the kernel is too old.
    #[must_use]
    pub const fn raw_os_error(&self) -> Option<i32> {
        self.error
    }
}

impl fmt::Display for UringRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for UringRefusal {}

/// Returns the reason of a refusal, in words that an administrator can act on.
fn sentence(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => {
            "this kernel has no io_uring, or a container's seccomp profile hides it (io_uring_setup or io_uring_enter: \
             ENOSYS)"
                .to_owned()
        }
        Some(libc::EPERM | libc::EACCES) => format!(
            "io_uring is forbidden here ({}) (io_uring_setup or io_uring_enter: {error})",
            forbidden_by()
        ),
        Some(libc::EMFILE | libc::ENFILE) => format!("no descriptor is left for io_uring; raise `ulimit -n` ({error})"),
        Some(libc::ENOMEM) => format!("io_uring got no memory; before Linux 5.12 its rings count, raise `ulimit -l` ({error})"),
        _ => format!("io_uring does not work here: {error}"),
    }
}

fn forbidden_by() -> String {
    match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .as_deref()
        .map(str::trim_ascii)
    {
        Ok(level @ ("1" | "2")) => {
            format!("kernel.io_uring_disabled = {level}; the administrator can set it to 0")
        }
        _ => "by a container's seccomp profile or a security module".to_owned(),
    }
}
