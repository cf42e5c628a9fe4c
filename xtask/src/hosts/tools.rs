//! What this machine must have and allow.

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    process::{Command, Stdio},
};

/// What makes namespaces on this machine, and the programs that hosts need.
#[derive(Clone, Debug)]
pub(super) struct WorldTools {
    pub(super) ssh: PathBuf,
    pub(super) sshd: PathBuf,
    /// Words of `unshare` for a user that is not root.
    pub(super) as_root: &'static [&'static str],
}

impl WorldTools {
    /// Finds everything, or says what is missing and how to get it.
    pub(super) fn find() -> Result<Self, String> {
        let mut missing: Vec<&str> = PROGRAMS
            .iter()
            .filter(|(program, _)| find(program).is_none())
            .map(|(_, package)| *package)
            .collect();
        missing.dedup();
        let (Some(ssh), Some(sshd), true) = (find("ssh"), find("sshd"), missing.is_empty()) else {
            return Err(format!(
                "hosts need packages that are not installed: `sudo apt-get install --no-install-recommends {}`, or \
                 `cargo xtask ci --install` as root",
                missing.join(" ")
            ));
        };
        let as_root: &[&str] = if is_root() { &[] } else { &SUBORDINATE };
        may_make_namespaces(as_root)?;
        Ok(Self { ssh, sshd, as_root })
    }
}

fn may_make_namespaces(as_root: &[&str]) -> Result<(), String> {
    let output = Command::new("unshare")
        .args(as_root)
        .args(NAMESPACES)
        .args(["mount", "-t", "tmpfs", "tmpfs", "/run"])
        .stdin(Stdio::null())
        .output()
        .map_err(|why| format!("`unshare` does not start: {why}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    Err(if as_root.is_empty() {
        format!(
            "hosts need namespaces, which this root may not make (a container without CAP_SYS_ADMIN): {said}"
        )
    } else {
        format!(
            "hosts need root, or user namespaces with subordinate ids (`newuidmap`, a line in /etc/subuid and /etc/subgid, and \
             a system that allows them): {said}"
        )
    })
}

/// Returns where a program is, even if only root looks there.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file() && !file.starts_with("/run/hosts"))
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Programs and Debian's packages with them; programs of one package are adjacent.
const PROGRAMS: [(&str, &str); 8] = [
    ("sshd", "openssh-server"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("hostname", "hostname"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
];

/// The namespaces of the world. Its processes end with `unshare`.
pub(super) const NAMESPACES: [&str; 8] = [
    "--mount",
    "--net",
    "--uts",
    "--ipc",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// sshd changes to a user of its own, so more than one user must be mapped.
const SUBORDINATE: [&str; 3] = ["--user", "--map-root-user", "--map-auto"];
