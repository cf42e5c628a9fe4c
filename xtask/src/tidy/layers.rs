//! Checks that dependencies point one way: a table of the paths that each folder may not name.

use super::{Findings, lexer, paths, tree::Tree};

/// Sources under a folder may not name these paths.
struct Rule {
    folder: &'static str,
    forbidden: &'static [&'static str],
    because: &'static str,
}

pub(super) fn check(tree: &Tree) -> Findings {
    let mut findings = Findings::new();
    let sources = tree.ending(".rs").filter(|(file, _)| !is_test(file));
    for (file, text) in sources {
        let rules: Vec<&Rule> = RULES
            .iter()
            .filter(|rule| file.starts_with(rule.folder))
            .collect();
        if rules.is_empty() {
            continue;
        }
        let module = module_of(file);
        for (line, path) in paths::named(&lexer::code(text), &module) {
            for rule in rules.iter().filter(|rule| rule.forbids(&path)) {
                findings.push(format!(
                    "{file}:{line}: `{path}` in {}: {}",
                    rule.folder, rule.because
                ));
            }
        }
    }
    findings
}

impl Rule {
    fn forbids(&self, path: &str) -> bool {
        let under = |forbidden: &str| {
            let rest = path.strip_prefix(forbidden);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        self.forbidden.iter().any(|forbidden| under(forbidden))
    }
}

/// Returns true for tests, which may read the clock, and name the parts for which it stands in.
fn is_test(file: &str) -> bool {
    file.ends_with("/tests.rs") || file.contains("/tests/")
}

/// Returns the module of a file: `rt/src/proto/path/envelope.rs` is `crate::proto::path::envelope`.
fn module_of(file: &str) -> Vec<&str> {
    let inside = file.split_once("src/").map_or("", |(_, inside)| inside);
    let parts = inside.trim_end_matches(".rs").split('/');
    let named = parts.filter(|part| !matches!(*part, "" | "mod" | "lib" | "main"));
    ["crate"].into_iter().chain(named).collect()
}

const RULES: [Rule; 16] = [
    Rule {
        folder: "fabric/src/",
        forbidden: &[
            "ripstop_rt",
            "ripstop_collectives",
            "ripstop_rma",
            "ripstop",
            "ripstop_softportals",
        ],
        because: "fabric is below everything, and is of use without the runtime",
    },
    Rule {
        folder: "fabric/softportals/",
        forbidden: &[
            "ripstop_rt",
            "ripstop_collectives",
            "ripstop_rma",
            "ripstop",
        ],
        because: "it stands in for a vendor's library, which knows nothing of Ripstop",
    },
    Rule {
        folder: "fabric/softportals/src/interface/",
        forbidden: &[
            "crate::process",
            "crate::transport",
            "std::time",
            "std::thread",
            "std::net",
            "std::io",
            "std::fs",
            "rustix",
            "libc",
        ],
        because: "the interface is a pure state machine: packets and memory come as arguments",
    },
    Rule {
        folder: "fabric/src/driver/",
        forbidden: &[
            "crate::shm",
            "crate::loopback",
            "crate::hook",
            "crate::tcp",
            "crate::verbs",
            "crate::portals",
            "crate::sim",
        ],
        because: "the contract knows no driver",
    },
    Rule {
        folder: "fabric/src/memory/",
        forbidden: &[
            "crate::shm",
            "crate::loopback",
            "crate::hook",
            "crate::tcp",
            "crate::verbs",
            "crate::portals",
            "crate::sim",
        ],
        because: "memory knows no driver",
    },
    Rule {
        folder: "fabric/src/shm/",
        forbidden: &[
            "crate::loopback",
            "crate::hook",
            "crate::tcp",
            "crate::verbs",
            "crate::portals",
            "crate::sim",
        ],
        because: "drivers do not know each other",
    },
    Rule {
        folder: "fabric/src/portals/",
        forbidden: &[
            "crate::shm",
            "crate::loopback",
            "crate::hook",
            "crate::tcp",
            "crate::verbs",
            "crate::sim",
        ],
        because: "drivers do not know each other",
    },
    Rule {
        folder: "fabric/src/loopback",
        forbidden: &[
            "crate::shm",
            "crate::hook",
            "crate::tcp",
            "crate::verbs",
            "crate::portals",
            "crate::sim",
        ],
        because: "drivers do not know each other",
    },
    Rule {
        folder: "fabric/src/sim/",
        forbidden: &[
            "crate::shm",
            "crate::loopback",
            "crate::tcp",
            "crate::verbs",
            "crate::portals",
            "std::time::Instant",
            "std::time::SystemTime",
            "std::thread::spawn",
        ],
        because: "drivers do not know each other, and a simulation owns its time",
    },
    Rule {
        folder: "fabric/src/connect/",
        forbidden: &[
            "crate::shm",
            "crate::loopback",
            "crate::sim",
            "std::time",
            "std::thread",
            "std::net",
            "std::io",
            "std::fs",
            "rustix",
            "libc",
        ],
        because: "a protocol is a pure state machine: time, input and chance come as arguments",
    },
    Rule {
        folder: "rt/src/",
        forbidden: &["ripstop_collectives", "ripstop_rma", "ripstop"],
        because: "the runtime is below the collectives and the windows",
    },
    Rule {
        folder: "rt/src/proto/",
        forbidden: &[
            "crate::engine",
            "crate::ops",
            "crate::reactor",
            "crate::executor",
            "crate::comm",
            "crate::boot",
            "crate::runtime",
            "crate::clock",
            "ripstop_fabric::shm",
            "ripstop_fabric::loopback",
            "ripstop_fabric::hook",
            "std::time",
            "std::thread",
            "std::net",
            "std::io",
            "std::fs",
            "rustix",
            "libc",
        ],
        because: "a protocol is a pure state machine: time, input and chance come as arguments",
    },
    Rule {
        folder: "rt/src/reactor/",
        forbidden: &["crate::engine", "crate::proto", "crate::comm", "crate::ops"],
        because: "the reactor waits; what for is not its business",
    },
    Rule {
        folder: "collectives/",
        forbidden: &["ripstop_rma", "ripstop"],
        because: "collectives and rma are siblings: what both need moves down",
    },
    Rule {
        folder: "rma/",
        forbidden: &["ripstop_collectives", "ripstop"],
        because: "collectives and rma are siblings: what both need moves down",
    },
    Rule {
        folder: "examples/",
        forbidden: &[
            "ripstop_rt",
            "ripstop_fabric",
            "ripstop_collectives",
            "ripstop_rma",
        ],
        because: "an example shows what a user writes, and users name `ripstop`",
    },
];

#[cfg(test)]
mod tests {
    use super::{Tree, check, module_of};

    #[test]
    fn a_forbidden_path_is_found_however_it_is_written() {
        let tree = Tree::of(&[
            ("rt/src/proto/a.rs", "use std::{fmt,\n time::Instant};"),
            ("rt/src/proto/b.rs", "fn f() { super::super::engine::go() }"),
            (
                "rt/src/proto/c.rs",
                "// std::time::Instant\nuse crate::engineering;",
            ),
            ("rt/src/clock.rs", "use std::time::Instant;"),
            ("collectives/src/lib.rs", "use ripstop_rma::Window;"),
        ]);
        let files: Vec<String> = check(&tree)
            .iter()
            .map(|line| line.chars().take_while(|c| *c != ' ').collect())
            .collect();
        assert_eq!(
            files,
            [
                "collectives/src/lib.rs:1:",
                "rt/src/proto/a.rs:2:",
                "rt/src/proto/b.rs:1:"
            ]
        );
    }

    #[test]
    fn a_file_is_a_module() {
        assert_eq!(module_of("rt/src/lib.rs"), ["crate"]);
        assert_eq!(
            module_of("rt/src/proto/matching/mod.rs"),
            ["crate", "proto", "matching"]
        );
    }
}
