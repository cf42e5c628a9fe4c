//! Debian's packages, unpacked here and not installed: an installed kernel would become this machine's own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::packages;

/// Returns the package with the kernel that Debian ships now.
pub(super) fn kernel_package() -> Result<String, String> {
    depends_of("linux-image-amd64").or_else(|_| {
        packages::update()?;
        depends_of("linux-image-amd64")
    })
}

/// Returns the packages that installing this one would bring.
pub(super) fn needed_for(package: &str) -> Result<Vec<String>, String> {
    let simulated = || {
        let mut command = Command::new("apt-get");
        command.args(["install", "--simulate", "-q", "--no-install-recommends"]);
        output(command.arg(package))
    };
    let text = simulated().or_else(|_| {
        packages::update()?;
        simulated()
    })?;
    let names = text.lines().filter_map(|line| line.strip_prefix("Inst "));
    let names = names.filter_map(|rest| rest.split_whitespace().next());
    Ok(names.map(str::to_owned).collect())
}

/// Unpacks the files of a package whose paths match one of the patterns.
pub(super) fn unpack(package: &str, patterns: &[&str], folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let deb = download(package, folder).or_else(|_| {
        packages::update()?;
        download(package, folder)
    })?;
    extract(&deb, patterns, folder)?;
    fs::remove_file(&deb).map_err(|why| format!("{}: {why}", deb.display()))
}

fn depends_of(package: &str) -> Result<String, String> {
    let mut command = Command::new("apt-cache");
    let text = output(command.args(["depends", "--important", package]))?;
    let name = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "));
    name.map(str::to_owned).ok_or_else(|| {
        format!("apt knows no package {package}: the guest needs a machine with Debian's packages")
    })
}

fn download(package: &str, folder: &Path) -> Result<PathBuf, String> {
    let mut command = Command::new("apt-get");
    output(
        command
            .args(["download", "-q", "-o", "Acquire::Retries=5", package])
            .current_dir(folder),
    )?;
    let entries = fs::read_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or_else(|| format!("apt-get downloaded no {package}"))
}

fn extract(deb: &Path, patterns: &[&str], folder: &Path) -> Result<(), String> {
    let mut unpacker = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(deb)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|why| format!("`dpkg-deb` does not start: {why}"))?;
    let archive = unpacker.stdout.take().ok_or("no archive to read")?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--wildcards", "--directory"])
        .arg(folder)
        .args(patterns)
        .stdin(archive);
    let extracted = output(&mut tar);
    let status = unpacker.wait().map_err(|why| why.to_string())?;
    if !status.success() {
        return Err(format!("dpkg-deb cannot read {}", deb.display()));
    }
    extracted.map(drop)
}

/// Returns the output of a command, if it succeeds.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|why| format!("`{name}` does not start: {why}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{name}` fails: {said}"))
}
