//! The packages that users get from a registry: `cargo xtask package`.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use serde_json::Value;

use crate::step::{CommandLine, StepRunner, root, target_dir};

/// Makes the packages of all crates that are published, and a user's first program from them.
pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    gate.run("packages", &packages(&["--no-verify"]))?;
    finish(gate)
}

/// Like [`run`], but also builds each crate alone from its package and those of the others.
pub(crate) fn run_verifying(gate: &mut StepRunner) -> Result<(), String> {
    gate.run("packages, built", &packages(&[]))?;
    finish(gate)
}

fn finish(gate: &mut StepRunner) -> Result<(), String> {
    let members = members()?;
    let faults = faults(&members);
    if !faults.is_empty() {
        return Err(faults.join("\n"));
    }
    run_first_program(gate, &members)
}

/// Builds a program in a folder of its own that has the packages and nothing else of this repository, as a user does, and
/// runs it as one rank.
fn run_first_program(gate: &mut StepRunner, members: &[Value]) -> Result<(), String> {
    let target = target_dir(&gate.root);
    let folder = target.join("first_program");
    let packages: Vec<(&str, &str)> = members
        .iter()
        .filter(|member| is_published(member))
        .map(|member| (text(member, "name"), text(member, "version")))
        .collect();
    gate.run_check("unpacked packages", "cargo xtask package", |root| {
        write_first_program(root, &folder, &manifest(&packages))?;
        packages.iter().try_for_each(|(name, version)| {
            // All files of a package have one date of long ago, by which cargo would not see that they have changed: `-m`.
            let archive = target.join(format!("package/{name}-{version}.crate"));
            let (archive, folder) = (archive.display().to_string(), folder.display().to_string());
            CommandLine::new("tar", &["-xzmf", &archive, "-C", &folder]).status(root)
        })
    })?;
    let manifest = folder.join("Cargo.toml").display().to_string();
    let words = ["run", "--offline", "--quiet", "--manifest-path", &manifest];
    // The packages of others are built once for both.
    let task = CommandLine::cargo(&words).with("CARGO_TARGET_DIR", target.display().to_string());
    gate.run("a first program from the packages", &task)
}

fn write_first_program(root: &Path, folder: &Path, manifest: &str) -> Result<(), String> {
    // What an earlier version had in its packages does not count.
    let _ = fs::remove_dir_all(folder);
    let hello = root.join("examples/hello.rs");
    let lock = root.join("Cargo.lock");
    fs::create_dir_all(folder.join("src"))
        .and_then(|()| fs::write(folder.join("Cargo.toml"), manifest))
        .and_then(|()| fs::copy(hello, folder.join("src/main.rs")))
        .and_then(|_| fs::copy(lock, folder.join("Cargo.lock")))
        .map(drop)
        .map_err(|why| format!("{}: {why}", folder.display()))
}

/// Returns the manifest of a program that depends on all of these packages, each in a folder of its name and version.
fn manifest(packages: &[(&str, &str)]) -> String {
    let lines = |line: fn(&str, &str) -> String| -> String {
        packages
            .iter()
            .map(|(name, version)| line(name, version))
            .collect()
    };
    let dependencies = lines(|name, version| format!("{name} = \"={version}\"\n"));
    let patches = lines(|name, version| format!("{name} = {{ path = \"{name}-{version}\" }}\n"));
    format!(
        "[package]\nname = \"first_program\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n{dependencies}\n\
         [profile.dev]\ndebug = \"line-tables-only\"\n\n[patch.crates-io]\n{patches}"
    )
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

/// Returns what cargo says of each crate of this repository.
fn members() -> Result<Vec<Value>, String> {
    let words = ["metadata", "--no-deps", "--format-version", "1"];
    let output = Command::new("cargo")
        .args(words)
        .current_dir(root())
        .output();
    let output = output.map_err(|why| format!("cargo metadata: {why}"))?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|why| format!("cargo metadata: {why}"))?;
    Ok(metadata["packages"].as_array().cloned().unwrap_or_default())
}

fn is_published(member: &Value) -> bool {
    member["publish"].is_null()
}

fn text<'a>(member: &'a Value, field: &str) -> &'a str {
    member[field].as_str().unwrap_or_default()
}

/// Returns a sentence for each fault.
fn faults(packages: &[Value]) -> Vec<String> {
    let name = |package: &Value| text(package, "name").to_owned();
    let (published, kept): (Vec<&Value>, Vec<&Value>) =
        packages.iter().partition(|package| is_published(package));
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

    use super::{FIELDS, faults, manifest};

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

    #[test]
    fn the_manifest_of_a_first_program_names_each_package_and_its_folder() {
        let text = manifest(&[("ripstop-rt", "0.1.0")]);
        assert!(text.contains("\nripstop-rt = \"=0.1.0\"\n"), "{text}");
        assert!(
            text.contains("\nripstop-rt = { path = \"ripstop-rt-0.1.0\" }\n"),
            "{text}"
        );
    }
}
