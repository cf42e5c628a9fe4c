//! The packages that users get from a registry: `cargo xtask package`.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

use crate::step::{CommandLine, StepRunner, root};

/// Makes the packages of all crates that are published, without building them.
pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    gate.run("packages", &packages(&["--no-verify"]))?;
    check_metadata()
}

/// Makes the packages, and builds each from its package and those of the others.
pub(crate) fn run_verifying(gate: &mut StepRunner) -> Result<(), String> {
    gate.run("packages, built", &packages(&[]))?;
    check_metadata()
}

fn packages(options: &[&str]) -> CommandLine {
    let words = [
        "package",
        "--workspace",
        "--allow-dirty",
        "--offline",
        "--quiet",
    ];
    CommandLine::cargo(&words).with_words(options)
}

/// Checks that each published crate says what a registry shows.
fn check_metadata() -> Result<(), String> {
    let words = ["metadata", "--no-deps", "--format-version", "1"];
    let output = Command::new("cargo")
        .args(words)
        .current_dir(root())
        .output();
    let output = output.map_err(|why| format!("cargo metadata: {why}"))?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|why| format!("cargo metadata: {why}"))?;
    let packages = metadata["packages"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let faults = faults(packages);
    if faults.is_empty() {
        return Ok(());
    }
    Err(faults.join("\n"))
}

/// Returns a sentence for each fault.
fn faults(packages: &[Value]) -> Vec<String> {
    let name = |package: &Value| package["name"].as_str().unwrap_or_default().to_owned();
    let (published, kept): (Vec<&Value>, Vec<&Value>) = packages
        .iter()
        .partition(|package| package["publish"].is_null());
    let kept: BTreeSet<String> = kept.into_iter().map(name).collect();
    let mut faults = Vec::new();
    if published.is_empty() {
        faults.push("Cargo.toml: no crate is published".to_owned());
    }
    for package in published {
        let own = name(package);
        for field in FIELDS {
            let value = &package[field];
            let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            if is_empty {
                faults.push(format!(
                    "{own}: Cargo.toml has no `{field}`, which a registry shows"
                ));
            }
        }
        let dependencies = package["dependencies"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        // Dependencies of tests are left out of packages if they have no version.
        let needed = dependencies.iter().filter(|one| one["kind"] != "dev");
        for other in needed.map(name).filter(|other| kept.contains(other)) {
            faults.push(format!(
                "{own}: it is published and needs {other}, which is not"
            ));
        }
    }
    faults
}

/// Fields of a package that a registry shows or needs.
const FIELDS: [&str; 7] = [
    "description",
    "license",
    "readme",
    "rust_version",
    "documentation",
    "keywords",
    "categories",
];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{FIELDS, faults};

    fn package(name: &str) -> Value {
        let mut package = json!({ "name": name, "publish": null, "dependencies": [] });
        for field in FIELDS {
            package[field] = json!(["something"]);
        }
        package
    }

    #[test]
    fn a_published_crate_says_what_it_is_and_needs_only_published_ones() {
        let mut kept = package("kept");
        kept["publish"] = json!([]);
        let mut fine = package("fine");
        fine["dependencies"] = json!([{ "name": "kept", "kind": "dev" }]);
        assert_eq!(faults(&[fine, kept.clone()]), Vec::<String>::new());

        let mut bare = package("bare");
        bare["description"] = Value::Null;
        bare["keywords"] = json!([]);
        bare["dependencies"] = json!([{ "name": "kept", "kind": null }]);
        let found = faults(&[bare, kept.clone()]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(faults(&[kept]).len(), 1);
    }
}
