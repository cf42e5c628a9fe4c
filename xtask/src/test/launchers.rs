//! Programs of other projects that some tests need: launchers that start ranks, a browser, and what makes hosts on this machine.

use crate::{
    programs,
    step::{CommandLine, StepRunner},
};

/// What to do if a launcher is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingLauncher {
    /// Install its package.
    Install,
    /// Leave out the tests under it, and name them; if `CI` is set, they fail.
    LeaveOut,
}

/// Prepares programs of other projects that tests start.
///
/// # Errors
/// An installation failed or is not possible.
pub(crate) fn prepare(
    gate: &mut StepRunner,
    missing: MissingLauncher,
    programs: &[(&str, &str)],
) -> Result<(), String> {
    programs
        .iter()
        .filter(|(launcher, _)| !is_installed(launcher))
        .try_for_each(|(launcher, package)| match missing {
            MissingLauncher::Install => install(gate, launcher, package),
            MissingLauncher::LeaveOut => {
                println!(
                    "{launcher} is missing: the tests that need it are left out. `--install` installs it, as root \
                     (Debian's package {package})"
                );
                Ok(())
            }
        })
}

/// What tests start, launchers and the browser that shows the page of a trace, and Debian's packages that contain it.
pub(crate) const FOR_TESTS: [(&str, &str); 3] = [
    ("mpiexec.hydra", "mpich"),
    ("orterun", "openmpi-bin"),
    ("chromium", "chromium"),
];

/// What makes hosts on this machine, and Debian's packages that contain it.
pub(crate) const FOR_HOSTS: [(&str, &str); 2] = [("sshd", "openssh-server"), ("ip", "iproute2")];

fn install(gate: &mut StepRunner, launcher: &str, package: &str) -> Result<(), String> {
    if !programs::is_root() || !is_installed("apt-get") {
        return Err(format!(
            "{launcher} is missing, and only root on Debian may install it: \
             `sudo apt-get install --no-install-recommends {package}`, or leave `--install` out"
        ));
    }
    // Debian would start a daemon right after its installation, and no test needs one outside of its own hosts.
    let script = format!(
        "policy=/usr/sbin/policy-rc.d; [ -e $policy ] || {{ trap 'rm -f '$policy EXIT && \
         printf '#!/bin/sh\\nexit 101\\n' >$policy && chmod 755 $policy; }}; \
         waits='-o Acquire::Retries=5 -o DPkg::Lock::Timeout=300'; apt-get update -q $waits && \
         DEBIAN_FRONTEND=noninteractive apt-get install -qy $waits --no-install-recommends {package}"
    );
    gate.run(
        &format!("installing {package}, for the tests that need {launcher}"),
        &CommandLine::new("sh", &["-c", &script]),
    )
}

fn is_installed(program: &str) -> bool {
    programs::find(program).is_some()
}
