//! Finds comments whose sentences have no named subject.
//!
//! One sentence that is shown in an editor's hover does not say which rank, peer or thread a pronoun stands for.

use super::{TidyFindings, lexer, tree::SourceTree};

/// Pronouns that stand where a noun should.
const PRONOUNS: [&str; 6] = ["who", "whoever", "whom", "nobody", "somebody", "anybody"];

pub(super) fn check(tree: &SourceTree) -> TidyFindings {
    let sources = tree.all().filter(|(file, _)| is_source(file));
    sources
        .flat_map(|(file, text)| faults(file, text))
        .collect()
}

/// Returns true for Rust source. What the compiler printed about it stands beside its line numbers and stays.
fn is_source(file: &str) -> bool {
    file.ends_with(".rs") && !file.starts_with("xtask/tests/ui/")
}

fn faults(file: &str, text: &str) -> TidyFindings {
    let code = lexer::uncommented(text);
    let mut in_example = false;
    let lines = text.lines().zip(code.lines()).zip(1..);
    lines
        .filter_map(|((line, code), number)| {
            let comment = comment_of(line, code)?;
            if comment.trim_start_matches(['/', '!', ' ']).starts_with("```") {
                in_example = !in_example;
            }
            let pronoun = pronoun(comment).filter(|_| !in_example)?;
            Some(format!(
                "{file}:{number}: a comment says `{pronoun}`: name the rank, peer, thread or caller that is meant"
            ))
        })
        .collect()
}

/// Returns the comment of a line, of which `code` is the part that the compiler reads.
fn comment_of<'a>(line: &'a str, code: &str) -> Option<&'a str> {
    let start = code.trim_end().len();
    let rest = line.get(start..)?.trim();
    rest.starts_with("//").then_some(rest)
}

/// Returns the first pronoun outside of inline code.
fn pronoun(comment: &str) -> Option<&'static str> {
    let prose = comment.split('`').step_by(2);
    let mut words = prose
        .flat_map(|part| part.split(|letter: char| !letter.is_alphanumeric() && letter != '_'));
    words.find_map(|word| {
        PRONOUNS
            .into_iter()
            .find(|pronoun| word.eq_ignore_ascii_case(pronoun))
    })
}

#[cfg(test)]
mod tests {
    use super::{PRONOUNS, faults};

    #[test]
    fn pronouns_in_comments_are_found_and_names_strings_and_examples_are_not() {
        let source = [
            "/// @ sleeps.",
            "fn @() { say(\"// @\") } // ask @",
            "/// The whole, `@`.",
            "let @_else = 1;",
            "/// ```",
            "/// @();",
            "/// ```",
            "//! @'s",
        ];
        let source = source.join("\n").replace('@', PRONOUNS[3]);
        let found = faults("a.rs", &source);
        let lines: Vec<&str> = found
            .iter()
            .filter_map(|line| line.split(':').nth(1))
            .collect();
        assert_eq!(lines, ["1", "2", "8"], "{found:?}");
    }
}
