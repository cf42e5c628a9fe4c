//! Checks the book: its summary names every chapter, and every included snippet exists.

use std::collections::BTreeSet;

use super::{TidyFindings, tree::SourceTree};

const SUMMARY: &str = "book/src/SUMMARY.md";
const SNIPPETS: &str = "book/snippets/";

pub(super) fn check(tree: &SourceTree) -> TidyFindings {
    let mut findings = summary(tree);
    let mut used = BTreeSet::new();
    for (file, text) in chapters(tree) {
        for (at, line) in text.lines().enumerate() {
            let Some(include) = included(line) else {
                continue;
            };
            if let Err(what) = look_up(tree, file, include, &mut used) {
                findings.push(format!("{file}:{}: {what}", at + 1));
            }
        }
    }
    findings.extend(unused(tree, &used));
    findings
}

fn chapters(tree: &SourceTree) -> impl Iterator<Item = (&str, &str)> {
    tree.with_suffix(".md")
        .filter(|(file, _)| file.starts_with("book/src/") && *file != SUMMARY)
}

fn summary(tree: &SourceTree) -> TidyFindings {
    let text = tree.get(SUMMARY).unwrap_or_default();
    let links = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let named: BTreeSet<String> = links.map(|link| beside(SUMMARY, link)).collect();
    let missing = named.iter().filter(|file| tree.get(file).is_none());
    let unnamed = chapters(tree).filter(|(file, _)| !named.contains(*file));
    missing
        .map(|file| format!("{SUMMARY}: names {file}, which does not exist"))
        .chain(unnamed.map(|(file, _)| format!("{file}: not in {SUMMARY}")))
        .collect()
}

/// Returns `file:anchor` of an include.
fn included(line: &str) -> Option<&str> {
    line.split_once("{{#include ")
        .and_then(|(_, rest)| rest.split("}}").next())
        .map(str::trim)
}

fn look_up(
    tree: &SourceTree,
    chapter: &str,
    include: &str,
    used: &mut BTreeSet<(String, String)>,
) -> Result<(), String> {
    let (path, anchor) = include
        .split_once(':')
        .map_or((include, None), |(path, anchor)| (path, Some(anchor)));
    let file = beside(chapter, path);
    let text = tree
        .get(&file)
        .ok_or_else(|| format!("includes {file}, which does not exist"))?;
    let Some(anchor) = anchor else { return Ok(()) };
    if anchor
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b':')
    {
        return Err(format!(
            "includes lines {anchor} of {file}: use an anchor, lines drift"
        ));
    }
    used.insert((file.clone(), anchor.to_owned()));
    let marks = ["ANCHOR: ", "ANCHOR_END: "].map(|mark| format!("{mark}{anchor}"));
    let has = |mark: &String| {
        text.lines()
            .any(|line| line.trim_end().ends_with(mark.as_str()))
    };
    if marks.iter().all(has) {
        Ok(())
    } else {
        Err(format!("{file} has no anchor `{anchor}`"))
    }
}

fn unused(tree: &SourceTree, used: &BTreeSet<(String, String)>) -> TidyFindings {
    let mut findings = TidyFindings::new();
    for (file, text) in tree
        .with_suffix(".rs")
        .filter(|(file, _)| file.starts_with(SNIPPETS))
    {
        for anchor in text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("// ANCHOR: "))
        {
            if !used.contains(&(file.to_owned(), anchor.to_owned())) {
                findings.push(format!("{file}: no chapter includes the anchor `{anchor}`"));
            }
        }
    }
    findings
}

/// Resolves a path as written in `file`, from the root.
fn beside(file: &str, path: &str) -> String {
    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::{SourceTree, check};

    #[test]
    fn chapters_and_anchors_must_be_there() {
        let tree = SourceTree::of(&[
            ("book/src/SUMMARY.md", "- [A](a.md)\n- [B](gone.md)"),
            (
                "book/src/a.md",
                "{{#include ../snippets/s.rs:one}}\n{{#include ../snippets/s.rs:three}}\n{{#include ../snippets/s.rs:1:2}}",
            ),
            ("book/src/lost.md", ""),
            (
                "book/snippets/s.rs",
                "// ANCHOR: one\n// ANCHOR_END: one\n// ANCHOR: two\n// ANCHOR_END: two",
            ),
        ]);
        let findings = check(&tree);
        let expected = ["gone.md", "lost.md", "`three`", "lines drift", "`two`"];
        assert_eq!(findings.len(), expected.len(), "{findings:?}");
        assert!(
            findings
                .iter()
                .zip(expected)
                .all(|(finding, part)| finding.contains(part)),
            "{findings:?}"
        );
    }
}
