//! Living on below launchers that tell of a dead rank by a signal.
#![expect(
    unsafe_code,
    reason = "neither std nor rustix sets what a signal does; the handler does nothing"
)]

use std::{mem::MaybeUninit, ptr};

/// Has SIGUSR1 do nothing, where it would end this process.
///
/// Hydra's proxy sends it to the ranks that are left when one has died, unless it ends them all. A handler of the application
/// stays, and one that it sets later takes the place of this one. It is a handler and not "ignore", which programs that this one
/// starts would inherit.
pub(super) fn outlive_sigusr1() {
    let mut known = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is set, and what is written has the type that the call writes.
    let read = unsafe { libc::sigaction(libc::SIGUSR1, ptr::null(), known.as_mut_ptr()) };
    if read != 0 {
        return; // There is such a signal; it would end this process, as it does without this function.
    }
    // SAFETY: the call has written it, as it succeeded.
    let mut known = unsafe { known.assume_init() };
    if known.sa_sigaction != libc::SIG_DFL {
        return;
    }
    known.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    known.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler touches nothing, so it may run at any point of any thread.
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

    /// In a process of its own: what a signal does is the same for all tests of this one.
    #[test]
    fn a_signal_that_would_kill_does_nothing_here_and_kills_a_child() {
        let name = "RIPSTOP_TEST_RANK"; // Any name that nothing reads here.
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
