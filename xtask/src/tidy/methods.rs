//! Checks how many methods a type has: a type that does everything cannot be read on its own.

use std::collections::BTreeMap;

use super::{TidyFindings, lexer, names, tree::SourceTree};

/// The most methods of one type, in all its `impl` blocks, those of traits included.
const METHODS_MAX: usize = 120;

/// Types that are named in the summary.
const LARGEST: usize = 3;

/// The number of methods of each type, by its package and name.
pub(super) struct MethodCounts<'a>(BTreeMap<(&'a str, String), usize>);

impl<'a> MethodCounts<'a> {
    pub(super) fn of(tree: &'a SourceTree) -> Self {
        let packages = names::packages(tree);
        let mut counts = BTreeMap::new();
        for (file, text) in tree
            .with_suffix(".rs")
            .filter(|(file, _)| names::is_code(file))
        {
            let package = names::package_of(file, &packages);
            for (name, methods) in impl_blocks(text) {
                *counts.entry((package, name)).or_default() += methods;
            }
        }
        Self(counts)
    }

    /// Returns a finding for each type with too many methods.
    pub(super) fn check(&self) -> TidyFindings {
        let mut findings = TidyFindings::new();
        for ((package, name), methods) in &self.0 {
            if *methods > METHODS_MAX {
                findings.push(format!(
                    "{package}: `{name}` has {methods} methods, at most {METHODS_MAX}: give a part of it a type of its own"
                ));
            }
        }
        findings
    }

    /// Returns the types with the most methods, in words.
    pub(super) fn largest(&self) -> String {
        let mut all: Vec<(usize, &str)> = self
            .0
            .iter()
            .map(|((_, name), methods)| (*methods, name.as_str()))
            .collect();
        all.sort_by(|a, b| b.cmp(a));
        let named = all.iter().take(LARGEST);
        let named: Vec<String> = named
            .map(|(methods, name)| format!("{name} {methods}"))
            .collect();
        format!("most methods: {}", named.join(", "))
    }
}

/// Returns the type of each `impl` block, with the number of its methods. Modules of tests at the end of a file are left out.
fn impl_blocks(text: &str) -> Vec<(String, usize)> {
    let code = lexer::code(lexer::before_tests(text));
    let mut lines = code.lines().map(str::trim_end);
    let mut blocks = Vec::new();
    while let Some(line) = lines.next() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let Some(rest) = after_impl(line.trim_start()) else {
            continue;
        };
        let mut header = rest.to_owned();
        while !header.contains('{') {
            let Some(more) = lines.next() else {
                return blocks;
            };
            header.push(' ');
            header.push_str(more.trim_start());
        }
        let close = format!("{indent}}}");
        let methods = if header.contains('}') {
            0
        } else {
            let body = lines.by_ref().take_while(|line| *line != close);
            body.filter(|line| is_method(line, indent.len() + 4))
                .count()
        };
        blocks.extend(implementor(&header).map(|name| (name.to_owned(), methods)));
    }
    blocks
}

/// Returns what follows the `impl` of a block, without its generic parameters.
fn after_impl(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("unsafe ").unwrap_or(line);
    let rest = rest.strip_prefix("impl")?;
    if let Some(rest) = rest.strip_prefix(' ') {
        return Some(rest);
    }
    let mut depth = 0;
    let mut before = ' ';
    for (at, letter) in rest.char_indices() {
        match letter {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return rest.starts_with('<').then(|| rest[at + 1..].trim_start());
        }
        before = letter;
    }
    None
}

/// Returns the type of a block, from the text between `impl` and the first brace.
fn implementor(header: &str) -> Option<&str> {
    let header = header.split('{').next()?;
    let header = header.split(" where ").next()?;
    let named = header.rsplit(" for ").next()?;
    let named = named.split('<').next()?;
    let name = named.trim().rsplit("::").next()?;
    name.starts_with(|letter: char| letter.is_uppercase())
        .then_some(name)
}

/// Returns true if a line begins a function with this indentation.
fn is_method(line: &str, indent: usize) -> bool {
    let text = line.trim_start();
    if line.len() - text.len() != indent {
        return false;
    }
    let text = match text.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ").map_or("", |(_, rest)| rest),
        None => text.strip_prefix("pub ").unwrap_or(text),
    };
    let mut words = text.split(' ');
    words.find(|word| !["const", "async", "unsafe"].contains(word)) == Some("fn")
}

#[cfg(test)]
mod tests {
    use super::{METHODS_MAX, MethodCounts, SourceTree, impl_blocks};

    #[test]
    fn methods_of_all_blocks_count_and_functions_in_them_do_not() {
        let source = "\n#[cfg(test)]\nmod elsewhere;\n\
                      impl<F: Fn() -> u8> Many<F>\nwhere\n    F: Send,\n{\n    pub(in crate::a) const fn a() {\n\
                      \x20       fn b() {}\n    }\n}\n\
                      unsafe impl Send for Many<u8> {}\nimpl fmt::Debug for a::Many<'_> {\n    fn c() {} // fn d()\n}\n\
                      fn impl_e() {}\n#[cfg(test)]\nmod tests {\n    impl Many {\n        fn f() {}\n    }\n}\n";
        let many = |methods| ("Many".to_owned(), methods);
        assert_eq!(impl_blocks(source), [many(1), many(0), many(1)]);
    }

    #[test]
    fn a_type_with_too_many_methods_is_a_finding_wherever_they_are() {
        let block = |from: usize, to: usize| {
            let methods: String = (from..to)
                .map(|n| format!("    fn f{n}() {{}}\n"))
                .collect();
            format!("impl Big {{\n{methods}}}\n")
        };
        let (first, rest) = (block(0, METHODS_MAX), block(METHODS_MAX, METHODS_MAX + 1));
        let tree = |second: &str| {
            SourceTree::of(&[
                ("a/Cargo.toml", ""),
                ("b/Cargo.toml", ""),
                ("a/src/one.rs", &first),
                (second, &rest),
            ])
        };
        let (one, two) = (tree("a/src/two.rs"), tree("b/src/two.rs"));
        assert_eq!(MethodCounts::of(&one).check().len(), 1);
        assert!(MethodCounts::of(&two).check().is_empty());
        assert_eq!(
            MethodCounts::of(&two).largest(),
            "most methods: Big 120, Big 1"
        );
    }
}
