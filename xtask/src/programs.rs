//! Programs of this machine, and Debian's packages with them.

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Returns where a program is, even if only root looks there.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        // Among hosts, `ssh` is a wrapper of the world, which would start itself.
        .filter(|folder| !folder.starts_with(WORLD))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Returns the packages of the programs that are not there. Programs of one package are adjacent.
pub(crate) fn missing(programs: &[(&str, &'static str)]) -> Vec<&'static str> {
    let absent = programs
        .iter()
        .filter(|(program, _)| find(program).is_none());
    let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

pub(crate) fn is_root() -> bool {
    fs::metadata(Path::new("/proc/self")).is_ok_and(|process| process.uid() == 0)
}

/// The folder of a world of hosts.
const WORLD: &str = "/run/hosts";
