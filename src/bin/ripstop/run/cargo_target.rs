//! A program that cargo builds first: an example or a binary of the package in the current folder.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::ArgGroup;
use serde_json::Value;

use super::LaunchError;

/// What cargo builds, and how: options with the names that they have in cargo.
#[derive(clap::Args, Debug, Default)]
#[command(group = ArgGroup::new(TARGET).args(["example", "bin"]))]
pub(super) struct CargoTargetArgs {
    /// Build this cargo example (in release if this command was) and run it
    #[arg(long, value_name = "NAME")]
    example: Option<String>,

    /// Build this binary of the package and run it
    #[arg(long, value_name = "NAME")]
    bin: Option<String>,

    /// Build it with this profile of cargo
    #[arg(long, value_name = "PROFILE", requires = TARGET)]
    profile: Option<String>,

    /// Build it with these features of the package, separated by commas, and with those that it requires
    #[arg(short = 'F', long, value_name = "FEATURES", requires = TARGET)]
    features: Vec<String>,

    /// Build it with all features of the package
    #[arg(long, requires = TARGET)]
    all_features: bool,

    /// Build it without the default features of the package
    #[arg(long, requires = TARGET)]
    no_default_features: bool,
}

/// Name of the group of options of which one says what is built.
const TARGET: &str = "cargo-target";

/// An example or a binary, as the command line names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CargoTarget<'a> {
    /// What cargo calls it: `example` or `bin`.
    kind: &'static str,
    pub(super) name: &'a str,
}

impl CargoTargetArgs {
    /// Returns what to build, if these options name anything.
    pub(super) fn target(&self) -> Option<CargoTarget<'_>> {
        let example = self.example.as_deref().map(|name| ("example", name));
        let bin = self.bin.as_deref().map(|name| ("bin", name));
        let (kind, name) = example.or(bin)?;
        Some(CargoTarget { kind, name })
    }

    /// Builds the target, and returns the path that cargo reports.
    pub(super) fn build(&self, target: CargoTarget<'_>) -> Result<PathBuf, LaunchError> {
        let mut command = cargo();
        let mut child = command
            .args(self.words(target, &metadata()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| {
                let shown = command.get_program().display();
                LaunchError::machine(format!("{target}: cannot start {shown}: {error}"))
            })?;
        let messages = BufReader::new(child.stdout.take().expect("it was asked for a pipe"));
        let path = messages
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| target.built(&line))
            .last();
        let built = child.wait().is_ok_and(|status| status.success());
        path.filter(|_| built).ok_or_else(|| Self::failure(target))
    }

    /// Returns cargo's words for building the target, with the features that it requires.
    fn words(&self, target: CargoTarget<'_>, metadata: &Value) -> Vec<OsString> {
        let option = format!("--{}", target.kind);
        let mut words = vec!["build", "--quiet", "--message-format"];
        words.extend(["json-render-diagnostics", &option, target.name]);
        words.extend(["--profile", self.profile()]);
        let asked = self.features.iter().map(String::as_str);
        for features in asked.chain(target.required_features(metadata)) {
            words.extend(["--features", features]);
        }
        words.extend(self.all_features.then_some("--all-features"));
        words.extend(self.no_default_features.then_some("--no-default-features"));
        words.into_iter().map(OsString::from).collect()
    }

    fn profile(&self) -> &str {
        let default = if cfg!(debug_assertions) {
            "dev"
        } else {
            "release"
        };
        self.profile.as_deref().unwrap_or(default)
    }

    /// Says that the build failed, and where. Cargo has already printed why.
    fn failure(target: CargoTarget<'_>) -> LaunchError {
        let here = std::env::current_dir()
            .map_or_else(|error| error.to_string(), |path| path.display().to_string());
        LaunchError::machine(format!("{target}: `cargo build {target}` failed in {here}"))
    }
}

impl CargoTarget<'_> {
    /// Returns the executable named in a line that cargo prints for each target it has built.
    fn built(self, line: &str) -> Option<PathBuf> {
        let message: Value = serde_json::from_str(line).ok()?;
        let path = message["executable"].as_str()?;
        self.is(&message["target"]).then(|| path.into())
    }

    /// Returns the features that this target requires; none if several packages have a target of this name, because cargo chooses
    /// among them.
    fn required_features(self, metadata: &Value) -> impl Iterator<Item = &str> {
        let mut found = array(&metadata["packages"])
            .flat_map(|package| array(&package["targets"]))
            .filter(move |described| self.is(described));
        let only = found.next().filter(|_| found.next().is_none());
        only.into_iter()
            .flat_map(|described| strings(&described["required-features"]))
    }

    fn is(self, target: &Value) -> bool {
        target["name"] == self.name && strings(&target["kind"]).any(|kind| kind == self.kind)
    }
}

/// Formats the target as the option that names it.
impl fmt::Display for CargoTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{} {}", self.kind, self.name)
    }
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Returns what cargo says of the packages in the current folder; nothing if it fails.
fn metadata() -> Value {
    cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::null())
        .output()
        .ok()
        .and_then(|output| serde_json::from_slice(&output.stdout).ok())
        .unwrap_or_default()
}

fn array(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    array(list).filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use serde_json::json;

    use super::*;

    const HALO: CargoTarget<'_> = CargoTarget {
        kind: "example",
        name: "halo",
    };

    #[test]
    fn cargo_says_where_the_example_is() {
        let line = r#"{"reason":"compiler-artifact","target":{"kind":["example"],"name":"halo"},"executable":"/t/halo"}"#;
        assert_eq!(HALO.built(line), Some("/t/halo".into()));
        assert_eq!(
            CargoTarget {
                name: "ring",
                ..HALO
            }
            .built(line),
            None
        );
        assert_eq!(
            CargoTarget {
                kind: "bin",
                ..HALO
            }
            .built(line),
            None
        );
        assert_eq!(HALO.built("not json"), None);
        assert_eq!(HALO.built(r#"{"reason":"build-finished"}"#), None);
    }

    #[test]
    fn a_target_is_built_with_the_features_that_it_requires() {
        let targets = json!([
            { "kind": ["bin"], "name": "halo" },
            { "kind": ["example"], "name": "halo", "required-features": ["png", "simd"] },
        ]);
        let words = |target: CargoTarget<'_>, metadata: &Value| {
            let args = CargoTargetArgs {
                features: vec!["fast,png".to_owned()],
                ..CargoTargetArgs::default()
            };
            let words = args.words(target, metadata);
            let at = words.iter().position(|word| word == "--features");
            words[at.unwrap()..].join(OsStr::new(" "))
        };
        let one = json!({ "packages": [{ "targets": targets }] });
        let expected = "--features fast,png --features png --features simd";
        assert_eq!(words(HALO, &one), expected);
        let binary = CargoTarget {
            kind: "bin",
            ..HALO
        };
        assert_eq!(words(binary, &one), "--features fast,png");
        let two = json!({ "packages": [{ "targets": targets }, { "targets": targets }] });
        assert_eq!(words(HALO, &two), "--features fast,png", "cargo chooses");
        assert_eq!(words(HALO, &Value::Null), "--features fast,png");
    }
}
