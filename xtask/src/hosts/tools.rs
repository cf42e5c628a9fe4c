//! What this machine must have and allow.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::programs;

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
        let missing = programs::missing(&PROGRAMS);
        let [ssh, sshd, ip] = ["ssh", "sshd", "ip"].map(programs::find);
        let (Some(ssh), Some(sshd), Some(ip), true) = (ssh, sshd, ip, missing.is_empty()) else {
            return Err(format!(
                "hosts need packages that are not installed: `sudo apt-get install --no-install-recommends {}`, or \
                 `cargo xtask ci --install` as root",
                missing.join(" ")
            ));
        };
        let as_root: &[&str] = if programs::is_root() {
            &[]
        } else {
            &SUBORDINATE
        };
        may_make_hosts(as_root, &ip)?;
        Ok(Self { ssh, sshd, as_root })
    }
}

/// Tries what a world begins with. All of it ends with the namespaces.
fn may_make_hosts(as_root: &[&str], ip: &Path) -> Result<(), String> {
    let output = Command::new("unshare")
        .args(as_root)
        .args(NAMESPACES)
        .args(["sh", "-c", PROBE])
        .arg(ip)
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
            "hosts need namespaces, and bridges in them, which this root may not make (a container without CAP_SYS_ADMIN): {said}"
        )
    } else {
        format!(
            "hosts need root, or user namespaces with subordinate ids (`newuidmap`, a line in /etc/subuid and /etc/subgid, and \
             a system that allows them): {said}"
        )
    })
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

/// Its argument is the path of `ip`.
const PROBE: &str = r#"mount -t tmpfs tmpfs /run && "$0" link add switch0 type bridge &&
    "$0" link add h1 type veth peer name eth0"#;

/// sshd changes to a user of its own, so more than one user must be mapped.
const SUBORDINATE: [&str; 3] = ["--user", "--map-root-user", "--map-auto"];
