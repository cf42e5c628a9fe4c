//! The baselines keep the part of the driver contract that their layouts can keep, and cost what they are known for.
//!
//! The claims, and the worlds that they run in, are those of the driver's own conformance suite.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic, and its numbers are small"
)]

#[path = "../../../../fabric/tests/conformance/copies.rs"]
mod copies;
mod costs;
#[expect(dead_code, reason = "baselines keep a part of the claims")]
#[path = "../../../../fabric/tests/conformance/messages.rs"]
mod messages;
#[expect(dead_code, reason = "baselines keep a part of the claims")]
#[path = "../../../../fabric/tests/conformance/onesided.rs"]
mod onesided;
#[path = "../../../../fabric/tests/conformance/sleeper.rs"]
mod sleeper;
#[expect(dead_code, reason = "baselines keep a part of the claims")]
#[path = "../../../../fabric/tests/conformance/waking.rs"]
mod waking;
#[expect(dead_code, reason = "baselines keep a part of the claims")]
#[path = "../../../../fabric/tests/conformance/world.rs"]
mod world;
mod worlds;

macro_rules! claims {
    ($make:path: $($group:ident::$claim:ident)*) => {
        $(#[test] fn $claim() { crate::$group::$claim($make) })*
    };
}

/// The layout of pscom does not fulfill the whole contract: a message that is dropped is sent again forever, so a rank whose peer
/// makes no turns cannot close properly.
macro_rules! exchanges {
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
                messages::both_sides_full_of_each_other_still_move
                messages::threads_exchange_streams_while_they_sleep_and_wake
                waking::no_wake_up_is_lost_in_a_game_of_ping_pong
                waking::no_wake_up_is_lost_among_many_senders
                waking::room_ends_the_sleep_of_a_refused_sender
                onesided::a_put_is_visible_when_a_message_that_follows_it_arrives
            }
        }
    };
}

exchanges!(on_portals_as_pscom, crate::worlds::pscom_world);
exchanges!(
    on_portals_as_pscom_with_little_room,
    crate::worlds::little_pscom_world
);

/// A rank that runs out of MPC's blocks cannot continue, so claims that fill them are left out.
mod on_portals_as_mpc {
    claims! { crate::worlds::mpc_world:
        messages::messages_of_every_inline_size_arrive_intact
        messages::headers_of_every_length_arrive_intact
        messages::bodies_up_to_the_longest_arrive_intact
        messages::the_senders_memory_is_free_when_posted
        messages::messages_of_one_peer_arrive_in_order
        messages::first_contact_of_all_with_all_at_the_same_time
        messages::a_rank_sends_to_itself
        waking::no_wake_up_is_lost_in_a_game_of_ping_pong
        waking::no_wake_up_is_lost_among_many_senders
        onesided::a_put_is_visible_when_a_message_that_follows_it_arrives
    }
}
