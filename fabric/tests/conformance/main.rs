//! One suite for every driver: each claim of the driver contract is a function that runs on all drivers.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "a test may panic and says its seed, and its numbers are small"
)]

mod broken;
mod combine;
mod copies;
mod costs;
mod counting;
mod ending;
mod faults;
mod hierarchical;
mod hostile;
mod lists;
mod messages;
mod moving;
mod named_slots;
mod node_memory;
mod onesided;
mod peer_turns;
mod placing;
mod portals;
mod processes;
mod published;
mod rails;
mod refusals;
mod sleeper;
mod strangers;
mod tcp;
mod verbs;
mod waking;
mod world;

use ripstop_fabric::{
    driver::Driver,
    hook::{HookDriver, HookPlan},
    loopback,
    shm::{Board, Shm, ShmConfig, WakeMethod},
    sim::{Cluster, ClusterConfig, Model},
};

/// Faults that adapters must repair in the worlds that are called faulty.
const FAULTS: &str = "drop=0.3,dup=0.1,reorder=64";

macro_rules! claims {
    ($make:path: $($group:ident::$claim:ident)*) => {
        $(#[test] fn $claim() { crate::$group::$claim($make) })*
    };
}

/// For drivers that need a device, which most machines lack.
macro_rules! claims_on_a_device {
    ($make:path: $($group:ident::$claim:ident)*) => {
        $(
            #[test]
            #[ignore = "needs an RDMA device: run it in the virtual machine"]
            fn $claim() { crate::$group::$claim($make) }
        )*
    };
}

macro_rules! conformance {
    ($driver:ident, $make:path) => {
        conformance!(claims, $driver, $make);
    };
    ($claims:ident, $driver:ident, $make:path) => {
        mod $driver {
            $claims! { $make:
                messages::messages_of_every_inline_size_arrive_intact
                messages::headers_of_every_length_arrive_intact
                messages::bodies_up_to_the_longest_arrive_intact
                messages::the_senders_memory_is_free_when_posted
                messages::messages_of_one_peer_arrive_in_order
                messages::many_peers_at_once_do_not_mix
                messages::first_contact_of_all_with_all_at_the_same_time
                messages::a_rank_sends_to_itself
                messages::a_full_post_gives_back_the_command_and_nothing_is_lost
                messages::a_full_peer_does_not_stop_short_messages_to_others
                messages::both_sides_full_of_each_other_still_move
                messages::progress_keeps_to_its_budget_and_counts_what_it_hands_over
                messages::threads_exchange_streams_while_they_sleep_and_wake
                waking::arm_is_busy_when_something_came_since_the_last_progress
                waking::a_completion_that_was_not_handed_over_keeps_one_awake
                waking::what_ended_a_sleep_outlives_another_arming
                waking::an_idle_driver_sleeps
                waking::a_wake_up_is_over_after_the_next_turn
                waking::what_to_wait_on_does_not_change
                waking::the_very_first_message_ends_a_sleep
                waking::no_wake_up_is_lost_in_a_game_of_ping_pong
                waking::no_wake_up_is_lost_among_many_senders
                waking::room_ends_the_sleep_of_a_refused_sender
                waking::room_that_came_before_arming_is_not_slept_over
                waking::the_end_of_a_peer_ends_a_sleep
                onesided::a_put_writes_its_range_and_nothing_else
                onesided::a_get_reads_its_range_and_writes_nothing_else
                onesided::put_and_get_between_two_regions
                onesided::a_put_is_visible_when_a_message_that_follows_it_arrives
                onesided::allocated_memory_is_zeroed_whole_pages_and_never_empty
                onesided::a_key_opens_the_exposed_range_only
                onesided::wrong_keys_are_refused
                onesided::wrong_lengths_and_words_are_refused
                onesided::keys_of_random_bytes_harm_no_rank
                onesided::the_key_to_a_dropped_region_is_refused
                onesided::memory_from_elsewhere_is_reached_where_caps_say_so
                onesided::every_atomic_returns_the_old_word_and_leaves_the_new
                onesided::atomics_of_all_ranks_sum_up
                onesided::many_commands_in_flight_each_end_once
                counting::counts_of_all_ranks_add_up
                counting::a_reader_that_sees_the_count_of_a_put_sees_its_data
                counting::a_watched_threshold_is_told_once
                counting::what_is_reached_already_is_told_by_the_next_turn
                counting::a_watch_that_was_taken_back_is_not_told
                counting::the_owner_sleeps_until_what_it_watches_is_reached
                counting::no_wake_up_is_lost_in_a_game_of_counts
                counting::no_wake_up_is_lost_among_many_counting_ranks
                counting::wrong_counters_count_nothing
                counting::a_put_with_a_wrong_counter_writes_nothing
                counting::a_count_for_a_rank_that_is_gone_is_dropped
                counting::counters_of_no_number_are_refused
                ending::a_peer_that_closes_is_reported_once_and_after_its_last_message
                ending::a_message_posted_just_before_the_end_arrives
                ending::the_only_messages_of_ranks_that_close_at_once_arrive
                ending::commands_for_a_peer_that_is_down_end
                ending::a_peer_that_closes_while_full_frees_the_sender
                ending::ranks_may_close_in_any_order_with_messages_in_flight
                ending::ranks_that_close_at_the_same_time_do_not_hang
            }
        }
    };
}

/// For adapters that match tags.
macro_rules! placing {
    ($driver:ident, $make:path) => {
        mod $driver {
            claims! { $make:
                placing::a_body_is_where_its_receiver_wants_it
                placing::what_came_before_memory_was_lent_is_handed_over_first
                placing::memory_is_for_messages_of_its_peer_and_its_tag
                placing::a_body_that_is_too_long_leaves_memory_to_the_next
                placing::memory_that_was_taken_back_is_left_alone
                placing::memory_that_has_its_message_is_not_taken_back
                placing::memory_runs_out_and_comes_again
                placing::the_end_of_a_peer_gives_memory_back
                placing::a_message_that_is_placed_ends_a_sleep
                placing::whatever_is_lent_all_arrives_in_order_and_every_loan_ends
                placing::what_was_refused_comes_again_in_order_whether_placed_or_not
            }
        }
    };
}

/// For drivers that run task lists.
macro_rules! lists {
    ($driver:ident, $make:path) => {
        lists!(claims, $driver, $make);
    };
    ($claims:ident, $driver:ident, $make:path) => {
        mod $driver {
            $claims! { $make:
                lists::a_task_begins_when_its_counters_have_come_far_enough
                lists::a_list_is_told_once_when_all_of_it_has_begun
                lists::a_put_goes_where_its_peer_says_when_it_begins
                lists::a_put_does_not_go_to_a_place_for_something_else
                lists::the_put_of_a_pair_goes_where_it_was_offered
                lists::the_put_of_a_pair_does_not_go_where_something_else_was_offered
                lists::a_peer_that_leaves_with_an_offered_landing_ends_the_list
                lists::tasks_count_each_other_on_from_rank_to_rank
                lists::a_sleeping_rank_is_woken_for_its_tasks
                lists::a_copy_within_the_rank_is_done_before_it_is_counted
                combine::blocks_that_arrive_are_added_and_wrap
                combine::of_blocks_that_arrive_the_lesser_elements_stay
                combine::of_blocks_that_arrive_the_greater_elements_stay
                combine::bits_that_both_blocks_have_stay
                combine::bits_that_either_block_has_stay
                combine::bits_that_one_block_has_stay
                lists::a_list_that_finds_no_room_is_given_back_whole
                lists::lists_that_are_taken_back_begin_nothing
                lists::a_task_that_fails_takes_back_its_lists
                lists::a_rank_that_closes_takes_its_lists_along
            }
        }
    };
}

/// For drivers that also give names.
macro_rules! names {
    ($driver:ident, $make:path) => {
        names!(claims, $driver, $make);
    };
    ($claims:ident, $driver:ident, $make:path) => {
        mod $driver {
            $claims! { $make:
                lists::what_comes_before_its_name_is_given_waits_for_it
                lists::a_name_that_was_taken_back_or_never_given_opens_nothing
            }
        }
    };
}

names!(names_on_sim, crate::sim_world);
names!(names_on_sim_with_rails_and_nodes, crate::bxi_world);
names!(
    names_on_sim_that_loses_doubles_and_reorders,
    crate::faulty_world
);

/// For drivers that also have named slots.
macro_rules! named_slots {
    ($driver:ident, $make:path) => {
        mod $driver {
            claims! { $make:
                named_slots::messages_in_slots_are_there_once_and_under_their_names
                named_slots::full_slots_refuse_messages_until_all_are_free
                named_slots::long_messages_leave_room_for_others_and_find_it_again
                named_slots::what_is_left_for_several_lies_in_one_place
                named_slots::one_more_of_another_length_is_another_message
                named_slots::long_messages_find_room_again_whatever_their_length
                named_slots::slots_of_several_peers_and_both_directions_do_not_mix
                named_slots::a_message_in_a_slot_stays_when_its_sender_has_gone
            }
        }
    };
}

named_slots!(slots_on_shm, crate::futex_world);
named_slots!(slots_on_shm_with_a_descriptor, crate::descriptor_world);
named_slots!(slots_on_shm_with_little_room, crate::small_world);
named_slots!(
    slots_on_shm_beside_a_network,
    crate::hierarchical::one_node_world
);

/// For drivers that also make turns for single peers.
macro_rules! peer_turns {
    ($driver:ident, $make:path) => {
        mod $driver {
            claims! { $make:
                peer_turns::a_turn_for_a_peer_hands_out_one_message_of_that_peer
                peer_turns::an_awaited_message_is_taken_only_if_it_comes_next
                peer_turns::messages_keep_their_order_whichever_turn_hands_them_out
                peer_turns::turns_for_a_peer_alone_give_room_back
            }
        }
    };
}

peer_turns!(peer_turns_on_shm, crate::futex_world);
peer_turns!(peer_turns_on_shm_with_little_room, crate::small_world);
peer_turns!(
    peer_turns_on_shm_beside_a_network,
    crate::hierarchical::one_node_world
);

/// For drivers that map memory within a node.
macro_rules! node_memory {
    ($driver:ident, $make:path) => {
        mod $driver {
            claims! { $make:
                node_memory::ranks_that_share_it_see_what_each_other_writes
                node_memory::keys_of_other_ranks_or_of_random_bytes_map_nothing
            }
        }
    };
}

node_memory!(node_memory_of_shm, crate::futex_world);
node_memory!(
    node_memory_of_shm_beside_a_network,
    crate::hierarchical::one_node_world
);
node_memory!(node_memory_of_nodes, crate::hierarchical::nodes_world);
node_memory!(
    node_memory_of_nodes_on_portals,
    crate::hierarchical::nodes_on_portals
);

lists!(lists_on_sim, crate::sim_world);
lists!(lists_on_sim_with_rails_and_nodes, crate::bxi_world);
lists!(lists_on_sim_with_little_room, crate::cramped_world);
lists!(lists_on_sim_that_combines, crate::combining_world);
lists!(
    lists_on_sim_that_loses_doubles_and_reorders,
    crate::faulty_world
);

conformance!(on_loopback, crate::loopback_world);
conformance!(on_a_hook_without_faults, crate::hooked_world);

conformance!(on_sim, crate::sim_world);
conformance!(on_sim_with_rails_and_nodes, crate::bxi_world);
conformance!(on_sim_with_little_room, crate::cramped_world);
conformance!(on_sim_that_loses_doubles_and_reorders, crate::faulty_world);
conformance!(on_sim_with_connections, crate::connecting_world);
conformance!(on_sim_with_two_slots, crate::two_slots_world);

conformance!(on_sim_seastar_under_faults, crate::faulty_seastar);
conformance!(on_sim_bxi_under_faults, crate::faulty_bxi);
conformance!(on_sim_sdr_under_faults, crate::faulty_sdr);
conformance!(on_sim_qdr_under_faults, crate::faulty_qdr);
conformance!(on_sim_hdr_under_faults, crate::faulty_hdr);
conformance!(on_sim_shm_under_faults, crate::faulty_shm);

conformance!(on_shm_with_a_futex, crate::futex_world);
conformance!(on_shm_with_a_descriptor, crate::descriptor_world);
conformance!(on_shm_that_copies_twice, crate::two_copy_world);
conformance!(on_shm_with_little_room, crate::small_world);

conformance!(on_shm_beside_a_network, crate::hierarchical::one_node_world);
conformance!(on_nodes_of_shm, crate::hierarchical::nodes_world);
conformance!(
    on_shm_beside_portals,
    crate::hierarchical::one_node_on_portals
);
conformance!(
    on_nodes_of_shm_on_portals,
    crate::hierarchical::nodes_on_portals
);

/// Claims of the contract, without some in which one rank makes no turns: the target of a one-sided command performs it, and
/// the sender sends what its socket had no room for. Also, a count arrives like a message, so it ends a sleep even if no rank
/// waits for it.
macro_rules! over_tcp {
    ($driver:ident, $make:path) => {
        mod $driver {
            claims! { $make:
                messages::messages_of_every_inline_size_arrive_intact
                messages::headers_of_every_length_arrive_intact
                messages::bodies_up_to_the_longest_arrive_intact
                messages::the_senders_memory_is_free_when_posted
                messages::messages_of_one_peer_arrive_in_order
                messages::many_peers_at_once_do_not_mix
                messages::first_contact_of_all_with_all_at_the_same_time
                messages::a_rank_sends_to_itself
                messages::a_full_post_gives_back_the_command_and_nothing_is_lost
                messages::a_full_peer_does_not_stop_short_messages_to_others
                messages::both_sides_full_of_each_other_still_move
                messages::progress_keeps_to_its_budget_and_counts_what_it_hands_over
                messages::threads_exchange_streams_while_they_sleep_and_wake
                waking::arm_is_busy_when_something_came_since_the_last_progress
                waking::an_idle_driver_sleeps
                waking::a_wake_up_is_over_after_the_next_turn
                waking::what_to_wait_on_does_not_change
                waking::the_very_first_message_ends_a_sleep
                waking::no_wake_up_is_lost_in_a_game_of_ping_pong
                waking::no_wake_up_is_lost_among_many_senders
                waking::room_ends_the_sleep_of_a_refused_sender
                waking::the_end_of_a_peer_ends_a_sleep
                onesided::a_put_writes_its_range_and_nothing_else
                onesided::a_get_reads_its_range_and_writes_nothing_else
                onesided::put_and_get_between_two_regions
                onesided::a_put_is_visible_when_a_message_that_follows_it_arrives
                onesided::allocated_memory_is_zeroed_whole_pages_and_never_empty
                onesided::a_key_opens_the_exposed_range_only
                onesided::wrong_keys_are_refused
                onesided::wrong_lengths_and_words_are_refused
                onesided::keys_of_random_bytes_harm_no_rank
                onesided::the_key_to_a_dropped_region_is_refused
                onesided::memory_from_elsewhere_is_reached_where_caps_say_so
                onesided::every_atomic_returns_the_old_word_and_leaves_the_new
                onesided::many_commands_in_flight_each_end_once
                counting::counts_of_all_ranks_add_up
                counting::a_reader_that_sees_the_count_of_a_put_sees_its_data
                counting::a_watched_threshold_is_told_once
                counting::what_is_reached_already_is_told_by_the_next_turn
                counting::a_watch_that_was_taken_back_is_not_told
                counting::no_wake_up_is_lost_in_a_game_of_counts
                counting::no_wake_up_is_lost_among_many_counting_ranks
                counting::wrong_counters_count_nothing
                counting::a_put_with_a_wrong_counter_writes_nothing
                counting::a_count_for_a_rank_that_is_gone_is_dropped
                counting::counters_of_no_number_are_refused
                ending::a_peer_that_closes_is_reported_once_and_after_its_last_message
                ending::a_message_posted_just_before_the_end_arrives
                ending::the_only_messages_of_ranks_that_close_at_once_arrive
                ending::commands_for_a_peer_that_is_down_end
                ending::a_peer_that_closes_while_full_frees_the_sender
                ending::ranks_may_close_in_any_order_with_messages_in_flight
                ending::ranks_that_close_at_the_same_time_do_not_hang
            }
        }
    };
}

over_tcp!(on_tcp, crate::tcp::world);
over_tcp!(on_tcp_that_comes_late, crate::tcp::late_world);

conformance!(on_portals_as_sandia42, crate::portals::sandia42_world);
conformance!(on_portals_as_portails4, crate::portals::portails4_world);
conformance!(on_portals_that_comes_late, crate::portals::late_world);
conformance!(on_portals_with_little_room, crate::portals::small_world);
conformance!(
    on_portals_that_matches_as_sandia42,
    crate::portals::matching_sandia42_world
);
conformance!(
    on_portals_that_matches_with_little_room,
    crate::portals::matching_small_world
);
placing!(
    placing_on_portals_as_sandia42,
    crate::portals::matching_sandia42_world
);
placing!(
    placing_on_portals_as_portails4,
    crate::portals::matching_portails4_world
);
placing!(
    placing_on_portals_with_little_room,
    crate::portals::matching_small_world
);
conformance!(
    on_portals_as_published_sandia42,
    crate::portals::published_sandia42_world
);
conformance!(
    on_portals_as_published_portails4,
    crate::portals::published_portails4_world
);
conformance!(
    on_portals_that_never_ends_what_goes_to_the_dead,
    crate::portals::endless_world
);
conformance!(
    on_portals_that_say_little_by_themselves,
    crate::portals::reticent_world
);
conformance!(
    on_portals_with_a_waiting_thread,
    crate::portals::helped_world
);
conformance!(on_portals_by_two_rails, crate::rails::two_rails_world);
conformance!(on_portals_by_four_rails, crate::rails::four_rails_world);
conformance!(
    on_portals_by_four_rails_and_a_waiting_thread,
    crate::rails::four_helped_rails_world
);

lists!(lists_on_portals_as_sandia42, crate::portals::sandia42_world);
lists!(
    lists_on_portals_as_portails4,
    crate::portals::portails4_world
);
lists!(
    lists_on_portals_with_little_room,
    crate::portals::small_world
);
lists!(
    lists_on_portals_with_a_waiting_thread,
    crate::portals::helped_world
);
lists!(
    lists_on_portals_with_eight_triggers,
    crate::portals::eight_world
);
lists!(lists_on_portals_by_two_rails, crate::rails::two_rails_world);
names!(names_on_portals, crate::portals::sandia42_world);
conformance!(
    claims_on_a_device,
    on_verbs,
    crate::verbs::world_on_one_device
);
conformance!(
    claims_on_a_device,
    on_verbs_across_devices,
    crate::verbs::world_across_devices
);
conformance!(
    claims_on_a_device,
    on_verbs_by_two_lanes,
    crate::verbs::world_by_two_lanes
);
conformance!(
    claims_on_a_device,
    on_verbs_by_four_lanes,
    crate::verbs::world_by_four_lanes
);

lists!(
    claims_on_a_device,
    lists_on_verbs,
    crate::verbs::world_on_one_device
);
names!(
    claims_on_a_device,
    names_on_verbs,
    crate::verbs::world_on_one_device
);
lists!(
    claims_on_a_device,
    lists_on_verbs_across_devices,
    crate::verbs::world_across_devices
);
lists!(
    claims_on_a_device,
    lists_on_verbs_by_two_lanes,
    crate::verbs::world_by_two_lanes
);
names!(
    claims_on_a_device,
    names_on_verbs_across_devices,
    crate::verbs::world_across_devices
);

/// Claims about messages and the end of ranks; one-sided commands use a connection as always. The sender of a datagram message
/// must make turns for the answer, so claims in which only the receiver does are left out.
mod on_verbs_by_datagrams {
    claims_on_a_device! { crate::verbs::world_with_datagrams:
        messages::messages_of_every_inline_size_arrive_intact
        messages::headers_of_every_length_arrive_intact
        messages::bodies_up_to_the_longest_arrive_intact
        messages::the_senders_memory_is_free_when_posted
        messages::messages_of_one_peer_arrive_in_order
        messages::many_peers_at_once_do_not_mix
        messages::first_contact_of_all_with_all_at_the_same_time
        messages::a_full_post_gives_back_the_command_and_nothing_is_lost
        messages::a_full_peer_does_not_stop_short_messages_to_others
        messages::both_sides_full_of_each_other_still_move
        messages::threads_exchange_streams_while_they_sleep_and_wake
        waking::arm_is_busy_when_something_came_since_the_last_progress
        waking::an_idle_driver_sleeps
        waking::a_wake_up_is_over_after_the_next_turn
        waking::the_very_first_message_ends_a_sleep
        waking::no_wake_up_is_lost_in_a_game_of_ping_pong
        waking::no_wake_up_is_lost_among_many_senders
        waking::room_ends_the_sleep_of_a_refused_sender
        waking::the_end_of_a_peer_ends_a_sleep
        onesided::a_put_is_visible_when_a_message_that_follows_it_arrives
        counting::a_reader_that_sees_the_count_of_a_put_sees_its_data
        ending::a_peer_that_closes_is_reported_once_and_after_its_last_message
        ending::a_message_posted_just_before_the_end_arrives
        ending::the_only_messages_of_ranks_that_close_at_once_arrive
        ending::a_peer_that_closes_while_full_frees_the_sender
        ending::ranks_may_close_in_any_order_with_messages_in_flight
        ending::ranks_that_close_at_the_same_time_do_not_hang
    }
}

/// Claims about the first and the last messages of two ranks.
mod on_verbs_at_once {
    claims_on_a_device! { crate::verbs::world_at_once:
        messages::messages_of_every_inline_size_arrive_intact
        messages::messages_of_one_peer_arrive_in_order
        messages::many_peers_at_once_do_not_mix
        messages::first_contact_of_all_with_all_at_the_same_time
        ending::the_only_messages_of_ranks_that_close_at_once_arrive
        ending::ranks_may_close_in_any_order_with_messages_in_flight
    }
}

/// Claims with more than two ranks. A rank that has evicted a connection takes part in making the next one, so claims with ranks
/// that make no turns are left out.
mod on_verbs_with_few_connections {
    claims_on_a_device! { crate::verbs::world_with_few_connections:
        messages::many_peers_at_once_do_not_mix
        messages::first_contact_of_all_with_all_at_the_same_time
        ending::the_only_messages_of_ranks_that_close_at_once_arrive
        ending::ranks_may_close_in_any_order_with_messages_in_flight
    }
}

fn loopback_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    loopback::world(ranks)
        .into_iter()
        .map(|rank| Box::new(rank) as Box<dyn Driver>)
        .collect()
}

fn hooked_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    let hooked = loopback_world(ranks)
        .into_iter()
        .map(|rank| HookDriver::new(rank, HookPlan::new()));
    hooked
        .map(|rank| Box::new(rank) as Box<dyn Driver>)
        .collect()
}

fn sim_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    cluster_world(ranks, Model::default())
}

fn bxi_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    let mut model = Model::preset("bxi-4").unwrap();
    model.node.ranks = 2;
    cluster_world(ranks, model)
}

fn combining_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    let mut model = Model::default();
    (model.nic.combine, model.nic.byte_ps) = (4096, 80);
    cluster_world(ranks, model)
}

fn cramped_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    let mut model = Model::preset("seastar").unwrap();
    (model.nic.queue, model.nic.queue_bytes, model.nic.commands) = (4, 3000, 2);
    cluster_world(ranks, model)
}

fn faulty_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    let mut model = Model::default();
    model.nic.gap_ns = 50;
    world_with_faults(ranks, model, FAULTS)
}

fn faulty_seastar(ranks: u32) -> Vec<Box<dyn Driver>> {
    faulty_preset(ranks, "seastar")
}

fn faulty_bxi(ranks: u32) -> Vec<Box<dyn Driver>> {
    faulty_preset(ranks, "bxi-4")
}

fn faulty_sdr(ranks: u32) -> Vec<Box<dyn Driver>> {
    faulty_preset(ranks, "sdr")
}

fn faulty_qdr(ranks: u32) -> Vec<Box<dyn Driver>> {
    faulty_preset(ranks, "qdr")
}

fn faulty_hdr(ranks: u32) -> Vec<Box<dyn Driver>> {
    faulty_preset(ranks, "hdr")
}

fn faulty_shm(ranks: u32) -> Vec<Box<dyn Driver>> {
    faulty_preset(ranks, "shm")
}

fn faulty_preset(ranks: u32, preset: &str) -> Vec<Box<dyn Driver>> {
    world_with_faults(ranks, Model::preset(preset).unwrap(), FAULTS)
}

fn connecting_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    let mut model = Model::preset("qdr").unwrap();
    model.node.ranks = 1;
    world_with_faults(ranks, model, "drop=0.2,dup=0.2,delay=0.1:20us,corrupt=0.01")
}

fn two_slots_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world_with_faults(ranks, Model::default(), "slots=2")
}

fn cluster_world(ranks: u32, model: Model) -> Vec<Box<dyn Driver>> {
    world_with_faults(ranks, model, "")
}

fn world_with_faults(ranks: u32, model: Model, faults: &str) -> Vec<Box<dyn Driver>> {
    let config = ClusterConfig {
        faults: faults.parse().unwrap(),
        seed: 7,
        model,
        free_running: true,
        ..ClusterConfig::new(ranks)
    };
    let cluster = Cluster::new(config).unwrap();
    (0..ranks)
        .map(|rank| Box::new(cluster.driver(rank)) as Box<dyn Driver>)
        .collect()
}

fn futex_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    shm_world(ranks, |config| config)
}

fn descriptor_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    shm_world(ranks, |config| ShmConfig {
        wake: WakeMethod::Fd,
        ..config
    })
}

fn two_copy_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    shm_world(ranks, |config| ShmConfig {
        single_copy: false,
        ..config
    })
}

fn small_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    shm_world(ranks, |config| ShmConfig {
        ring_slots: 4,
        chunks: 2,
        ..config
    })
}

fn shm_world(ranks: u32, change: fn(ShmConfig) -> ShmConfig) -> Vec<Box<dyn Driver>> {
    let board = Board::create(ranks).unwrap();
    let open = |rank| {
        Box::new(Shm::open(&board, change(ShmConfig::new(rank))).unwrap()) as Box<dyn Driver>
    };
    (0..ranks).map(open).collect()
}
