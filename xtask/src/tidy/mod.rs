//! `cargo xtask tidy`: checks that no compiler makes, and reviews should not have to.

use std::path::Path;

use crate::step::StepRunner;

mod chapters;
mod crates;
mod engine_parts;
mod layers;
mod lexer;
mod methods;
mod modules;
mod names;
mod paths;
mod subjects;
mod tree;
mod unsafety;
mod words;

use self::{methods::MethodCounts, tree::SourceTree};

/// Findings, one line each: `file:line: what is wrong, and what to do`.
type TidyFindings = Vec<String>;

pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    gate.run_check("tidy", "cargo xtask tidy", check)
}

fn check(root: &Path) -> Result<(), String> {
    let tree = SourceTree::read(root)?;
    let mut findings = layers::check(&tree);
    findings.extend(unsafety::check(&tree));
    findings.extend(modules::check(&tree));
    findings.extend(names::check(&tree));
    let methods = MethodCounts::of(&tree);
    println!("{}", methods.largest());
    findings.extend(methods.check());
    findings.extend(words::check(&tree));
    findings.extend(subjects::check(&tree));
    findings.extend(chapters::check(&tree));
    findings.extend(crates::check(root)?);
    if findings.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "{} findings\n{}",
            findings.len(),
            findings.join("\n")
        ))
    }
}
