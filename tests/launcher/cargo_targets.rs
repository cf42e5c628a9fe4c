//! Programs that cargo builds first: examples and binaries of a package, with features.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{Ended, RIPSTOP, ended};

/// A package without dependencies, in a folder of its own that goes with it.
struct ScratchPackage {
    folder: PathBuf,
}

const MANIFEST: &str = r#"
[package]
name = "scratch"
edition = "2024"

[workspace]

[features]
default = ["calm"]
calm = []
loud = ["shout"]
shout = []

[[example]]
name = "greet"
required-features = ["shout"]
"#;

const SAYS_FEATURES: &str = r#"fn main() {
    let (calm, shout) = (cfg!(feature = "calm"), cfg!(feature = "shout"));
    let words: Vec<String> = std::env::args().skip(1).collect();
    println!("NAME: calm {calm}, shout {shout}, words {}", words.join(" "));
}
"#;

impl ScratchPackage {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ripstop-{name}-{}", std::process::id()));
        let package = Self { folder };
        package.write("Cargo.toml", MANIFEST);
        package.write("src/bin/tell.rs", &SAYS_FEATURES.replace("NAME", "tell"));
        package.write("examples/greet.rs", &SAYS_FEATURES.replace("NAME", "greet"));
        package
    }

    fn write(&self, file: &str, text: &str) {
        let file = self.folder.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// Runs `ripstop run -n 1` with these words, in the package's folder.
    fn run(&self, words: &[&str]) -> Ended {
        let mut command = Command::new(RIPSTOP);
        command.args(["run", "-n", "1"]).args(words);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command.env("CARGO_TARGET_DIR", self.folder.join("target"));
        ended(command)
    }
}

impl Drop for ScratchPackage {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn an_example_is_built_with_the_features_that_it_requires_and_those_that_are_named() {
    let package = ScratchPackage::new("features");
    for words in [
        &[][..],
        &["--features", "shout"],
        &["-F", "loud"],
        &["--features=calm,shout"],
        &["--all-features"],
    ] {
        let words = [words, &["--example", "greet", "--", "-n", "x"]].concat();
        let job = package.run(&words);
        job.with(0, &[])
            .says_once("greet: calm true, shout true, words -n x\n");
    }
    let job = package.run(&["--no-default-features", "--example", "greet"]);
    job.with(0, &[]).says_once("greet: calm false, shout true");
}

#[test]
fn a_binary_is_built_with_the_features_that_are_named() {
    let package = ScratchPackage::new("binary");
    let job = package.run(&["--bin", "tell"]);
    job.with(0, &[]).says_once("tell: calm true, shout false");
    let job = package.run(&["--no-default-features", "--bin", "tell", "--", "--loud"]);
    job.with(0, &[])
        .says_once("tell: calm false, shout false, words --loud\n");
    // A feature that the package does not have: cargo's own sentence, and then what was tried, and where.
    package.run(&["--bin", "tell", "-F", "whisper"]).with(
        1,
        &[
            "whisper",
            "error: --bin tell: `cargo build --bin tell` failed in ",
            "binary",
        ],
    );
}

#[test]
fn options_of_cargo_want_something_to_build() {
    for option in [
        &["--features", "a"][..],
        &["--all-features"],
        &["--no-default-features"],
        &["--profile", "release"],
    ] {
        let mut command = Command::new(RIPSTOP);
        command.args(["run", "-n", "1"]).args(option).arg("true");
        ended(command).with(2, &["error: ", "--example <NAME>", "--bin <NAME>"]);
    }
    let mut both = Command::new(RIPSTOP);
    both.args(["run", "-n", "1", "--example", "a", "--bin", "b"]);
    ended(both).with(2, &["error: ", "cannot be used with"]);
}
