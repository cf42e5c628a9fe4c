//! The program to run: a path, a name in `PATH`, or one that cargo builds first.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::LaunchError;
use super::cargo_target::CargoTargetArgs;

/// An existing, executable program, and its arguments.
#[derive(Debug)]
pub(super) struct LaunchProgram {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// The name that the user gave.
    pub(super) name: String,
    /// Where its ranks record traces, if that is not in their environment.
    pub(super) trace: Option<PathBuf>,
}

/// What the ranks run.
#[derive(clap::Args, Debug)]
pub(super) struct ProgramArgs {
    #[command(flatten)]
    pub(super) cargo: CargoTargetArgs,

    /// A program and its arguments: a path, or a name to look for in PATH
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(super) command: Vec<OsString>,
}

impl ProgramArgs {
    /// Finds the program, or builds it. The words are the arguments of what is built, or the program and its arguments.
    pub(super) fn find(&mut self) -> Result<LaunchProgram, LaunchError> {
        let words = std::mem::take(&mut self.command);
        let Some(target) = self.cargo.target() else {
            return find(words);
        };
        Ok(LaunchProgram {
            path: self.cargo.build(target)?,
            arguments: words,
            name: target.name.to_owned(),
            trace: None,
        })
    }
}

fn find(mut words: Vec<OsString>) -> Result<LaunchProgram, LaunchError> {
    let program = words.remove(0);
    let path = if program.as_encoded_bytes().contains(&b'/') {
        check(Path::new(&program))?
    } else {
        in_path(&program)?
    };
    Ok(LaunchProgram {
        path,
        arguments: words,
        name: program.to_string_lossy().into_owned(),
        trace: None,
    })
}

/// Returns the path if it is that of a program.
pub(super) fn check(path: &Path) -> Result<PathBuf, LaunchError> {
    let shown = path.display();
    if path.is_dir() {
        return Err(LaunchError::usage(format!(
            "{shown} is a directory, not a program"
        )));
    }
    if let Err(error) = path.metadata() {
        return Err(LaunchError::usage(format!("cannot run {shown}: {error}")));
    }
    if !executable(path) {
        return Err(LaunchError::usage(format!(
            "{shown} is not executable; is it the program? `chmod +x {shown}` if so"
        )));
    }
    Ok(path.to_owned())
}

fn in_path(name: &OsStr) -> Result<PathBuf, LaunchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(found) = first_in(&path, name) {
        return Ok(found);
    }
    let shown = name.to_string_lossy();
    let hint = if Path::new(name).is_file() {
        format!("there is a file of that name here: write ./{shown}")
    } else {
        format!("write its path, or --example {shown} if it is an example of this package")
    };
    Err(LaunchError::usage(format!(
        "no program {shown} in PATH; {hint}"
    )))
}

/// Returns the first program of this name in the folders of `path`.
pub(super) fn first_in(path: &OsStr, name: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(|file| executable(file))
}

fn executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(words: &[&str]) -> String {
        let words = words.iter().map(OsString::from).collect();
        find(words).unwrap_err().sentence
    }

    #[test]
    fn a_name_is_looked_for_in_the_path() {
        let words = vec!["sh".into(), "-c".into()];
        let program = find(words).unwrap();
        assert!(program.path.is_absolute() && program.path.ends_with("sh"));
        assert_eq!(program.arguments, ["-c"]);
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_reason() {
        assert!(refusal(&["no-such-program"]).contains("no program no-such-program in PATH"));
        assert!(refusal(&["./no-such-program"]).contains("No such file"));
        assert!(refusal(&["/tmp"]).contains("is a directory"));
        assert!(refusal(&["/etc/passwd"]).contains("not executable"));
    }
}
