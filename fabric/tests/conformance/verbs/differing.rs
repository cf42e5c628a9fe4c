//! Ranks with different numbers of devices: two of them have as many lanes as who has fewer.

use ripstop_fabric::driver::Driver;

use super::world;
use crate::{counting, lists, messages, onesided, world::Make};

/// Of three ranks each pair has another number of devices.
fn by_lanes_that_differ(ranks: u32) -> Vec<Box<dyn Driver>> {
    const DEVICES: [&str; 3] = ["rxe0,rxe1", "rxe2", "rxe3,rxe0,rxe1"];
    world(ranks, |config| {
        let devices = DEVICES[config.rank as usize % DEVICES.len()];
        config.device = Some(devices.to_owned());
    })
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn ranks_use_the_lanes_that_both_have() {
    let claims: [fn(Make); 8] = [
        messages::first_contact_of_all_with_all_at_the_same_time,
        messages::many_peers_at_once_do_not_mix,
        onesided::put_and_get_between_two_regions,
        onesided::memory_from_elsewhere_is_reached_where_caps_say_so,
        onesided::atomics_of_all_ranks_sum_up,
        counting::counts_of_all_ranks_add_up,
        counting::who_sees_the_count_of_a_put_sees_its_data,
        lists::tasks_count_each_other_on_from_rank_to_rank,
    ];
    for claim in claims {
        claim(by_lanes_that_differ);
    }
}
