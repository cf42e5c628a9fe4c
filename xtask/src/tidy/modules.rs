//! Finds dead files: every source must be reached from a target by `mod`.

use std::collections::BTreeSet;

use super::{TidyFindings, lexer, tree::SourceTree};

pub(super) fn check(tree: &SourceTree) -> TidyFindings {
    let mut alive = BTreeSet::new();
    for root in roots(tree) {
        reach(tree, &root, &mut alive);
    }
    let sources = tree.with_suffix(".rs").map(|(file, _)| file);
    let dead = sources.filter(|file| {
        !alive.contains(*file) && !READ_BY_TESTS.iter().any(|folder| file.starts_with(folder))
    });
    dead.map(|file| format!("{file}: no target reaches it: name it with `mod`, or delete it"))
        .collect()
}

/// Returns the sources from which cargo starts: those it finds by their place, and those that a manifest names.
fn roots(tree: &SourceTree) -> Vec<String> {
    let mut roots: Vec<String> = Vec::new();
    for (manifest, text) in tree.with_suffix("Cargo.toml") {
        let package = manifest.trim_end_matches("Cargo.toml");
        let mine = tree
            .with_suffix(".rs")
            .filter_map(|(file, _)| file.strip_prefix(package));
        roots.extend(
            mine.filter(|file| is_target(file))
                .map(|file| format!("{package}{file}")),
        );
        roots.extend(named(text).map(|path| format!("{package}{path}")));
    }
    roots
}

fn is_target(file: &str) -> bool {
    let parts: Vec<&str> = file.split('/').collect();
    match parts.as_slice() {
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
        ["src", "bin", name] => name.ends_with(".rs"),
        ["src", "bin", _, "main.rs"] => true,
        ["examples" | "tests" | "benches", name] => name.ends_with(".rs"),
        ["examples" | "tests" | "benches", _, "main.rs"] => true,
        _ => false,
    }
}

/// Returns the values of `path = "..rs"` in a manifest.
fn named(manifest: &str) -> impl Iterator<Item = &str> {
    let values = manifest
        .lines()
        .filter_map(|line| line.trim().strip_prefix("path"));
    values
        .filter_map(|rest| rest.split('"').nth(1))
        .filter(|path| path.ends_with(".rs"))
}

fn reach(tree: &SourceTree, file: &str, alive: &mut BTreeSet<String>) {
    let Some(source) = tree.get(file) else { return };
    if !alive.insert(file.to_owned()) {
        return;
    }
    for child in children(&lexer::uncommented(source)) {
        for path in candidates(file, &child) {
            reach(tree, &path, alive);
        }
    }
}

enum ModuleChild {
    Named(String),
    At(String),
}

/// Returns the `mod name;` items of a source, with the `#[path]` before them.
fn children(source: &str) -> Vec<ModuleChild> {
    let mut children = Vec::new();
    let mut at = None;
    for line in source.lines().map(str::trim) {
        if let Some(path) = line
            .strip_prefix("#[path = \"")
            .and_then(|rest| rest.strip_suffix("\"]"))
        {
            at = Some(path.to_owned());
            continue;
        }
        if let Some(name) = declared(line) {
            children.push(
                at.take()
                    .map_or_else(|| ModuleChild::Named(name.to_owned()), ModuleChild::At),
            );
        }
    }
    children
}

fn declared(line: &str) -> Option<&str> {
    let line = line.strip_suffix(';')?;
    let (before, name) = line
        .split_once("mod ")
        .filter(|(before, _)| before.is_empty() || before.ends_with(' '))?;
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (plain && !before.contains('"')).then_some(name)
}

fn candidates(file: &str, child: &ModuleChild) -> Vec<String> {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    let stem = name.trim_end_matches(".rs");
    let owns_folder = is_target_name(stem)
        || folder.ends_with("examples")
        || folder.ends_with("tests")
        || folder.ends_with("benches");
    let home = if owns_folder {
        folder.to_owned()
    } else {
        format!("{folder}/{stem}")
    };
    match child {
        ModuleChild::Named(name) => {
            vec![format!("{home}/{name}.rs"), format!("{home}/{name}/mod.rs")]
        }
        ModuleChild::At(path) => vec![normal(&format!("{folder}/{path}"))],
    }
}

/// Names of sources whose modules lie beside them.
fn is_target_name(stem: &str) -> bool {
    matches!(stem, "mod" | "lib" | "main" | "build")
}

fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Sources that a test compiles on its own.
const READ_BY_TESTS: [&str; 1] = ["xtask/tests/ui/"];

#[cfg(test)]
mod tests {
    use super::{SourceTree, check};

    #[test]
    fn a_file_that_no_mod_names_is_dead() {
        let tree = SourceTree::of(&[
            (
                "a/Cargo.toml",
                "[[test]]\nname = \"x\"\npath = \"book/x.rs\"",
            ),
            (
                "a/src/lib.rs",
                "pub mod b;\n#[path = \"odd.rs\"]\nmod c;\n// mod dead;",
            ),
            ("a/src/b/mod.rs", "#[cfg(test)]\nmod tests;\nmod d;"),
            ("a/src/b/tests.rs", ""),
            ("a/src/b/d.rs", "mod e;"),
            ("a/src/b/d/e.rs", ""),
            ("a/src/odd.rs", ""),
            ("a/src/dead.rs", ""),
            ("a/src/bin/tool.rs", ""),
            ("a/book/x.rs", ""),
            ("a/tests/t/main.rs", "mod helper;"),
            ("a/tests/t/helper.rs", ""),
            ("a/tests/t/lost.rs", ""),
        ]);
        let findings = check(&tree);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(
            findings[0].starts_with("a/src/dead.rs")
                && findings[1].starts_with("a/tests/t/lost.rs")
        );
    }
}
