//! Launchers of other projects, under which some tests start ranks.

use std::{env, process::Command};

use crate::step::{CommandLine, StepRunner};

/// What to do if a launcher is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingLauncher {
    /// Install its package.
    Install,
    /// Leave out the tests under it, and name them; if `CI` is set, they fail.
    LeaveOut,
}

/// Prepares the launchers under which tests start ranks.
///
/// # Errors
/// An installation failed or is not possible.
pub(crate) fn prepare(gate: &mut StepRunner, missing: MissingLauncher) -> Result<(), String> {
    LAUNCHERS
        .iter()
        .filter(|(launcher, _)| !is_installed(launcher))
        .try_for_each(|(launcher, package)| match missing {
            MissingLauncher::Install => install(gate, launcher, package),
            MissingLauncher::LeaveOut => {
                println!(
                    "{launcher} is missing: the tests that start under it are left out. `--install` installs it, as root \
                     (Debian's package {package})"
                );
                Ok(())
            }
        })
}

/// Launchers, and Debian's packages that contain them.
const LAUNCHERS: [(&str, &str); 2] = [("mpiexec.hydra", "mpich"), ("orterun", "openmpi-bin")];

fn install(gate: &mut StepRunner, launcher: &str, package: &str) -> Result<(), String> {
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout == b"0\n");
    if !is_root || !is_installed("apt-get") {
        return Err(format!(
            "{launcher} is missing, and only root on Debian may install it: \
             `sudo apt-get install --no-install-recommends {package}`, or leave `--install` out"
        ));
    }
    let script = format!(
        "waits='-o Acquire::Retries=5 -o DPkg::Lock::Timeout=300'; apt-get update -q $waits && \
         DEBIAN_FRONTEND=noninteractive apt-get install -qy $waits --no-install-recommends {package}"
    );
    gate.run(
        &format!("installing {package}, for the tests that start under {launcher}"),
        &CommandLine::new("sh", &["-c", &script]),
    )
}

fn is_installed(program: &str) -> bool {
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}
