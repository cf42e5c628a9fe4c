//! `cargo xtask loom`: runs the models of what threads share, in every relevant order.

use std::fs;

use crate::step::{CommandLine, StepRunner, target_dir};

/// Crates that may have models: tests with `loom` in their path, built with `--cfg loom`.
const CRATES: [(&str, &str); 2] = [("fabric", "ripstop-fabric"), ("rt", "ripstop-rt")];

pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    for (folder, package) in CRATES {
        let manifest =
            fs::read_to_string(gate.root.join(folder).join("Cargo.toml")).unwrap_or_default();
        if manifest.contains("loom") {
            model(gate, package)?;
        }
    }
    Ok(())
}

fn model(gate: &mut StepRunner, package: &str) -> Result<(), String> {
    // The models have a target directory of their own, because other flags would cause everything to be rebuilt, here and
    // afterwards.
    let target = target_dir(&gate.root).join("loom").display().to_string();
    let task = CommandLine::cargo(&[
        "test",
        "-p",
        package,
        "--lib",
        "--profile",
        "models",
        "loom",
    ])
    .filtered()
    .with("RUSTFLAGS", "--cfg loom")
    .with("CARGO_TARGET_DIR", target);
    let before = gate.tally.passed;
    gate.run_tests(&format!("models of {package}"), &task)?;
    if gate.tally.passed > before {
        Ok(())
    } else {
        Err(format!("no model of {package} ran: {task}"))
    }
}
