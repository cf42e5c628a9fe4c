//! A program that cargo builds first: an example or a binary of the package in the current folder.

use std::collections::BTreeSet;
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

    /// Build it with these features of the package, separated by commas
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
            .args(self.words(target))
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
        path.filter(|_| built).ok_or_else(|| self.failure(target))
    }

    /// Returns cargo's words for building the target.
    fn words(&self, target: CargoTarget<'_>) -> Vec<OsString> {
        let option = format!("--{}", target.kind);
        let mut words = vec!["build", "--quiet", "--message-format"];
        words.extend(["json-render-diagnostics", &option, target.name]);
        words.extend(["--profile", self.profile()]);
        for features in &self.features {
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

    /// Says why the build failed. Cargo has already printed its own errors.
    fn failure(&self, target: CargoTarget<'_>) -> LaunchError {
        let missing = self.missing_features(target, &metadata());
        if !missing.is_empty() {
            let names = missing.join(",");
            return LaunchError::usage(format!(
                "{target} needs cargo features that are not enabled ({names}): add --features {names}"
            ));
        }
        let here = std::env::current_dir()
            .map_or_else(|error| error.to_string(), |path| path.display().to_string());
        LaunchError::machine(format!("{target}: `cargo build {target}` failed in {here}"))
    }

    /// Returns the features that the target requires and that these options do not enable, according to cargo's metadata.
    fn missing_features(&self, target: CargoTarget<'_>, metadata: &Value) -> Vec<String> {
        let packages = metadata["packages"].as_array().into_iter().flatten();
        let described = packages
            .filter_map(|package| Some((package, target.described_in(package)?)))
            .next();
        let Some((package, described)) = described else {
            return Vec::new();
        };
        let enabled = self.enabled(package);
        strings(&described["required-features"])
            .filter(|&feature| !enabled.contains(feature))
            .map(str::to_owned)
            .collect()
    }

    /// Returns the features of the package that these options enable, and those that these enable in turn.
    fn enabled<'a>(&'a self, package: &'a Value) -> BTreeSet<&'a str> {
        let features = &package["features"];
        if self.all_features {
            let all = features.as_object().into_iter().flatten();
            return all.map(|(name, _)| name.as_str()).collect();
        }
        let mut found: Vec<&str> = self.features.iter().flat_map(|it| names(it)).collect();
        found.extend((!self.no_default_features).then_some("default"));
        let package = package["name"].as_str().unwrap_or_default();
        let mut enabled = BTreeSet::new();
        while let Some(name) = found.pop() {
            let name = match name.split_once('/') {
                Some((of, name)) if of == package => name,
                _ => name,
            };
            if enabled.insert(name) {
                found.extend(strings(&features[name]));
            }
        }
        enabled
    }
}

impl CargoTarget<'_> {
    /// Returns the executable named in a line that cargo prints for each target it has built.
    fn built(self, line: &str) -> Option<PathBuf> {
        let message: Value = serde_json::from_str(line).ok()?;
        let path = message["executable"].as_str()?;
        self.is(&message["target"]).then(|| path.into())
    }

    /// Returns what cargo's metadata of a package say of this target.
    fn described_in(self, package: &Value) -> Option<&Value> {
        let targets = package["targets"].as_array()?;
        targets.iter().find(|target| self.is(target))
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

/// Returns the names in a value of `--features`.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split([',', ' ']).filter(|name| !name.is_empty())
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALO: CargoTarget<'_> = CargoTarget {
        kind: "example",
        name: "halo",
    };

    fn with_features(features: &[&str]) -> CargoTargetArgs {
        CargoTargetArgs {
            features: features.iter().map(ToString::to_string).collect(),
            ..CargoTargetArgs::default()
        }
    }

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
    fn features_that_a_target_requires_are_missing_unless_options_enable_them() {
        let metadata: Value = serde_json::from_str(
            r#"{"packages": [{
                "name": "fluid",
                "features": {"default": ["png"], "png": ["dep:png"], "fast": ["simd"], "simd": []},
                "targets": [
                    {"kind": ["bin"], "name": "halo"},
                    {"kind": ["example"], "name": "halo", "required-features": ["png", "simd"]}
                ]
            }]}"#,
        )
        .unwrap();
        let missing = |args: &CargoTargetArgs| args.missing_features(HALO, &metadata).join(" ");
        assert_eq!(missing(&with_features(&[])), "simd");
        assert_eq!(missing(&with_features(&["wide, simd"])), "");
        assert_eq!(missing(&with_features(&["wide", "fluid/simd"])), "");
        assert_eq!(missing(&with_features(&["other/simd"])), "simd");
        assert_eq!(missing(&with_features(&["fast"])), "", "by another feature");
        let all = CargoTargetArgs {
            all_features: true,
            ..CargoTargetArgs::default()
        };
        assert_eq!(missing(&all), "");
        let bare = CargoTargetArgs {
            no_default_features: true,
            ..with_features(&["simd"])
        };
        assert_eq!(missing(&bare), "png");
        let binary = CargoTarget {
            kind: "bin",
            ..HALO
        };
        assert!(bare.missing_features(binary, &metadata).is_empty());
        assert!(bare.missing_features(HALO, &Value::Null).is_empty());
    }
}
