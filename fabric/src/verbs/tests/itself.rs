//! Commands of a rank to itself when its devices fail.

use super::{
    CommandToken, Driver, DriverCommand, LONG, MemoryRegion, PeerLane, PostResult, Ranks,
    WorldRank, io,
};
use crate::{
    driver::AtomicOp,
    memory::RemoteRegion,
    verbs::{
        abi,
        async_events::{DeviceEvent, EventSubject},
    },
};

/// Makes a device of rank 0 fail.
fn fail(ranks: &mut Ranks, device: usize) {
    let (kind, subject) = (abi::EVENT_CQ_ERR, EventSubject::Other);
    let happened = DeviceEvent { kind, subject };
    ranks.core(0).handle_device_event(device, happened);
}

/// Sends a message of this length from rank 0 to itself, as soon as there is room.
fn say(ranks: &mut Ranks, len: usize) {
    let say = || DriverCommand::Message {
        to: WorldRank(0),
        header: b"",
        body: &[7; 1000][..len],
    };
    while !matches!(ranks.all[0].post(say()), PostResult::Posted) {
        turn(ranks);
    }
}

fn turn(ranks: &mut Ranks) {
    let _events = ranks.all[0].progress(64, &mut ranks.ears[0]);
    let now = ranks.core(0).sleep.timer.now();
    assert!(now < super::GUARD, "it never comes");
}

fn until_heard(ranks: &mut Ranks, lengths: &[usize]) {
    ranks.until(|ranks| ranks.ears[0].lengths.len() >= lengths.len());
    assert_eq!(ranks.ears[0].lengths, lengths);
}

fn memory(ranks: &mut Ranks) -> (MemoryRegion, MemoryRegion, RemoteRegion) {
    let [from, there] = [0, 0].map(|rank: usize| ranks.all[rank].allocate(LONG).unwrap());
    from.write(0, &[9; LONG]);
    let key = ranks.all[0].expose(there.range()).unwrap();
    (from, there, key)
}

/// Returns ranks, of which the first has sent a message to itself if `met`.
fn with_memory(met: bool) -> (Ranks, (MemoryRegion, MemoryRegion, RemoteRegion)) {
    let mut ranks = Ranks::new(2);
    let memory = memory(&mut ranks);
    if met {
        say(&mut ranks, 1);
        until_heard(&mut ranks, &[1]);
    }
    (ranks, memory)
}

fn put(ranks: &mut Ranks, from: &MemoryRegion, into: RemoteRegion) {
    let put = DriverCommand::Put {
        to: WorldRank(0),
        from: from.range(),
        into,
        count: None,
        token: CommandToken(1),
    };
    assert!(matches!(ranks.all[0].post(put), PostResult::Posted));
}

fn fetch(ranks: &mut Ranks, at: RemoteRegion) {
    let fetch = DriverCommand::Atomic {
        to: WorldRank(0),
        at: at.slice(0, 8).unwrap(),
        op: AtomicOp::Fetch,
        token: CommandToken(2),
    };
    assert!(matches!(ranks.all[0].post(fetch), PostResult::Posted));
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_rank_whose_first_device_has_failed_speaks_to_itself_by_the_second() {
    let mut ranks = Ranks::new(2);
    fail(&mut ranks, 0);
    say(&mut ranks, 1000);
    say(&mut ranks, 3);
    until_heard(&mut ranks, &[1000, 3]);
    let (from, there, key) = memory(&mut ranks);
    put(&mut ranks, &from, key);
    ranks.until(|ranks| ranks.ears[0].ended == 1);
    let mut bytes = vec![0; LONG];
    there.read(0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 9));
    assert!(ranks.ears[0].bad.is_empty());
}

/// Messages that the first device has taken are lost with it, and so is a half of the put.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_a_rank_says_to_itself_while_its_first_device_fails_comes_once_and_in_order() {
    for told in [true, false] {
        let mut ranks = Ranks::new(2);
        let (from, there, key) = memory(&mut ranks);
        say(&mut ranks, 1);
        until_heard(&mut ranks, &[1]);
        say(&mut ranks, 2); // may have arrived
        let link = ranks.core(0).links.get_or_new(WorldRank(0));
        assert_eq!(link.home, 0);
        link.lanes[0].qp.as_ref().unwrap().abandon();
        for len in [3, 1000, 4] {
            say(&mut ranks, len);
        }
        put(&mut ranks, &from, key);
        if told {
            fail(&mut ranks, 0);
        } else {
            let to = PeerLane {
                peer: WorldRank(0),
                lane: 0,
            };
            ranks
                .core(0)
                .links
                .note_broken(to, io::Error::other("a test"));
        }
        ranks.until(|ranks| ranks.ears[0].ended == 1);
        until_heard(&mut ranks, &[1, 2, 3, 1000, 4]);
        ranks.until_settled(0, 0);
        for len in 10..60 {
            say(&mut ranks, len);
            ranks.until(|ranks| ranks.ears[0].lengths.last() == Some(&len));
        }
        assert_eq!(ranks.ears[0].lengths.len(), 55);
        let mut bytes = vec![0; LONG];
        there.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 9));
        assert!(
            !ranks
                .core(0)
                .links
                .get_or_new(WorldRank(0))
                .lanes_at_work()
                .has(0)
        );
        let failed = ranks.counters[0].lanes_failed.get();
        assert_eq!(failed, 0, "none to a peer");
    }
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_a_rank_says_to_itself_by_its_first_device_does_not_heed_the_second() {
    let mut ranks = Ranks::new(2);
    let (_from, _there, key) = memory(&mut ranks);
    say(&mut ranks, 1);
    fail(&mut ranks, 1);
    say(&mut ranks, 2);
    fetch(&mut ranks, key);
    until_heard(&mut ranks, &[1, 2]);
    ranks.until(|ranks| ranks.ears[0].ended == 1);
}

/// Atomics go by the first device, as those of peers do.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_rank_that_needs_its_failed_device_for_itself_hears_that_it_does_not_reach_itself() {
    for met in [false, true] {
        let (mut ranks, (_from, _there, key)) = with_memory(met);
        fail(&mut ranks, 0);
        say(&mut ranks, 2);
        until_heard(&mut ranks, if met { &[1, 2] } else { &[2] });
        fetch(&mut ranks, key);
        is_lost_to_itself(&mut ranks, "path through the first device");
    }
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_rank_without_any_device_hears_that_what_it_says_to_itself_is_lost() {
    for met in [false, true] {
        let (mut ranks, (_from, _there, key)) = with_memory(met);
        fail(&mut ranks, 0);
        fail(&mut ranks, 1);
        say(&mut ranks, 2);
        fetch(&mut ranks, key);
        is_lost_to_itself(&mut ranks, "IBV_EVENT_CQ_ERR");
    }
}

fn is_lost_to_itself(ranks: &mut Ranks, why: &str) {
    while ranks.ears[0].bad.len() < 2 {
        turn(ranks);
    }
    ranks.ears[0].bad.sort_unstable();
    assert_eq!(
        ranks.ears[0].bad,
        ["CommandToken(2): PeerDown", "WorldRank(0): Failed"]
    );
    let told = ranks.all[0]
        .core_ref()
        .links
        .why_down(WorldRank(0))
        .unwrap();
    assert!(told.contains(why), "{told}");
    say(ranks, 5); // dropped, because the rank was notified before
}
