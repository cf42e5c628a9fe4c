//! QEMU: the installed one, or Debian's packages of it, unpacked and not installed. Installing them could remove other
//! packages: a newer qemu-utils, for example, conflicts with an older QEMU.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::fetch;
use crate::programs;

/// A QEMU that can be started.
#[derive(Debug)]
pub(super) struct VmEmulator {
    /// The folder where it is unpacked; `None` if it is installed.
    folder: Option<PathBuf>,
}

impl VmEmulator {
    pub(super) fn installed() -> Option<Self> {
        programs::find(PROGRAM).map(|_| Self { folder: None })
    }

    /// Returns a QEMU that was [unpacked](unpack) in this folder.
    pub(super) const fn unpacked(folder: PathBuf) -> Self {
        let folder = Some(folder);
        Self { folder }
    }

    /// Returns the beginning of QEMU's command line, to which the caller adds arguments. QEMU ends with this process,
    /// however this process ends.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        let Some(folder) = &self.folder else {
            command.arg(PROGRAM);
            return command;
        };
        let libraries = folder.join(LIBRARIES);
        command
            .env("QEMU_MODULE_DIR", libraries.join("qemu"))
            .env("LD_LIBRARY_PATH", libraries)
            .arg(folder.join("usr/bin").join(PROGRAM));
        for data in DATA {
            command.arg("-L").arg(folder.join(data));
        }
        command
    }
}

/// Unpacks QEMU and the packages that it needs and this machine does not have.
pub(super) fn unpack(folder: &Path) -> Result<(), String> {
    let names = fetch::needed_for(PACKAGE)?;
    eprintln!("vm: fetching {PACKAGE}, once: {} packages", names.len());
    names
        .iter()
        .try_for_each(|name| fetch::unpack(name, &["./usr/*"], folder))
}

const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Folders in which an unpacked QEMU looks for firmware.
const DATA: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];

#[cfg(test)]
mod tests {
    use super::VmEmulator;

    #[test]
    fn an_unpacked_one_finds_its_libraries_and_firmware() {
        let command = VmEmulator::unpacked("/t/qemu".into()).command();
        let words = format!("{command:?}");
        for part in [
            "LD_LIBRARY_PATH=\"/t/qemu/usr/lib/x86_64-linux-gnu\"",
            "QEMU_MODULE_DIR=\"/t/qemu/usr/lib/x86_64-linux-gnu/qemu\"",
            "\"/t/qemu/usr/bin/qemu-system-x86_64\" \"-L\" \"/t/qemu/usr/share/qemu\"",
        ] {
            assert!(words.contains(part), "{words}");
        }
    }
}
