//! The same rows for MPICH and Open MPI, by `benches/compare/instructions.c`.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use super::rows::CountedRow;
use crate::programs;

/// The program as it is built for a library.
#[derive(Debug)]
pub(super) struct PeerProgram {
    column: usize,
    path: PathBuf,
}

/// Builds the program for each library that is installed.
///
/// # Errors
/// The program does not compile.
pub(super) fn build(root: &Path, folder: &Path) -> Result<Vec<PeerProgram>, String> {
    let mut built = Vec::new();
    for (column, library) in ["mpich", "openmpi"].into_iter().enumerate() {
        let compiler = format!("mpicc.{library}");
        if programs::find(&compiler).is_none() {
            eprintln!(
                "{compiler} is missing: {library} is not counted (Debian's package lib{library}-dev)"
            );
            continue;
        }
        let path = folder.join(format!("instructions-{library}"));
        let mut command = Command::new(&compiler);
        command.args(C_FLAGS).arg("-o");
        command
            .arg(&path)
            .arg(root.join("benches/compare/instructions.c"));
        let output = command
            .output()
            .map_err(|why| format!("{compiler}: {why}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!(
                "{compiler} does not compile benches/compare/instructions.c:\n{said}"
            ));
        }
        built.push(PeerProgram { column, path });
    }
    Ok(built)
}

/// The last option silences a false alarm that MPICH's `MPI_STATUSES_IGNORE`, an invented address, provokes.
const C_FLAGS: [&str; 5] = [
    "-std=c11",
    "-O3",
    "-Wall",
    "-Wextra",
    "-Wno-stringop-overflow",
];

/// Counts a row for each library; `None` where it has no such call.
///
/// # Errors
/// A program fails.
pub(super) fn count(
    peers: &[PeerProgram],
    row: &CountedRow,
    folder: &Path,
) -> Result<[Option<f64>; 2], String> {
    let mut counts = [None; 2];
    if !ROWS.contains(&row.name) {
        return Ok(counts);
    }
    for peer in peers {
        let counted = super::per_call(folder, |calls| peer.command(row.name, calls))?;
        counts[peer.column] = Some(counted.total);
    }
    Ok(counts)
}

/// The rows of the program.
const ROWS: [&str; 11] = [
    "message",
    "channel",
    "wildcard",
    "probe",
    "bcast",
    "barrier",
    "all_reduce",
    "fence",
    "put",
    "fetch_add",
    "pscw",
];

impl PeerProgram {
    fn command(&self, row: &str, calls: u32) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args([row, &calls.to_string()])
            .envs(super::PLAIN_COPIES);
        // Open MPI looks for its own programs and for a folder of its own. It refuses to start for root, as in a container.
        let kept = ["PATH", "HOME", "TMPDIR"].map(|name| (name, env::var_os(name)));
        let kept = kept
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        command.envs(kept);
        command
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    }
}
