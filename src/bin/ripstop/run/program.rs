//! The program to run: a path, a name in `PATH`, or an example that is built first.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Access, access};
use serde_json::Value;

use super::LaunchError;

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
    /// Build this cargo example (in release if this command was) and run it
    #[arg(long, value_name = "NAME")]
    pub(super) example: Option<String>,

    /// Build the example with this profile of cargo
    #[arg(long, value_name = "PROFILE", requires = "example")]
    profile: Option<String>,

    /// A program and its arguments: a path, or a name to look for in PATH
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(super) command: Vec<OsString>,
}

/// An example of the package in the current folder, to be built and run.
#[derive(Debug)]
struct BuiltExample {
    name: String,
    /// Cargo's profile. `None` stands for release if this command was built with optimizations, and for dev otherwise.
    profile: Option<String>,
}

impl ProgramArgs {
    /// Finds the program, or builds the example. The words are the arguments of the example, or the program and its arguments.
    pub(super) fn find(&mut self) -> Result<LaunchProgram, LaunchError> {
        let words = std::mem::take(&mut self.command);
        let Some(name) = self.example.clone() else {
            return find(words);
        };
        let profile = self.profile.clone();
        let example = BuiltExample { name, profile };
        Ok(LaunchProgram {
            path: example.build()?,
            arguments: words,
            name: example.name,
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

impl BuiltExample {
    /// Builds the example, and returns the path that cargo reports.
    fn build(&self) -> Result<PathBuf, LaunchError> {
        let name = &self.name;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(&cargo);
        command.args(["build", "--quiet", "--message-format"]);
        command.args(["json-render-diagnostics", "--example", name]);
        command.args(["--profile", self.profile()]);
        let shown = cargo.to_string_lossy();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| {
                LaunchError::machine(format!("--example {name}: cannot start {shown}: {error}"))
            })?;
        let messages = BufReader::new(child.stdout.take().expect("it was asked for a pipe"));
        let path = messages
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| built(&line, name))
            .last();
        let built = child.wait().is_ok_and(|status| status.success());
        let failed = || {
            LaunchError::machine(format!(
                "--example {name}: `cargo build --example {name}` failed in {}",
                here()
            ))
        };
        path.filter(|_| built).ok_or_else(failed)
    }

    fn profile(&self) -> &str {
        let default = if cfg!(debug_assertions) {
            "dev"
        } else {
            "release"
        };
        self.profile.as_deref().unwrap_or(default)
    }
}

/// Returns the executable named in a line that cargo prints for each target it has built.
fn built(line: &str, name: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let target = &message["target"];
    let is_example = target["kind"]
        .as_array()
        .is_some_and(|kinds| kinds.iter().any(|kind| kind == "example"));
    (is_example && target["name"] == name)
        .then(|| message["executable"].as_str().map(PathBuf::from))?
}

fn here() -> String {
    std::env::current_dir()
        .map_or_else(|error| error.to_string(), |path| path.display().to_string())
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

    #[test]
    fn cargo_says_where_the_example_is() {
        let line = r#"{"reason":"compiler-artifact","target":{"kind":["example"],"name":"halo"},"executable":"/t/halo"}"#;
        assert_eq!(built(line, "halo"), Some("/t/halo".into()));
        assert_eq!(built(line, "ring"), None);
        assert_eq!(built("not json", "halo"), None);
        assert_eq!(built(r#"{"reason":"build-finished"}"#, "halo"), None);
    }
}
