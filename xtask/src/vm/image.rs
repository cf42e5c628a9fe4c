//! The files from which the guest starts: a kernel, modules and a shell, taken from Debian's packages once and kept.

use std::{
    fs::{self, File},
    io::{Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    process,
};

use crate::step;

use super::{
    cpio::CpioArchive,
    emulator::{self, VmEmulator},
    fetch, kernel, modules,
};

/// A kernel and the files that it needs to reach the files of this machine.
#[derive(Debug)]
pub(super) struct VmImage {
    folder: PathBuf,
    /// Emulator that runs this image.
    pub(super) emulator: VmEmulator,
}

impl VmImage {
    /// Returns the image under the target folder, and makes it if there is none.
    pub(super) fn at(root: &Path) -> Result<Self, String> {
        let all = step::target_dir(root).join("vm");
        fs::create_dir_all(&all).map_err(|why| format!("{}: {why}", all.display()))?;
        sweep(&all);
        let emulator = match VmEmulator::installed() {
            Some(emulator) => emulator,
            None => VmEmulator::unpacked(kept(&all, EMULATOR, emulator::unpack)?),
        };
        let folder = match newest(&all) {
            Some(folder) => folder,
            None => {
                let package = fetch::kernel_package()?;
                eprintln!("vm: fetching {package} and busybox-static, once");
                kept(&all, &format!("{package}{LAYOUT}"), |draft| {
                    make(&package, draft)
                })?
            }
        };
        Ok(Self { folder, emulator })
    }

    /// Returns the kernel as an ELF file.
    pub(super) fn kernel(&self) -> PathBuf {
        self.folder.join(KERNEL)
    }

    /// Returns the first file system, with these scripts in it, as a file without a name.
    pub(super) fn initramfs(&self, settings: &str, command: &str) -> Result<File, String> {
        let named = |why: std::io::Error| format!("{}: {why}", self.folder.display());
        let mut archive = CpioArchive::default();
        FOLDERS.iter().for_each(|folder| archive.folder(folder));
        let shell = fs::read(self.folder.join(SHELL)).map_err(named)?;
        archive.program("bin/busybox", &shell);
        for (name, bytes) in self.modules()? {
            archive.program(&format!("modules/{name}"), &bytes);
        }
        let scripts = [
            ("init", include_str!("guest/init.sh")),
            ("setup", include_str!("guest/setup.sh")),
            ("cable", include_str!("guest/cable.sh")),
            ("settings", settings),
            ("command", command),
        ];
        scripts
            .iter()
            .for_each(|(name, text)| archive.program(name, text.as_bytes()));
        nameless(&self.folder, &archive.finish()).map_err(named)
    }

    fn modules(&self) -> Result<Vec<(String, Vec<u8>)>, String> {
        let folder = self.folder.join(MODULES);
        let named = |why: std::io::Error| format!("{}: {why}", folder.display());
        let mut modules = Vec::new();
        for entry in fs::read_dir(&folder).map_err(named)? {
            let entry = entry.map_err(named)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            modules.push((name, fs::read(entry.path()).map_err(named)?));
        }
        modules.sort();
        Ok(modules)
    }
}

/// Returns the folder of this name. It is made once, and completely or not at all.
fn kept(
    all: &Path,
    name: &str,
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let folder = all.join(name);
    if folder.exists() {
        return Ok(folder);
    }
    let draft = all.join(format!("{DRAFT}{}", process::id()));
    make(&draft).inspect_err(|_| drop(fs::remove_dir_all(&draft)))?;
    // Another process that made an image meanwhile has made the same one.
    if fs::rename(&draft, &folder).is_err() {
        drop(fs::remove_dir_all(&draft));
    }
    Ok(folder)
}

fn make(package: &str, draft: &Path) -> Result<(), String> {
    let tree = draft.join("tree");
    fetch::unpack(package, &FROM_KERNEL, &tree)?;
    fetch::unpack("busybox-static", &["./bin/busybox"], &tree)?;
    let version = package.trim_start_matches("linux-image-");
    let image = tree.join("boot").join(format!("vmlinuz-{version}"));
    kernel::unpack(&image, &draft.join(KERNEL))?;
    modules::collect(&tree, &draft.join(MODULES))?;
    let named = |why: std::io::Error| format!("{}: {why}", draft.display());
    fs::rename(tree.join("bin/busybox"), draft.join(SHELL)).map_err(named)?;
    fs::remove_dir_all(&tree).map_err(named)
}

/// Removes the draft of a run that was killed while it made an image.
fn sweep(all: &Path) {
    for (name, path) in entries(all) {
        let maker = name.strip_prefix(DRAFT);
        if maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            drop(fs::remove_dir_all(path));
        }
    }
}

fn newest(all: &Path) -> Option<PathBuf> {
    let whole = |(name, _): &(String, PathBuf)| !name.starts_with(DRAFT) && name.ends_with(LAYOUT);
    entries(all)
        .into_iter()
        .filter(whole)
        .max()
        .map(|(_, path)| path)
}

fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            (
                entry.file_name().to_string_lossy().into_owned(),
                entry.path(),
            )
        })
        .collect()
}

/// Returns a file that is gone once its last descriptor is closed.
fn nameless(folder: &Path, bytes: &[u8]) -> std::io::Result<File> {
    let path = folder.join(format!("initramfs-{}", process::id()));
    let mut options = File::options();
    let mut file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    file.write_all(bytes)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

const DRAFT: &str = "draft-";
const EMULATOR: &str = "qemu";
const KERNEL: &str = "vmlinux";
const MODULES: &str = "modules";
const SHELL: &str = "busybox";

/// The end of an image's name. It changes whenever other modules are collected.
const LAYOUT: &str = ".1";

const FOLDERS: [&str; 8] = [
    "bin", "dev", "proc", "sys", "lower", "upper", "merged", "modules",
];

/// All folders that contain one of the modules.
const FROM_KERNEL: [&str; 10] = [
    "./boot/vmlinuz-*",
    "*/modules.builtin",
    "*/kernel/crypto/*",
    "*/kernel/drivers/char/virtio_console.ko*",
    "*/kernel/drivers/infiniband/*",
    "*/kernel/drivers/net/veth.ko*",
    "*/kernel/drivers/virtio/*",
    "*/kernel/fs/*",
    "*/kernel/lib/*",
    "*/kernel/net/*",
];
