//! `cargo xtask book`: checks the figures, builds the book, and compiles and runs its snippets.

use std::path::{Path, PathBuf};

use crate::step::{CommandLine, StepRunner, target_dir};

pub(crate) mod expand;
pub(crate) mod figures;
pub(crate) mod links;

pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    gate.run_check(
        "figures of the book",
        "cargo xtask book figures",
        figures::check,
    )?;
    gate.run_check("links of the book", "cargo xtask book links", links::check)?;
    let tools = target_dir(&gate.root).join("tools");
    let mdbook = mdbook(&tools);
    if !mdbook.exists() {
        gate.run("install mdbook", &install(&tools))?;
    }
    // mdbook keeps the indentation of what a chapter includes, so it gets the chapters with their code.
    gate.run_check(
        "chapters with their code",
        "cargo xtask book expand",
        expand::run,
    )?;
    let build = CommandLine::new(&mdbook.display().to_string(), &["build", "book"]);
    let chapters = expand::folder(&gate.root).display().to_string();
    gate.run("book", &build.with("MDBOOK_BOOK__SRC", chapters))?;
    gate.run_tests(
        "snippets of the book",
        &CommandLine::cargo(&["test", "-p", "ripstop", "--all-features", "--test", "book"]),
    )
}

fn install(tools: &Path) -> CommandLine {
    let root = tools.display().to_string();
    let words = [
        "install",
        "mdbook",
        "--version",
        "^0.5",
        "--no-default-features",
        "--locked",
        "--debug", // the book is short: it is built in less time than mdbook is optimized
        "--root",
        &root,
    ];
    CommandLine::cargo(&words).with(
        "CARGO_TARGET_DIR",
        tools.join("build").display().to_string(),
    )
}

fn mdbook(tools: &Path) -> PathBuf {
    tools.join("bin").join("mdbook")
}
