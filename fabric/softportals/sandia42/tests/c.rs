//! C programs on this library.

#[path = "../../tests/c/run.rs"]
mod run;

const FAMILY: &str = "sandia42";
