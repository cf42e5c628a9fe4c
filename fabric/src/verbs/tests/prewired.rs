//! Connections between queue pairs that both ranks made before they knew each other.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use super::{GUARD, Ranks};
use crate::{
    connect::{ConnectEvent, ConnectState},
    driver::{DownCause, FailureWatch, WorldRank},
    verbs::{
        address_extension::AddressExtension, lane::PeerLane, prewired::PrewiredQps, rail::VerbsRail,
    },
};

/// Makes a queue pair on each rank for each other one. Returns these, and the address extension of each rank.
fn made(ranks: &mut Ranks) -> (Vec<PrewiredQps>, Vec<Option<AddressExtension>>) {
    let others = u32::try_from(ranks.all.len() - 1).unwrap();
    let made = (0..ranks.all.len()).map(|rank| {
        let core = ranks.core(rank);
        let sends = core.outbox.lanes.iter().map(|sends| Arc::clone(&sends.cq));
        let sends: Vec<_> = sends.collect();
        let mesh = PrewiredQps::new(&core.rails, &sends, &core.ports, others).unwrap();
        let extension = mesh.extension.clone();
        (mesh, Some(extension))
    });
    made.unzip()
}

/// Returns two ranks. The first has opened its connection, and the second does not know that yet.
fn met_by_one() -> Ranks {
    let mut ranks = Ranks::new(2);
    let (meshes, extension) = made(&mut ranks);
    for (rank, mesh) in meshes.into_iter().enumerate() {
        ranks.core(rank).connect_all(Some(mesh), &extension);
    }
    while !ranks.core(0).links.get_or_new(WorldRank(1)).open {
        ranks.turn(0, 64);
        assert!(ranks.core(0).sleep.timer.now() < GUARD, "it never opens");
    }
    assert_eq!(
        ranks
            .core(1)
            .links
            .get_or_new(WorldRank(0))
            .connection
            .state(),
        ConnectState::Bound
    );
    ranks
}

/// Otherwise a late packet of one connection could be taken by a later one with the same queue pair number.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn no_lane_of_a_later_connection_begins_with_the_number_of_one_before() {
    let mut ranks = met_by_one();
    let mut numbers = [BTreeSet::new(), BTreeSet::new()];
    for made in 1..=3 {
        ranks.say(0, 1);
        ranks.until(|ranks| ranks.ears[1].messages.len() == made);
        for (rank, peer) in [(0, 1), (1, 0)] {
            let lanes = ranks
                .core(rank)
                .links
                .get_or_new(WorldRank(peer))
                .qp_addresses();
            numbers[rank].extend(lanes.as_slice().iter().map(|lane| lane.psn));
            assert_eq!(numbers[rank].len(), 2 * made, "{:x?}", numbers[rank]);
        }
        ranks
            .core(0)
            .handle_connect_event(WorldRank(1), ConnectEvent::Evict, None);
        while [(0, 1), (1, 0)]
            .into_iter()
            .any(|(rank, peer)| ranks.core(rank).links.get_or_new(WorldRank(peer)).is_made())
        {
            (0..2).for_each(|rank| ranks.turn(rank, 64));
            assert!(ranks.core(0).sleep.timer.now() < GUARD, "it never ends");
        }
    }
}

/// A rank with as many connections as it may have accepts one more that it made at the start.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_was_made_beforehand_counts_where_connections_are_scarce() {
    let mut ranks = Ranks::new(4);
    for other in [1, 2] {
        ranks.say(0, other);
        ranks.until(|ranks| ranks.ears[other as usize].messages.len() == 1);
    }
    assert!(ranks.core(0).handle_exhausted(WorldRank(3)));
    let (meshes, mut extension) = made(&mut ranks);
    extension[1..3].fill(None);
    for (rank, mesh) in meshes.into_iter().enumerate() {
        if matches!(rank, 0 | 3) {
            ranks.core(rank).bind_prewired(mesh, &extension);
        }
    }
    ranks.say(3, 0);
    ranks.until(|ranks| ranks.ears[0].messages.len() == 1);
    assert!(!ranks.core(0).has_spare());
    // One of three connections is evicted, and two are allowed.
    ranks
        .core(0)
        .handle_connect_event(WorldRank(1), ConnectEvent::Evict, None);
    while ranks.core(0).links.get_or_new(WorldRank(1)).is_made() {
        (0..2).for_each(|rank| ranks.turn(rank, 64));
        assert!(ranks.core(0).sleep.timer.now() < GUARD, "it never ends");
    }
    assert!(!ranks.core(0).has_spare());
}

/// Otherwise the device of the rank that has connected its queue pair would wait for a minute.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_rank_that_cannot_bind_a_prewired_queue_pair_asks_and_is_answered() {
    for unable in [0, 1] {
        let mut ranks = Ranks::with(2, |config| config.patience = Duration::from_secs(60));
        let (meshes, extension) = made(&mut ranks);
        for (rank, mesh) in meshes.into_iter().enumerate() {
            let core = ranks.core(rank);
            let unlike = |rail: &mut VerbsRail| rail.device.ethernet ^= rank == unable;
            core.rails.iter_mut().for_each(unlike);
            core.connect_all(Some(mesh), &extension);
            core.rails.iter_mut().for_each(unlike);
        }
        ranks.say(0, 1);
        ranks.say(1, 0);
        ranks.until(|ranks| ranks.ears.iter().all(|ears| ears.messages.len() == 1));
    }
}

/// The peer's word that a lane has failed comes before this rank's device reports that the greeting was answered.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_lane_that_fails_at_once_is_left_before_its_greeting_was_acknowledged() {
    let mut ranks = met_by_one();
    let answers = ranks.all[0].answers(WorldRank(1));
    let failed = PeerLane {
        peer: WorldRank(1),
        lane: 1,
    };
    let why = io::Error::other("a test");
    ranks.core(0).links.note_broken(failed, why);
    while ranks.all[0].answers(WorldRank(1)) == answers {
        ranks.turn(0, 64);
    }
    ranks.until(|ranks| ranks.counters[1].lanes_failed.get() == 1);
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
}

/// The device reports the failure before the arrivals are handled that show that the peer has opened.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_lane_without_greetings_that_breaks_does_not_undo_the_connection() {
    let mut ranks = met_by_one();
    let broken = PeerLane {
        peer: WorldRank(0),
        lane: 1,
    };
    let core = ranks.core(1);
    core.links.note_broken(broken, io::Error::other("a test"));
    core.leave_lane(broken);
    assert_eq!(
        core.links.get_or_new(WorldRank(0)).connection.state(),
        ConnectState::Bound
    );
    ranks.say(1, 0);
    ranks.until(|ranks| ranks.ears[0].messages.len() == 1);
    let left = |ranks: &Ranks| [0, 1].map(|rank: usize| ranks.counters[rank].lanes_failed.get());
    ranks.until(|ranks| left(ranks) == [1; 2]);
}

/// The goodbye comes by another lane, because the lane of messages has failed.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn an_immediate_goodbye_arrives_before_the_greeting_was_acknowledged() {
    let mut ranks = met_by_one();
    let link = ranks.core(1).links.get_or_new(WorldRank(0));
    link.lanes[link.home].qp.as_ref().unwrap().reset();
    let mut core = ranks.all[0].core.take().unwrap();
    core.begin_close(DownCause::Finished);
    assert!(!core.finish(Duration::from_millis(100)), "no peer answers");
    drop(core);
    ranks.until_bad(&[1]);
    assert_eq!(ranks.ears[1].bad, ["WorldRank(0): Finished"]);
}
