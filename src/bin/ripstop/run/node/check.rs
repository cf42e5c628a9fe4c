//! Checks that the ranks can be started, before any rank of the job is.

use std::collections::{BTreeMap, btree_map::Entry};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{NodeHelper, START_FAILED};
use crate::run::affinity;
use crate::run::hosts::frame::HelperFrame;
use crate::run::hosts::setup::{HostProgram, NodeSetup};
use crate::run::job::raise_descriptor_limit;
use crate::run::program::{self, LaunchProgram};

impl NodeHelper {
    /// Takes the setup, and says whether the ranks can be started.
    pub(super) fn check(&mut self) {
        let Some(setup) = NodeSetup::parse(&std::mem::take(&mut self.pieces)) else {
            return self.refuse(
                START_FAILED,
                "the launcher's description of the job makes no sense",
            );
        };
        match find(&setup) {
            Ok(programs) => {
                self.programs = Some(programs);
                self.setup = Some(setup);
                self.channel.send(&HelperFrame::Ready);
            }
            Err((code, why)) => self.refuse(code, &why),
        }
    }
}

/// Goes to the directory of the job, and finds the programs of this host's ranks there, by their index in the job. A program of
/// other hosts need not be here.
fn find(setup: &NodeSetup) -> Result<BTreeMap<usize, LaunchProgram>, (u8, String)> {
    let folder = &setup.directory;
    std::env::set_current_dir(folder).map_err(|why| {
        (
            START_FAILED,
            format!("directory {}: {why}", folder.display()),
        )
    })?;
    let ranks = u32::try_from(setup.ranks.len()).unwrap_or(u32::MAX);
    raise_descriptor_limit(4 * u64::from(ranks)).map_err(|why| (START_FAILED, why.sentence))?;
    affinity::named(&setup.cpus, &setup.ranks).map_err(|why| (START_FAILED, why))?;
    let mut programs = BTreeMap::new();
    for &rank in &setup.ranks {
        let at = setup.program_of(rank);
        if let Entry::Vacant(place) = programs.entry(at) {
            place.insert(find_one(setup, &setup.programs[at])?);
        }
    }
    Ok(programs)
}

fn find_one(setup: &NodeSetup, program: &HostProgram) -> Result<LaunchProgram, (u8, String)> {
    let path = locate(setup, &program.program)?;
    check_machine(&path)?;
    check_interpreter(&path)?;
    Ok(LaunchProgram {
        path,
        arguments: program.arguments.clone(),
        name: program.program.to_string_lossy().into_owned(),
        trace: None,
    })
}

fn locate(setup: &NodeSetup, name: &OsStr) -> Result<PathBuf, (u8, String)> {
    let shown = Path::new(name).display();
    if name.as_encoded_bytes().contains(&b'/') {
        return check_program(Path::new(name));
    }
    let path = setup.environment.iter().find(|(name, _)| name == "PATH");
    let path = path.map_or_else(OsString::new, |(_, path)| path.clone());
    program::first_in(&path, name).ok_or_else(|| (NOT_FOUND, format!("no program {shown} in PATH")))
}

/// Refuses a program for another kind of machine. A script is for all of them.
fn check_machine(path: &Path) -> Result<(), (u8, String)> {
    let (own, theirs) = (machine(Path::new("/proc/self/exe")), machine(path));
    if own.is_none() || theirs.is_none() || own == theirs {
        return Ok(());
    }
    let path = path.display();
    Err((
        NOT_EXECUTABLE,
        format!("{path} is a program for another kind of processor"),
    ))
}

/// Refuses a script whose interpreter is not there, which the system would say only at its start.
fn check_interpreter(script: &Path) -> Result<(), (u8, String)> {
    let Some(path) = interpreter(script) else {
        return Ok(());
    };
    check_program(&path).map(|_| ()).map_err(|(code, why)| {
        let script = script.display();
        (code, format!("interpreter of {script}: {why}"))
    })
}

/// Returns the path of a program that can be run, or the exit code of a shell and the reason.
fn check_program(path: &Path) -> Result<PathBuf, (u8, String)> {
    program::check(path).map_err(|why| {
        let code = if path.exists() {
            NOT_EXECUTABLE
        } else {
            NOT_FOUND
        };
        (code, why.sentence)
    })
}

/// Returns the interpreter that the first line of a script names.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    let file = File::open(script).ok()?;
    file.take(LINE_MAX).read_to_end(&mut line).ok()?;
    let line = line
        .strip_prefix(b"#!")?
        .split(|&byte| byte == b'\n')
        .next()?;
    let blank = |byte: &u8| [b' ', b'\t'].contains(byte);
    let path = line.split(blank).find(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(path).into())
}

/// Returns the exit code for a program that the system did not start, although the checks had found it.
pub(super) fn code_of(why: &io::Error) -> u8 {
    match why.raw_os_error() {
        Some(libc::ENOENT) => NOT_FOUND,
        Some(libc::EACCES | libc::ENOEXEC) => NOT_EXECUTABLE,
        _ => START_FAILED,
    }
}

/// Returns the bytes of an ELF file that name its kind of machine.
fn machine(path: &Path) -> Option<(u8, [u8; 2])> {
    let mut header = [0; 20];
    File::open(path).ok()?.read_exact(&mut header).ok()?;
    header
        .starts_with(b"\x7fELF")
        .then_some((header[4], [header[18], header[19]]))
}

/// Returns what tells this host from others: two helpers that say the same run on one host.
pub(super) fn identity() -> String {
    let uname = rustix::system::uname();
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let space: &OsStr = space.as_os_str();
    let parts = [
        &*uname.nodename().to_string_lossy(),
        machine.trim(),
        &space.to_string_lossy(),
    ];
    parts.join(" ")
}

/// The exit codes of a shell for a program that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Linux reads so many bytes of a script to find its interpreter.
const LINE_MAX: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refuses_has_the_code_of_a_shell() {
        for (why, code) in [
            (libc::ENOENT, 127),
            (libc::EACCES, 126),
            (libc::ENOEXEC, 126),
            (libc::EAGAIN, 125),
        ] {
            assert_eq!(code_of(&io::Error::from_raw_os_error(why)), code, "{why}");
        }
    }
}
