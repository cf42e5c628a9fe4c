//! `cargo xtask book expand`: the chapters with their code, for readers without a rendered book.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::links;
use crate::step::target_dir;

/// Writes all chapters with what they include into `target/book-expanded`, with the pictures beside them.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let expanded = folder(root);
    for file in links::files_below(root, Path::new(links::CHAPTERS))
        .map_err(|why| format!("reading the book: {why}"))?
    {
        let from = root.join(&file);
        let below = file.strip_prefix(links::CHAPTERS).unwrap_or(&file);
        let to = expanded.join(below);
        let folder = to.parent().unwrap_or(&expanded);
        let written = fs::create_dir_all(folder).and_then(|()| fs::copy(&from, &to));
        written.map_err(|why| format!("{}: {why}", to.display()))?;
        if file.extension().is_some_and(|end| end == "md") {
            let text = fs::read_to_string(&from);
            let text = text.map_err(|why| format!("{}: {why}", from.display()))?;
            let text = with_includes(root, &file, &text)?;
            fs::write(&to, text).map_err(|why| format!("{}: {why}", to.display()))?;
        }
    }
    Ok(())
}

/// Returns the folder into which [`run`] writes the chapters.
pub(crate) fn folder(root: &Path) -> PathBuf {
    target_dir(root).join("book-expanded")
}

fn with_includes(root: &Path, page: &Path, text: &str) -> Result<String, String> {
    let mut lines = String::new();
    for line in text.lines() {
        let include = line.strip_prefix("{{#include ");
        let Some(include) = include.and_then(|rest| rest.strip_suffix("}}")) else {
            lines += &line.replace("```rust,ignore", "```rust");
            lines.push('\n');
            continue;
        };
        let (file, anchor) = include.split_once(':').unwrap_or((include, ""));
        let source = fs::read_to_string(root.join(links::target(page, file)));
        let source = source.map_err(|why| format!("{}: {file}: {why}", page.display()))?;
        lines += &part(&source, anchor);
    }
    Ok(lines)
}

/// Returns the lines between the marks of an anchor, or all lines if it is empty, without marks and common indentation.
fn part(source: &str, anchor: &str) -> String {
    let is_mark = |line: &str, mark: &str| line.trim_end().ends_with(mark);
    let (begin, end) = (format!("ANCHOR: {anchor}"), format!("ANCHOR_END: {anchor}"));
    let mut inside = anchor.is_empty();
    let mut lines = Vec::new();
    for line in source.lines() {
        if line.trim_start().starts_with("// ANCHOR") {
            inside = anchor.is_empty() || is_mark(line, &begin) || inside && !is_mark(line, &end);
        } else if inside {
            lines.push(line);
        }
    }
    let indents = lines.iter().filter(|line| !line.trim().is_empty());
    let indent = indents.map(|line| line.len() - line.trim_start().len());
    let indent = indent.min().unwrap_or(0);
    let dedented = lines.iter().map(|line| line.get(indent..).unwrap_or(""));
    dedented.map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn the_part_between_two_marks_loses_marks_and_indentation() {
        let source = "\
fn f() {
    // ANCHOR: one
    a();

    // ANCHOR: two
    if b {
        c();
    }
    // ANCHOR_END: two
    // ANCHOR_END: one
    d();
}
";
        assert_eq!(part(source, "one"), "a();\n\nif b {\n    c();\n}\n");
        assert_eq!(part(source, "two"), "if b {\n    c();\n}\n");
        assert_eq!(part("x\n", ""), "x\n");
    }
}
