//! Control words that wait for a connection.

use super::Ranks;
use crate::{
    connect::{ConnectEvent, ConnectPolicy, ConnectState},
    driver::WorldRank,
    verbs::{VerbsConfig, core::VerbsCore, lane::VerbsLane, wire::VerbsControlWord},
};

fn talking(config: &mut VerbsConfig) {
    config.scheme = Some(ConnectPolicy::Hybrid);
}

/// Leaves no buffers for one more peer on any device of this rank.
fn use_up(core: &mut VerbsCore) {
    for rail in &mut core.rails {
        while rail.inbox.reserve().is_ok() {}
    }
}

/// Pretends that a device may go on with a queue pair that was made for the peer.
fn keep_one(core: &mut VerbsCore) {
    let stuck = VerbsLane {
        stuck: true,
        ..VerbsLane::default()
    };
    core.links.get_or_new(WorldRank(1)).lanes = vec![stuck];
}

/// Either no other connection can be evicted, or evicting one would not help.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_rank_without_a_queue_pair_for_a_control_word_gives_the_peer_up() {
    for (spoil, reason) in [
        (use_up as fn(&mut VerbsCore), "receives for"),
        (keep_one, "may still use a queue pair"),
    ] {
        let mut ranks = Ranks::with(2, talking);
        let core = ranks.core(0);
        assert!(
            core.datagrams().accepts(WorldRank(1)),
            "so that it could do without, but for words"
        );
        spoil(core);
        core.links
            .queue_control(WorldRank(1), VerbsControlWord::Wake);
        core.ensure_connected(WorldRank(1));
        assert_eq!(
            core.links.get_or_new(WorldRank(1)).connection.state(),
            ConnectState::ReqSent
        );
        ranks.until_bad(&[0]);
        assert_eq!(ranks.ears[0].bad, ["WorldRank(1): Failed"]);
        let why = ranks.all[0]
            .core_ref()
            .links
            .why_down(WorldRank(1))
            .unwrap();
        assert!(why.contains(reason), "{why}");
    }
}

/// The control word that was left when the connection was evicted goes by the next one.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_word_that_is_left_over_has_the_peer_connected_to_again() {
    let mut ranks = Ranks::with(2, talking);
    ranks.core(0).ensure_connected(WorldRank(1));
    while !ranks.core(0).links.get_or_new(WorldRank(1)).open {
        (0..2).for_each(|rank| ranks.turn(rank, 64));
    }
    let core = ranks.core(0);
    core.handle_connect_event(WorldRank(1), ConnectEvent::Evict, None);
    core.links
        .queue_control(WorldRank(1), VerbsControlWord::Wake);
    while !ranks.core(0).links.get_or_new(WorldRank(1)).is_done() {
        (0..2).for_each(|rank| ranks.turn(rank, 64));
        let now = ranks.core(0).sleep.timer.now();
        assert!(now < super::GUARD, "it is never said");
    }
    assert!(ranks.core(0).links.get_or_new(WorldRank(1)).open);
}
