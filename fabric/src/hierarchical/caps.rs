//! Capabilities of two drivers combined.

use crate::driver::{Caps, DriverCost};

/// Returns what can be done with every rank.
pub(super) fn common_caps(intra: &Caps, inter: &Caps, all_intra: bool) -> Caps {
    Caps {
        inline_max: intra.inline_max.min(inter.inline_max),
        header_max: intra.header_max.min(inter.header_max),
        body_max: intra.body_max.min(inter.body_max),
        ordered: intra.ordered && inter.ordered,
        reliable: intra.reliable && inter.reliable,
        detects_death: intra.detects_death && (inter.detects_death || all_intra),
        shares_memory: false,
        ..inter.clone()
    }
}

/// Returns what can be done with ranks of the same node: the messages of shared memory, and the gets and puts of either driver.
pub(super) fn node_caps(intra: &Caps, inter: &Caps, loopback: bool) -> Caps {
    let by_adapter = loopback || intra.any_memory.is_err();
    let mover = if by_adapter { inter } else { intra };
    // Costs must not depend on what a node forbids its processors, because ranks of several nodes must make the
    // same choices from them, such as the algorithm of a collective.
    let priced = if loopback { inter } else { intra };
    Caps {
        any_memory: mover.any_memory.clone(),
        one_sided: mover.one_sided,
        by_processor: mover.by_processor,
        cost: DriverCost {
            send_ns: intra.cost.send_ns,
            recv_ns: intra.cost.recv_ns,
            latency_ns: intra.cost.latency_ns,
            copy_ns_per_kib: intra.cost.copy_ns_per_kib,
            message_ns_per_kib: intra.cost.message_ns_per_kib,
            ..priced.cost
        },
        ..intra.clone()
    }
}

/// Returns true if an adapter gets a megabyte faster than a processor.
pub(super) fn is_get_faster(inter: &Caps, intra: &Caps) -> bool {
    let needs = |cost: &DriverCost| cost.get_ns + 1024.0 * cost.get_ns_per_kib;
    inter.any_memory.is_ok() && needs(&inter.cost) < needs(&intra.cost)
}
