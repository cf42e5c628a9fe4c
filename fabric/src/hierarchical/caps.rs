//! Capabilities of two drivers combined.

use crate::driver::{Caps, DriverCost};

/// Returns what can be done with every rank.
pub(super) fn common_caps(near: &Caps, far: &Caps, all_near: bool) -> Caps {
    Caps {
        inline_max: near.inline_max.min(far.inline_max),
        header_max: near.header_max.min(far.header_max),
        body_max: near.body_max.min(far.body_max),
        ordered: near.ordered && far.ordered,
        reliable: near.reliable && far.reliable,
        detects_death: near.detects_death && (far.detects_death || all_near),
        shares_memory: false,
        ..far.clone()
    }
}

/// Returns what can be done with ranks of the same node: the messages of shared memory, and the gets and puts of either driver.
pub(super) fn node_caps(near: &Caps, far: &Caps, loopback: bool) -> Caps {
    let by_adapter = loopback || near.any_memory.is_err();
    let mover = if by_adapter { far } else { near };
    // Costs must not depend on what a node forbids its processors, because ranks of several nodes choose their collectives by
    // them.
    let priced = if loopback { far } else { near };
    Caps {
        any_memory: mover.any_memory.clone(),
        one_sided: mover.one_sided,
        by_processor: mover.by_processor,
        cost: DriverCost {
            send_ns: near.cost.send_ns,
            recv_ns: near.cost.recv_ns,
            latency_ns: near.cost.latency_ns,
            copy_ns_per_kib: near.cost.copy_ns_per_kib,
            message_ns_per_kib: near.cost.message_ns_per_kib,
            ..priced.cost
        },
        ..near.clone()
    }
}

/// Returns true if an adapter gets a megabyte faster than a processor.
pub(super) fn is_get_faster(far: &Caps, near: &Caps) -> bool {
    let needs = |cost: &DriverCost| cost.get_ns + 1024.0 * cost.get_ns_per_kib;
    far.any_memory.is_ok() && needs(&far.cost) < needs(&near.cost)
}
