//! Ranks with different numbers of devices: a pair has as many lanes as the rank with fewer devices. Also ranks that connect at
//! different times.

use ripstop_fabric::{connect::ConnectPolicy, driver::Driver};

use super::world;
use crate::{counting, ending, lists, messages, onesided, world::Make};

/// Returns three ranks of which each pair has a different number of devices.
fn by_lanes_that_differ(ranks: u32) -> Vec<Box<dyn Driver>> {
    const DEVICES: [&str; 3] = ["rxe0,rxe1", "rxe2", "rxe3,rxe0,rxe1"];
    world(ranks, |config| {
        let devices = DEVICES[config.rank.0 as usize % DEVICES.len()];
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
        counting::a_reader_that_sees_the_count_of_a_put_sees_its_data,
        lists::tasks_count_each_other_on_from_rank_to_rank,
    ];
    for claim in claims {
        claim(by_lanes_that_differ);
    }
}

/// Returns four ranks of which two send short messages as datagram messages.
fn by_schemes_that_differ(ranks: u32) -> Vec<Box<dyn Driver>> {
    const SCHEMES: [ConnectPolicy; 4] = [
        ConnectPolicy::Hybrid,
        ConnectPolicy::OnDemand,
        ConnectPolicy::Hybrid,
        ConnectPolicy::AllToAll,
    ];
    world(ranks, |config| {
        config.device = Some("rxe0".to_owned());
        config.scheme = Some(SCHEMES[config.rank.0 as usize % SCHEMES.len()]);
    })
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn ranks_that_chose_different_schemes_hear_each_other() {
    let claims: [fn(Make); 4] = [
        messages::first_contact_of_all_with_all_at_the_same_time,
        messages::many_peers_at_once_do_not_mix,
        ending::a_peer_that_closes_is_reported_once_and_after_its_last_message,
        ending::the_only_messages_of_ranks_that_close_at_once_arrive,
    ];
    for claim in claims {
        claim(by_schemes_that_differ);
    }
}
