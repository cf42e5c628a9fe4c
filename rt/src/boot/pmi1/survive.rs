//! Survives the signal with which some launchers report a dead rank.
#![expect(
    unsafe_code,
    reason = "neither std nor rustix sets what a signal does; the handler does nothing"
)]

use std::{mem::MaybeUninit, ptr};

/// Makes this process ignore SIGUSR1 if the signal would end it.
///
/// Hydra's proxy sends it to the remaining ranks when one has died, unless it ends them all. A handler of the
/// application stays in place, and may also replace this one later. This is a handler and not "ignore", because
/// programs started by this process would inherit the latter.
pub(super) fn outlive_sigusr1() {
    let mut known = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: no action is set, and the call writes a value of this type.
    let read = unsafe { libc::sigaction(libc::SIGUSR1, ptr::null(), known.as_mut_ptr()) };
    if read != 0 {
        return; // The signal exists, so this cannot happen; without a handler it would end the process as before.
    }
    // SAFETY: the call has succeeded, so it has written the value.
    let mut known = unsafe { known.assume_init() };
    if known.sa_sigaction != libc::SIG_DFL {
        return;
    }
    known.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    known.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler accesses nothing, so it may run at any point of any thread.
    unsafe { libc::sigaction(libc::SIGUSR1, &raw const known, ptr::null_mut()) };
}

extern "C" fn nothing(_signal: libc::c_int) {}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    const ALONE: &str =
        "boot::pmi1::survive::tests::a_signal_that_would_kill_does_nothing_here_and_kills_a_child";

    /// Runs in a separate process, because signal handlers are shared by all tests of a process.
    #[test]
    fn a_signal_that_would_kill_does_nothing_here_and_kills_a_child() {
        let name = "RIPSTOP_TEST_RANK"; // any name that is not read here
        if std::env::var(name).is_err() {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args([ALONE, "--exact", "--test-threads=1"])
                .env(name, "signals");
            return assert!(command.status().unwrap().success());
        }
        outlive_sigusr1();
        kill_process(getpid(), Signal::USR1).unwrap();
        let mut child = Command::new("sh");
        child.args(["-c", "kill -USR1 $$; exit 0"]);
        assert!(!child.status().unwrap().success(), "a child inherited it");
    }
}
