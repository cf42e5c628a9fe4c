//! Finds long lines, leftovers, and traces of the machine on which the code was written.

use super::{TidyFindings, tree::SourceTree};

/// Longest line, in columns. The formatter keeps code shorter; this limits what it leaves alone.
const LINE_MAX: usize = 130;

/// Words in two halves each, so that this file passes its own check.
const LEFTOVERS: [&str; 6] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("dbg", "!("),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
];

/// Absolute paths of one machine.
const PLACES: [&str; 6] = [
    concat!("/wo", "rk/"),
    concat!("/tmp/", "target"),
    concat!("/tmp/", "brief"),
    concat!("bash_", "jobs"),
    concat!("/root", "/"),
    concat!("/home", "/"),
];

pub(super) fn check(tree: &SourceTree) -> TidyFindings {
    let checked = tree.all().filter(|(file, _)| !file.starts_with("LICENSE"));
    let mut findings = TidyFindings::new();
    for (file, text) in checked {
        for (line, what) in text
            .lines()
            .enumerate()
            .filter_map(|(at, text)| Some((at + 1, fault(file, text)?)))
        {
            findings.push(format!("{file}:{line}: {what}"));
        }
    }
    findings
}

fn fault(file: &str, line: &str) -> Option<String> {
    if let Some(word) = PLACES.iter().find(|word| line.contains(**word)) {
        return Some(format!("`{word}` is a path of one machine"));
    }
    if let Some(word) = LEFTOVERS.iter().find(|word| has_word(line, word)) {
        return Some(format!("`{word}` is left over"));
    }
    let length = line.chars().count();
    let long = length > LINE_MAX
        && is_prose_or_code(file)
        && !line.contains("://")
        && !line.starts_with('|');
    long.then(|| format!("{length} columns, at most {LINE_MAX}"))
}

/// Returns false for output of a compiler and for tables of numbers.
fn is_prose_or_code(file: &str) -> bool {
    [".rs", ".md", ".toml", ".c", ".h", ".sh"]
        .iter()
        .any(|end| file.ends_with(end))
}

fn has_word(line: &str, word: &str) -> bool {
    let inside =
        |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    line.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).map(|at| line.as_bytes()[at]);
        let after = line.as_bytes().get(at + word.len()).copied();
        !inside(before) && (word.ends_with('(') || !inside(after))
    })
}

#[cfg(test)]
mod tests {
    use super::{LEFTOVERS, PLACES, fault};

    #[test]
    fn leftovers_and_places_are_found_and_longer_words_are_not() {
        for word in LEFTOVERS.iter().chain(&PLACES) {
            assert!(fault("a.rs", &format!("x {word} y")).is_some(), "{word}");
            assert!(
                fault("a.rs", &format!("my_{word}")).is_none() || PLACES.contains(word),
                "{word}"
            );
        }
    }

    #[test]
    fn long_lines_are_found_where_people_write_them() {
        let long = "x".repeat(131);
        assert!(fault("a.rs", &long).is_some());
        assert!(fault("a.stderr", &long).is_none());
        assert!(fault("a.md", &format!("|{long}")).is_none());
        assert!(fault("a.md", &"é".repeat(130)).is_none());
    }
}
