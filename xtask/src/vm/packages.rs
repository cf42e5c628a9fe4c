//! The packages that must be installed on this machine. They are installed here if that is allowed.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::programs;

/// Installs missing packages, or returns how to. They are those of the guest, and of `more`, which are files with their
/// packages.
pub(super) fn require(more: &[(&str, &'static str)]) -> Result<(), String> {
    if env::consts::ARCH != "x86_64" {
        return Err(format!(
            "the virtual machine is an x86_64, this one is {}; run it on an x86_64 machine",
            env::consts::ARCH
        ));
    }
    let missing = missing(more);
    if missing.is_empty() {
        return Ok(());
    }
    if !programs::is_root() {
        return Err(format!(
            "the virtual machine needs packages that are not installed:\n\n    sudo apt-get install --no-install-recommends {}\n",
            missing.join(" ")
        ));
    }
    eprintln!("vm: installing {}", missing.join(" "));
    install(&missing).or_else(|_| {
        // The lists of packages may be missing, or too old to find anything.
        update()?;
        install(&missing)
    })
}

/// Updates the lists of packages, if this process is root.
pub(super) fn update() -> Result<(), String> {
    if programs::is_root() {
        apt(&["update", "-q"])
    } else {
        Err("apt's lists of packages are missing or old: `sudo apt-get update`".to_owned())
    }
}

/// Files that tests in the guest need besides, and their packages: tests compare a binding with the C header.
pub(super) const FOR_TESTS: [(&str, &str); 2] = [
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/bin/cc", "gcc"),
];

fn missing(more: &[(&str, &'static str)]) -> Vec<&'static str> {
    let mut missing = programs::missing(&PROGRAMS);
    if !PROVIDERS
        .iter()
        .any(|folder| has_provider(Path::new(folder)))
    {
        missing.push("ibverbs-providers");
    }
    let absent = |(file, _): &&(&str, _)| !Path::new(file).exists();
    missing.extend(more.iter().filter(absent).map(|(_, package)| *package));
    missing.dedup();
    missing
}

fn has_provider(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|entries| {
        entries
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with("librxe-"))
    })
}

fn install(packages: &[&str]) -> Result<(), String> {
    // Installing must not remove packages that other programs need.
    let options = [
        "install",
        "-y",
        "-q",
        "--no-install-recommends",
        "--no-remove",
    ];
    apt(&[&options, packages].concat())
}

fn apt(words: &[&str]) -> Result<(), String> {
    let output = Command::new("apt-get")
        .args(words)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .map_err(|why| format!("`apt-get` does not start: {why}; the packages are Debian's"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "`apt-get {}` fails:\n{}",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// A program and Debian's package with it; programs of one package are adjacent.
const PROGRAMS: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("rdma", "iproute2"),
    ("setpriv", "util-linux"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("tar", "tar"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("ib_write_bw", "perftest"),
];

/// The folder where libibverbs keeps its device libraries.
const PROVIDERS: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/libibverbs",
    "/usr/lib64/libibverbs",
];
