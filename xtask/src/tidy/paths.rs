//! Finds the paths that a source names, in `use` or in place, with groups spelled out.

/// Returns every path of two or more parts, and every lone name after `use`, with its line (from 1). `module` is the module
/// that `self` means: `["crate", "proto"]`.
pub(super) fn named_paths(code: &str, module: &[&str]) -> Vec<(usize, String)> {
    let tokens = tokens(code);
    let mut paths = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let starts = token.is_name() && !BEFORE_A_PATH.contains(&token.text);
        at = if starts {
            read(&tokens, at, &[], &mut paths)
        } else {
            at + 1
        };
    }
    let long = |(_, path): &(usize, Vec<&str>)| path.len() > 1;
    let mut named: Vec<_> = paths
        .into_iter()
        .filter(long)
        .map(|(line, path)| (line, resolve(&path, module)))
        .collect();
    named.extend(lone_uses(&tokens));
    named
}

/// Keywords that a path with a leading `::` may follow.
const BEFORE_A_PATH: [&str; 8] = ["use", "as", "impl", "for", "dyn", "in", "return", "mut"];

#[derive(Clone, Copy)]
struct CodeToken<'a> {
    line: usize,
    text: &'a str,
}

impl CodeToken<'_> {
    fn is_name(&self) -> bool {
        self.text
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
    }
}

/// Reads one path, or one item of a group, and returns the position after it.
fn read<'a>(
    tokens: &[CodeToken<'a>],
    start: usize,
    prefix: &[&'a str],
    paths: &mut Vec<(usize, Vec<&'a str>)>,
) -> usize {
    let mut path = prefix.to_vec();
    let mut at = start;
    while let Some(token) = tokens.get(at).filter(|token| token.is_name()) {
        path.push(token.text);
        at += 1;
        if tokens.get(at).is_none_or(|next| next.text != "::") {
            break;
        }
        at += 1;
        if tokens.get(at).is_some_and(|next| next.text == "{") {
            return read_group(tokens, at + 1, &path, paths);
        }
    }
    let line = tokens[start].line;
    // `io::{self}` is `io`; a leading `self` is resolved later.
    path.retain(|part| *part != "self" || prefix.is_empty());
    paths.push((line, path));
    at
}

fn read_group<'a>(
    tokens: &[CodeToken<'a>],
    start: usize,
    prefix: &[&'a str],
    paths: &mut Vec<(usize, Vec<&'a str>)>,
) -> usize {
    let mut at = start;
    while let Some(token) = tokens.get(at) {
        at = match token.text {
            "}" => return at + 1,
            "as" => at + 2,
            _ if token.is_name() => read(tokens, at, prefix, paths),
            _ => at + 1,
        };
    }
    at
}

fn resolve(path: &[&str], module: &[&str]) -> String {
    let mut base: Vec<&str> = match path.first() {
        Some(&("self" | "super")) => module.to_vec(),
        _ => Vec::new(),
    };
    for part in path {
        match *part {
            "self" => {}
            "super" => drop(base.pop()),
            name => base.push(name),
        }
    }
    base.join("::")
}

fn lone_uses(tokens: &[CodeToken<'_>]) -> Vec<(usize, String)> {
    let ends = |token: &CodeToken<'_>| token.text == ";" || token.text == "as";
    let lone = |window: &&[CodeToken<'_>]| {
        window[0].text == "use" && window[1].is_name() && ends(&window[2])
    };
    tokens
        .windows(3)
        .filter(lone)
        .map(|window| (window[1].line, window[1].text.to_owned()))
        .collect()
}

fn tokens(code: &str) -> Vec<CodeToken<'_>> {
    let mut tokens = Vec::new();
    for (line, text) in code.lines().enumerate() {
        let mut left = text.trim_start();
        while !left.is_empty() {
            let word = left
                .bytes()
                .take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
                .count();
            let len = match word {
                0 if left.starts_with("::") => 2,
                0 => left.chars().next().map_or(1, char::len_utf8),
                _ => word,
            };
            tokens.push(CodeToken {
                line: line + 1,
                text: &left[..len],
            });
            left = left[len..].trim_start();
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::named_paths;

    fn paths(code: &str) -> Vec<String> {
        named_paths(code, &["crate", "proto", "wire"])
            .into_iter()
            .map(|(_, path)| path)
            .collect()
    }

    #[test]
    fn groups_are_spelled_out() {
        let found = paths("use std::{fmt, io::{self, Read as R}, thread};");
        assert_eq!(
            found,
            ["std::fmt", "std::io", "std::io::Read", "std::thread"]
        );
    }

    #[test]
    fn relative_paths_are_resolved() {
        assert_eq!(
            paths("use super::{super::engine::Engine, matching};"),
            ["crate::engine::Engine", "crate::proto::matching"]
        );
        assert_eq!(
            paths("self::x::y(); crate::z()"),
            ["crate::proto::wire::x::y", "crate::z"]
        );
    }

    #[test]
    fn paths_in_place_and_lone_names_are_found_on_their_line() {
        assert_eq!(
            named_paths(
                "\nlet t = std::time::Instant::now();\nuse ripstop_rt;",
                &["crate"]
            ),
            [
                (2, "std::time::Instant::now".to_owned()),
                (3, "ripstop_rt".to_owned()),
            ]
        );
        assert_eq!(paths("use ::ripstop_rt::Comm;"), ["ripstop_rt::Comm"]);
    }
}
