//! Checks the names of types: a type that other files see says what it is, and has its name for itself.
//!
//! A search for a name should find one thing. So a name is defined once in a package, and a name of one word
//! stands on the list of the words that need no second one: terms of the glossary, and types of the public interface.

use std::collections::BTreeMap;

use super::{TidyFindings, lexer, tree::SourceTree};

pub(super) fn check(tree: &SourceTree) -> TidyFindings {
    compare(tree, ONE_WORD)
}

fn compare(tree: &SourceTree, one_word: &[&str]) -> TidyFindings {
    let packages = packages(tree);
    let mut files_of: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (file, text) in tree.with_suffix(".rs").filter(|(file, _)| is_code(file)) {
        let package = package_of(file, &packages);
        for name in visible_types(text) {
            let files = files_of.entry((name, package)).or_default();
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    let single = |name: &str| !name[1..].contains(|letter: char| letter.is_uppercase());
    let twice = files_of.iter().filter(|(_, files)| files.len() > 1);
    let twice = twice.map(|((name, _), files)| {
        format!(
            "{}: `{name}` is defined in {} too: give one of them the noun that tells them apart",
            files[0], files[1]
        )
    });
    let vague = files_of
        .iter()
        .filter(|((name, _), _)| single(name) && !one_word.contains(name));
    let vague = vague.map(|((name, _), files)| {
        format!(
            "{}: `{name}` is seen by other files: say in two words what it is, or add it to {LIST}",
            files[0]
        )
    });
    let stale = one_word.iter().filter(|word| {
        let mut names = files_of.keys().map(|(name, _)| name);
        !names.any(|name| name == *word)
    });
    let stale =
        stale.map(|word| format!("{word}: no type has this name any more; take it out of {LIST}"));
    twice.chain(vague).chain(stale).collect()
}

/// Returns the folder of each package.
pub(super) fn packages(tree: &SourceTree) -> Vec<&str> {
    let manifests = tree.with_suffix("Cargo.toml");
    let folders = manifests.filter_map(|(file, _)| file.strip_suffix("Cargo.toml"));
    folders.collect()
}

/// Returns true for Rust source that is neither a test nor a benchmark.
pub(super) fn is_code(file: &str) -> bool {
    let is_test = |part: &str| {
        [
            "tests",
            "benches",
            "snippets",
            "tests.rs",
            "loom_models.rs",
            "model.rs",
        ]
        .contains(&part)
            || part.ends_with("_tests")
    };
    !file.split('/').any(is_test)
}

/// Returns the longest folder of `packages` that the file is in.
pub(super) fn package_of<'a>(file: &str, packages: &[&'a str]) -> &'a str {
    let around = packages.iter().filter(|folder| file.starts_with(**folder));
    around
        .max_by_key(|folder| folder.len())
        .copied()
        .unwrap_or("")
}

/// Returns the names of the types that other files see. Modules of tests at the end of a file are left out.
fn visible_types(text: &str) -> Vec<&str> {
    let text = lexer::before_tests(text);
    let code = lexer::code(text);
    let lines = text.lines().zip(code.lines());
    lines
        .filter(|(_, code)| code.trim_start().starts_with("pub"))
        .filter_map(|(line, _)| visible_type(line))
        .collect()
}

/// Returns the name that a line defines, if that is a type with a visibility of its own. Associated types have none.
fn visible_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')')?.1,
        None => rest,
    };
    let rest = rest.strip_prefix(' ')?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (keyword, rest) = rest.split_once(' ')?;
    if !["struct", "enum", "union", "trait", "type"].contains(&keyword) {
        return None;
    }
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let name = &rest[..end.unwrap_or(rest.len())];
    name.starts_with(|letter: char| letter.is_uppercase())
        .then_some(name)
}

const LIST: &str = "xtask/src/tidy/names.rs";

/// Names of one word that say enough.
const ONE_WORD: &[&str] = &[
    "Access",
    "Algorithm",
    "Block",
    "Blocks",
    "Board",
    "Boot",
    "Both",
    "Builder",
    "Caps",
    "Cart",
    "Channel",
    "Choices",
    "Clock",
    "Cluster",
    "Collectives",
    "Combine",
    "Comm",
    "Commutative",
    "Contestant",
    "Cooldown",
    "Crc32c",
    "Credits",
    "Driver",
    "Edges",
    "Element",
    "Engine",
    "Environment",
    "Error",
    "Exchange",
    "Executor",
    "Exposure",
    "Failures",
    "Faults",
    "Fence",
    "Fetching",
    "Footprint",
    "Gap",
    "Graph",
    "Halo",
    "Inquest",
    "Interface",
    "Layout",
    "Located",
    "Locked",
    "Machine",
    "Matched",
    "Matching",
    "Memory",
    "Messages",
    "Model",
    "Neighborhood",
    "Node",
    "Noise",
    "Nothing",
    "Notifier",
    "Overlap",
    "Parker",
    "Part",
    "Pending",
    "Persistent",
    "Piece",
    "Plan",
    "Pool",
    "Portails4",
    "Portals",
    "Probability",
    "Provider",
    "Real",
    "Reduction",
    "Registered",
    "Rendezvous",
    "Replace",
    "Report",
    "Result",
    "Row",
    "Runtime",
    "Sandia42",
    "Scope",
    "Sealed",
    "Settings",
    "Shape",
    "Shm",
    "Simulation",
    "Sink",
    "Source",
    "Start",
    "Static",
    "Stats",
    "Status",
    "Strided",
    "Stuck",
    "Table",
    "Tag",
    "Tcp",
    "Thread",
    "Timers",
    "Topology",
    "Transport",
    "Tuned",
    "Tuning",
    "Verbs",
    "Wait",
    "Window",
    "Wire",
];

#[cfg(test)]
mod tests {
    use super::{SourceTree, compare};

    #[test]
    fn names_that_say_little_or_stand_for_two_things_are_found() {
        let tree = SourceTree::of(&[
            ("a/Cargo.toml", ""),
            (
                "a/src/one.rs",
                "pub(super) struct Way;\npub enum LaneChoice {}\nstruct Own;\n",
            ),
            (
                "a/src/two.rs",
                "/// pub struct Prose\npub trait LaneChoice {}\npub struct Tag(u32);\n",
            ),
            ("a/src/tests.rs", "pub struct World;\n"),
            ("b/Cargo.toml", ""),
            (
                "b/src/lib.rs",
                "pub type LaneChoice = u8;\n#[cfg(test)]\nmod tests { pub struct Odd; }\n",
            ),
        ]);
        let found = compare(&tree, &["Tag", "Gone"]);
        let starts: Vec<&str> = found
            .iter()
            .map(|line| &line[..line.find('`').unwrap_or(4)])
            .collect();
        assert_eq!(
            starts,
            ["a/src/one.rs: ", "a/src/one.rs: ", "Gone"],
            "{found:?}"
        );
    }
}
