//! Checks that dependencies point one way: a table of the paths that each folder may not name, and where drivers may be named.

use super::{TidyFindings, engine_parts, lexer, paths, tree::SourceTree};

/// Sources under a folder may not name these paths.
struct LayerRule {
    folder: &'static str,
    forbidden: &'static [&'static str],
    because: &'static str,
}

pub(super) fn check(tree: &SourceTree) -> TidyFindings {
    let mut findings = TidyFindings::new();
    let drivers = DriverFolders::of(tree);
    let sources = tree
        .with_suffix(".rs")
        .filter(|(file, _)| !is_test(file) || engine_parts::is_of_part_alone(file));
    for (file, text) in sources {
        let rules: Vec<&LayerRule> = RULES
            .iter()
            .filter(|rule| file.starts_with(rule.folder) && !is_test(file))
            .collect();
        if rules.is_empty() && !is_test(file) {
            continue;
        }
        let module = module_of(file);
        for (line, path) in paths::named_paths(&lexer::code(text), &module) {
            for rule in rules.iter().filter(|rule| rule.forbids(&path)) {
                findings.push(format!(
                    "{file}:{line}: `{path}` in {}: {}",
                    rule.folder, rule.because
                ));
            }
            let refused = drivers.refuse(file, &path).filter(|_| !is_test(file));
            if let Some(because) = refused.or_else(|| engine_parts::refuse(file, &path)) {
                findings.push(format!("{file}:{line}: `{path}`: {because}"));
            }
        }
    }
    findings
}

/// The folders of drivers: those of `fabric/src` with a `provider.rs`.
struct DriverFolders<'a>(Vec<&'a str>);

impl<'a> DriverFolders<'a> {
    fn of(tree: &'a SourceTree) -> Self {
        let providers = tree.with_suffix("/provider.rs").map(|(file, _)| file);
        let folders = providers.filter_map(|file| {
            let inside = file.strip_prefix(FABRIC)?;
            inside.strip_suffix("/provider.rs")
        });
        Self(folders.collect())
    }

    /// Returns why this file may not name this path, if the path leads into a driver.
    fn refuse(&self, file: &str, path: &str) -> Option<&'static str> {
        let (root, inside) = path.split_once("::")?;
        let driver = inside.split("::").next()?;
        if !self.0.contains(&driver) {
            return None;
        }
        let of_node = driver == OF_NODE;
        match file.strip_prefix(FABRIC) {
            Some(file) if root == "crate" => {
                let folder = file.split('/').next()?;
                if self.0.contains(&folder) {
                    return (folder != driver).then_some("drivers do not know each other");
                }
                let refused = if of_node {
                    BELOW_DRIVERS.contains(&folder) && folder != "provider"
                } else {
                    file != "registry.rs"
                };
                refused.then_some("only the registry knows the drivers")
            }
            None if root == "ripstop_fabric" && file.starts_with("rt/src/") && !of_node => {
                Some("the runtime names no driver: it asks providers and capabilities")
            }
            _ => None,
        }
    }
}

const FABRIC: &str = "fabric/src/";

/// Driver whose folder has things of a node that exist before any driver: the board, and how ranks are woken.
const OF_NODE: &str = "shm";

/// Folders of `fabric/src` on which drivers stand, and the simulator, which stands in for one.
const BELOW_DRIVERS: [&str; 8] = [
    "connect", "driver", "lanes", "memory", "offload", "provider", "sim", "tags",
];

impl LayerRule {
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
    let ends = ["/tests.rs", "/loom_models.rs"];
    ends.iter().any(|end| file.ends_with(end)) || file.contains("/tests/")
}

/// Returns the module of a file: `rt/src/proto/path/cost_envelope.rs` is `crate::proto::path::cost_envelope`.
fn module_of(file: &str) -> Vec<&str> {
    let inside = file.split_once("src/").map_or("", |(_, inside)| inside);
    let parts = inside.trim_end_matches(".rs").split('/');
    let named = parts.filter(|part| !matches!(*part, "" | "mod" | "lib" | "main"));
    ["crate"].into_iter().chain(named).collect()
}

const RULES: [LayerRule; 24] = [
    LayerRule {
        folder: "fabric/src/",
        forbidden: &[
            "ripstop_rt",
            "ripstop_collectives",
            "ripstop_rma",
            "ripstop",
            "ripstop_softportals",
            "ripstop_portals_baselines",
        ],
        because: "fabric is below everything, and is of use without the runtime",
    },
    LayerRule {
        folder: "fabric/softportals/",
        forbidden: &[
            "ripstop_rt",
            "ripstop_collectives",
            "ripstop_rma",
            "ripstop",
        ],
        because: "it stands in for a vendor's library, which knows nothing of Ripstop",
    },
    LayerRule {
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
    LayerRule {
        folder: "fabric/src/driver/",
        forbidden: &["crate::hook", "crate::sim"],
        because: "the contract knows no driver",
    },
    LayerRule {
        folder: "fabric/src/memory/",
        forbidden: &["crate::hook", "crate::sim"],
        because: "memory knows no driver",
    },
    LayerRule {
        folder: "fabric/src/shm/",
        forbidden: &["crate::hook", "crate::sim"],
        because: "drivers do not know each other",
    },
    LayerRule {
        folder: "fabric/src/portals/",
        forbidden: &["crate::hook", "crate::sim"],
        because: "drivers do not know each other",
    },
    LayerRule {
        folder: "fabric/src/portals/transport/",
        forbidden: &[
            "crate::portals::onesided",
            "crate::portals::posted_recvs",
            "crate::portals::task_lists",
            "crate::portals::driver_state",
        ],
        because: "commands, posted receives and task lists stand on the transport",
    },
    LayerRule {
        folder: "fabric/src/portals/onesided/",
        forbidden: &[
            "crate::portals::posted_recvs",
            "crate::portals::task_lists",
            "crate::portals::driver_state",
        ],
        because: "task lists stand on commands, and what joins all parts is the driver's",
    },
    LayerRule {
        folder: "fabric/src/portals/task_lists/",
        forbidden: &[
            "crate::portals::posted_recvs",
            "crate::portals::driver_state",
        ],
        because: "what joins all parts is the driver's",
    },
    LayerRule {
        folder: "fabric/src/verbs/",
        forbidden: &["crate::hook", "crate::sim"],
        because: "drivers do not know each other",
    },
    LayerRule {
        folder: "fabric/src/loopback/",
        forbidden: &["crate::hook", "crate::sim"],
        because: "drivers do not know each other",
    },
    LayerRule {
        folder: "fabric/src/sim/",
        forbidden: &[
            "std::time::Instant",
            "std::time::SystemTime",
            "std::thread::spawn",
        ],
        because: "drivers do not know each other, and a simulation owns its time",
    },
    LayerRule {
        folder: "fabric/src/connect/",
        forbidden: &[
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
    LayerRule {
        folder: "rt/src/",
        forbidden: &["ripstop_collectives", "ripstop_rma", "ripstop"],
        because: "the runtime is below the collectives and the windows",
    },
    LayerRule {
        folder: "rt/src/",
        forbidden: &["ripstop_fabric::connect", "ripstop_fabric::lanes"],
        because: "only drivers need the code that they share",
    },
    LayerRule {
        folder: "rt/src/",
        forbidden: &["ripstop_portals_baselines"],
        because: "baselines are for benchmarks",
    },
    LayerRule {
        folder: "src/",
        forbidden: &["ripstop_portals_baselines"],
        because: "baselines are for benchmarks, and users neither build nor select them",
    },
    LayerRule {
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
    LayerRule {
        folder: "rt/src/reactor/",
        forbidden: &["crate::engine", "crate::proto", "crate::comm", "crate::ops"],
        because: "the reactor waits, and does not know what for",
    },
    LayerRule {
        folder: "collectives/",
        forbidden: &["ripstop_rma", "ripstop"],
        because: "collectives and rma are siblings: code that both need moves down",
    },
    LayerRule {
        folder: "rma/",
        forbidden: &["ripstop_collectives", "ripstop"],
        because: "collectives and rma are siblings: code that both need moves down",
    },
    LayerRule {
        folder: "tracing/",
        forbidden: &["ripstop_collectives", "ripstop_rma", "ripstop"],
        because: "spans need only the trace of the runtime, and examples of `ripstop` use them",
    },
    LayerRule {
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
    use super::{SourceTree, check, module_of};

    #[test]
    fn a_forbidden_path_is_found_however_it_is_written() {
        let tree = SourceTree::of(&[
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
    fn drivers_are_named_by_the_registry_only() {
        let node = "use crate::shm::Node;";
        let tree = SourceTree::of(&[
            ("fabric/src/shm/provider.rs", "use super::Shm;"),
            (
                "fabric/src/tcp/provider.rs",
                "use crate::{provider, tcp::Tcp};",
            ),
            ("fabric/src/tcp/mod.rs", node),
            ("fabric/src/driver/mod.rs", "use crate::tcp::Tcp;"),
            ("fabric/src/provider/opening.rs", node),
            ("fabric/src/registry.rs", "use crate::{shm::Shm, tcp::Tcp};"),
            ("fabric/src/hierarchical/mod.rs", node),
            ("fabric/src/hook/mod.rs", "use crate::tcp::Tcp;"),
            ("rt/src/a.rs", "use ripstop_fabric::{shm::Board, tcp::Tcp};"),
            ("rt/src/b.rs", "use ripstop_fabric::connect::Scheme;"),
        ]);
        let findings = check(&tree);
        let start = |line: &String| line.split(": ").next().map(str::to_owned);
        let files: Vec<_> = findings.iter().filter_map(start).collect();
        assert_eq!(
            files,
            [
                "fabric/src/driver/mod.rs:1",
                "fabric/src/hook/mod.rs:1",
                "fabric/src/tcp/mod.rs:1",
                "rt/src/a.rs:1",
                "rt/src/b.rs:1"
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
