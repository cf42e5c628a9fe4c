//! Ranks that open and close many times.

use std::time::Duration;

use super::{
    counters::{descriptors, pinned_kib, resources},
    world_on_one_device,
};
use crate::world::{Guard, World};

/// Two ranks open, exchange messages with each other and themselves, and close: everything they had is given back.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_thousand_connections_leave_no_queue_pair_descriptor_or_pinned_page_behind() {
    let come_and_go = || {
        let mut world = World::new(world_on_one_device, 2);
        world.meet();
        let (_region, _key) = world[0].memory(4096);
    };
    come_and_go();
    wait_until_all_is_gone();
    let (before, descriptors_before) = (resources(), descriptors());
    let cycles = cycles_wanted();
    for _ in 0..cycles {
        come_and_go();
    }
    wait_until_all_is_gone();
    assert_eq!(resources(), before);
    assert_eq!(descriptors(), descriptors_before);
    eprintln!("{cycles} worlds of two ranks came and went");
}

/// Waits until nothing is pinned. A rank that is dropped while it waits for an answer leaves the wait to a thread.
pub(super) fn wait_until_all_is_gone() {
    let guard = Guard::new();
    while pinned_kib() > 0 {
        pause();
        guard.check("pinned pages to be given back");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "threads of a library cannot be waited for"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

/// Returns the number of cycles. Each makes a connection between the ranks, and one of each rank to itself. `CYCLES` overrides
/// it.
fn cycles_wanted() -> usize {
    let given = std::env::var("CYCLES").ok();
    given.map_or(334, |text| text.parse().expect("CYCLES is a number"))
}
