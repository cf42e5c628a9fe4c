//! Checks that `unsafe` occurs only in a few named files.

use super::{TidyFindings, lexer, tree::SourceTree};

pub(super) fn check(tree: &SourceTree) -> TidyFindings {
    compare(tree, ALLOWED)
}

fn compare(tree: &SourceTree, allowed: &[&str]) -> TidyFindings {
    let sources = tree.with_suffix(".rs").filter(|(_, text)| has_unsafe(text));
    let found: Vec<&str> = sources.map(|(file, _)| file).collect();
    let strays = found.iter().filter(|file| !allowed.contains(file));
    let stale = allowed.iter().filter(|file| !found.contains(file));
    strays
        .map(|file| format!("{file}: `unsafe` in a file that {LIST} does not name"))
        .chain(stale.map(|file| format!("{file}: has no `unsafe` any more; take it out of {LIST}")))
        .collect()
}

fn has_unsafe(source: &str) -> bool {
    let code = lexer::code(source);
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|word| word == "unsafe")
}

const LIST: &str = "xtask/src/tidy/unsafety.rs";

const ALLOWED: &[&str] = &[
    "examples/awp/wave/simd.rs",
    "examples/beside_mpi/src/mpi.rs",
    "examples/halo/heat/simd.rs",
    "fabric/benches/shm_pingpong.rs",
    "fabric/softportals/src/abi/calls/events.rs",
    "fabric/softportals/src/abi/calls/interface.rs",
    "fabric/softportals/src/abi/calls/mod.rs",
    "fabric/softportals/src/abi/calls/operations.rs",
    "fabric/softportals/src/abi/calls/table.rs",
    "fabric/softportals/src/abi/calls/text.rs",
    "fabric/softportals/src/abi/convert.rs",
    "fabric/softportals/src/abi/export.rs",
    "fabric/softportals/src/process/memory.rs",
    "fabric/softportals/src/transport/mapped_words.rs",
    "fabric/src/c_library.rs",
    "fabric/src/driver/payload.rs",
    "fabric/src/memory/long_copy.rs",
    "fabric/src/memory/region.rs",
    "fabric/src/memory/wide_word.rs",
    "fabric/src/memory/words.rs",
    "fabric/src/portals/calls.rs",
    "fabric/src/portals/match_entries.rs",
    "fabric/src/portals/library.rs",
    "fabric/src/portals/rma_calls.rs",
    "fabric/src/portals/triggers.rs",
    "fabric/src/portals/wakeups.rs",
    "fabric/src/shm/doorbell.rs",
    "fabric/src/shm/cma.rs",
    "fabric/src/shm/handover/named_sockets.rs",
    "fabric/src/shm/loom_models.rs",
    "fabric/src/shm/mapped_ring.rs",
    "fabric/src/shm/tests/mod.rs",
    "fabric/src/tcp/socket_calls.rs",
    "fabric/src/verbs/abi.rs",
    "fabric/src/verbs/library.rs",
    "fabric/src/verbs/objects/context.rs",
    "fabric/src/verbs/objects/memory.rs",
    "fabric/src/verbs/objects/mod.rs",
    "fabric/src/verbs/objects/queue_pair.rs",
    "fabric/src/verbs/objects/queues.rs",
    "fabric/tests/conformance/world.rs",
    "rt/macros/src/wire.rs",
    "rt/src/boot/pmi1/fd.rs",
    "rt/src/boot/pmi1/survive.rs",
    "rt/src/boot/pmix/library.rs",
    "rt/src/buffer/alloc.rs",
    "rt/src/buffer/mod.rs",
    "rt/src/buffer/part.rs",
    "rt/src/buffer/reg.rs",
    "rt/src/buffer/room.rs",
    "rt/src/buffer/strided.rs",
    "rt/src/buffer/tests.rs",
    "rt/src/buffer/wire.rs",
    "rt/src/comm/handle_cache.rs",
    "rt/src/engine/point_to_point/tests/arriving.rs",
    "rt/src/engine/point_to_point/tests/scripted_driver.rs",
    "rt/src/foreign_types/half.rs",
    "rt/src/foreign_types/mod.rs",
    "rt/src/foreign_types/nalgebra.rs",
    "rt/src/foreign_types/ndarray.rs",
    "rt/src/foreign_types/num_complex.rs",
    "rt/src/foreign_types/values.rs",
    "rt/src/heap.rs",
    "rt/src/lock.rs",
    "rt/src/onesided/node_window.rs",
    "rt/src/ops/erased_buffer.rs",
    "rt/src/ops/loom_models.rs",
    "rt/src/ops/memory.rs",
    "rt/src/ops/mod.rs",
    "rt/src/ops/slot.rs",
    "rt/src/reactor/uring.rs",
    "rt/src/scope.rs",
    "src/bin/ripstop/perf/allocations.rs",
    "src/bin/ripstop/perf/onesided.rs",
    "src/bin/ripstop/run/signals.rs",
    "src/bin/ripstop/top/screen.rs",
    "tests/forbidden.rs",
    "xtask/src/vm/clock.rs",
];

#[cfg(test)]
mod tests {
    use super::{SourceTree, compare};

    #[test]
    fn strays_and_stale_names_are_found_and_words_in_comments_are_not() {
        let tree = SourceTree::of(&[
            ("a.rs", "unsafe fn f() {}"),
            ("b.rs", "#![deny(unsafe_code)] // unsafe"),
            ("c.rs", "unsafe impl Send for X {}"),
        ]);
        let findings = compare(&tree, &["a.rs", "b.rs"]);
        assert_eq!(findings.len(), 2);
        assert!(
            findings[0].starts_with("c.rs") && findings[1].starts_with("b.rs"),
            "{findings:?}"
        );
    }
}
