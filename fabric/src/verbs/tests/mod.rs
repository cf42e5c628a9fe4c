//! Tests of the inside of a rank, on devices. Ranks of even numbers have two devices, the others two others. The home of ranks 0
//! and 1 is the first lane, that of ranks 0 and 3 the second.

mod control_words;
mod counting;
mod device_events;
mod device_refusals;
mod held;
mod itself;
mod nothing;
mod prewired;
mod taken_down;
mod waiting;

use std::{io, sync::Arc, time::Duration};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Verbs, VerbsConfig, core::VerbsCore, lane::PeerLane, wire::VerbsControlWord};
use crate::{
    connect::ConnectPolicy,
    counters::DriverStats,
    driver::{
        ArmResult, CommandFailure, CommandToken, DownCause, Driver, DriverCommand, FailureWatch,
        LocalRange, PayloadView, PostResult, Sink, WorldRank,
    },
    memory::{MemoryRegion, RemoteRegion},
    offload::{self, RemoteCounter},
};

/// Ranks, and the events that their sinks have received.
struct Ranks {
    all: Vec<Verbs>,
    ears: Vec<Ears>,
    counters: Vec<Arc<DriverStats>>,
}

#[derive(Default)]
struct Ears {
    messages: Vec<WorldRank>,
    /// Lengths of the messages.
    lengths: Vec<usize>,
    ended: usize,
    bad: Vec<String>,
}

impl Sink for Ears {
    fn message(&mut self, from: WorldRank, _: &[u8], body: PayloadView<'_>) {
        self.messages.push(from);
        self.lengths.push(body.len());
    }
    fn complete(&mut self, _: CommandToken) {
        self.ended += 1;
    }
    fn fetched(&mut self, _: CommandToken, _: u64) {
        self.ended += 1;
    }
    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        self.bad.push(format!("{token:?}: {why:?}"));
    }
    fn reached(&mut self, _: CommandToken) {}
    fn triggered(&mut self, _: CommandToken) {}
    fn peer_down(&mut self, peer: WorldRank, how: DownCause) {
        self.bad.push(format!("{peer:?}: {how:?}"));
    }
}

impl Ranks {
    fn new(count: u32) -> Self {
        Self::with(count, |_| ())
    }

    fn with(count: u32, change: impl Fn(&mut VerbsConfig)) -> Self {
        let counters: Vec<_> = (0..count)
            .map(|_| Arc::new(DriverStats::default()))
            .collect();
        let prepared: Vec<_> = (0..count)
            .map(|rank| {
                let mut config = VerbsConfig::new(WorldRank(rank), count);
                let devices = ["rxe0,rxe1", "rxe2,rxe3"][rank as usize % 2];
                config.device = Some(devices.to_owned());
                config.linger = Duration::from_millis(50);
                config.counters = Arc::clone(&counters[rank as usize]);
                change(&mut config);
                Verbs::prepare(config).unwrap()
            })
            .collect();
        let addresses: Vec<_> = prepared.iter().map(|one| one.address()).collect();
        let connect = |one: super::PreparedVerbs| one.connect(addresses.clone()).unwrap();
        Self {
            all: prepared.into_iter().map(connect).collect(),
            ears: (0..count).map(|_| Ears::default()).collect(),
            counters,
        }
    }

    /// Returns two ranks, of which the second has received a message from the first.
    fn met() -> Self {
        let mut ranks = Self::new(2);
        ranks.say(0, 1);
        ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
        ranks
    }

    fn core(&mut self, rank: usize) -> &mut VerbsCore {
        self.all[rank].core()
    }

    fn turn(&mut self, rank: usize, budget: u32) {
        let _events = self.all[rank].progress(budget, &mut self.ears[rank]);
        assert!(self.ears[rank].bad.is_empty(), "{:?}", self.ears[rank].bad);
    }

    /// Makes a turn, whatever the sink receives.
    fn turn_all_the_same(&mut self, rank: usize) {
        let _events = self.all[rank].progress(64, &mut self.ears[rank]);
        let now = self.core(rank).sleep.timer.now();
        assert!(now < GUARD, "it never comes");
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            (0..self.all.len()).for_each(|rank| self.turn(rank, 64));
            assert!(self.core(0).sleep.timer.now() < GUARD, "it never comes");
        }
    }

    /// Makes turns of these ranks until the first of them has received a failure.
    fn until_bad(&mut self, ranks: &[usize]) {
        let first = ranks[0];
        while self.ears[first].bad.is_empty() {
            for &rank in ranks {
                let _events = self.all[rank].progress(64, &mut self.ears[rank]);
            }
            let now = self.core(first).sleep.timer.now();
            assert!(now < GUARD, "nothing is told");
        }
    }

    /// Makes turns until messages go on by another lane than the one that failed.
    fn until_settled(&mut self, from: usize, to: u32) {
        while !self.core(from).links.get_or_new(WorldRank(to)).is_settled() {
            (0..self.all.len()).for_each(|rank| self.turn(rank, 64));
            assert!(self.core(0).sleep.timer.now() < GUARD, "it never does");
        }
    }

    /// Makes turns until there is nothing to do.
    fn fall_asleep(&mut self, rank: usize) {
        while self.all[rank].arm() == ArmResult::Busy {
            let _events = self.all[rank].progress(64, &mut self.ears[rank]);
            assert!(self.core(rank).sleep.timer.now() < GUARD, "it never sleeps");
        }
    }

    fn say(&mut self, from: usize, to: u32) {
        let say = DriverCommand::Message {
            to: WorldRank(to),
            header: b"",
            body: &[7; 1000],
        };
        assert!(matches!(self.all[from].post(say), PostResult::Posted));
    }

    fn put(&mut self, from: &MemoryRegion, into: RemoteRegion) {
        self.put_and_count(from.range(), into, None);
    }

    fn put_and_count(
        &mut self,
        from: LocalRange,
        into: RemoteRegion,
        count: Option<RemoteCounter>,
    ) {
        let put = DriverCommand::Put {
            to: WorldRank(1),
            from,
            into,
            count,
            token: CommandToken(1),
        };
        assert!(matches!(self.all[0].post(put), PostResult::Posted));
    }

    fn memory(&mut self) -> (MemoryRegion, MemoryRegion, RemoteRegion) {
        let [from, there] = [0, 1].map(|rank| self.all[rank].allocate(LONG).unwrap());
        let key = self.all[1].expose(there.range()).unwrap();
        (from, there, key)
    }

    /// Returns the core of the first rank, which closes while two puts of this memory are in flight that never complete.
    fn closing_in_vain(&mut self) -> ([MemoryRegion; 2], Box<VerbsCore>) {
        let (from, there, key) = self.memory();
        self.put(&from, key);
        self.until(|ranks| ranks.ears[0].ended == 1);
        let lanes = &self.core(1).links.get_or_new(WorldRank(0)).lanes;
        lanes
            .iter()
            .for_each(|lane| lane.qp.as_ref().unwrap().reset());
        (0..2).for_each(|_| self.put(&from, key));
        let mut core = self.all[0].core.take().unwrap();
        core.begin_close(DownCause::Finished);
        assert!(!core.finish(Duration::ZERO), "two puts are in flight");
        ([from, there], core)
    }

    /// Returns ranks of which the first is connected to two others. Messages of rank 1 have come to its first device, and one of
    /// rank 3 to its second.
    fn with_arrivals() -> Self {
        let mut ranks = Self::new(4);
        for other in [1, 3] {
            ranks.say(other, 0);
        }
        ranks.until(|ranks| ranks.ears[0].messages.len() == 2);
        ranks.ears[0].messages.clear();
        let homes = [1, 3].map(|other| ranks.core(0).links.get_or_new(WorldRank(other)).home);
        assert_eq!(homes, [0, 1]);
        let before = [1, 3].map(|other| ranks.all[other].answers(WorldRank(0)));
        (0..MESSAGES).for_each(|_| ranks.say(1, 0));
        ranks.say(3, 0);
        while ranks.all[1].answers(WorldRank(0)) < before[0] + MESSAGES
            || ranks.all[3].answers(WorldRank(0)) == before[1]
        {
            [1, 3].into_iter().for_each(|other| ranks.turn(other, 64));
        }
        ranks
    }
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_device_with_many_completions_does_not_starve_the_other_devices() {
    let mut ranks = Ranks::with_arrivals();
    (0..4).for_each(|_| ranks.turn(0, 1));
    let heard = &ranks.ears[0].messages;
    assert!(
        heard.contains(&WorldRank(1)) && heard.contains(&WorldRank(3)),
        "{heard:?}"
    );
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_lane_that_failed_is_left_although_others_have_something_to_say_by_the_same_device() {
    let mut ranks = Ranks::with_arrivals();
    let to = PeerLane {
        peer: WorldRank(3),
        lane: 0,
    };
    ranks
        .core(0)
        .links
        .note_broken(to, io::Error::other("a test"));
    let posts = ranks.counters[0].posts.get();
    ranks.turn(0, 1);
    assert_eq!(ranks.counters[0].lanes_failed.get(), 1);
    assert_eq!(ranks.counters[0].posts.get() - posts, 1, "it is said once");
}

/// The wrong port is named by the rank that asks, or by the one that answers.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_lane_that_cannot_be_connected_is_left_and_others_go_on() {
    for wrong in [0, 1] {
        let mut ranks = Ranks::new(2);
        ranks.core(wrong).ports[1].gid = NOWHERE;
        let (from, _there, key) = ranks.memory();
        ranks.put(&from, key);
        ranks.until(|ranks| ranks.ears[0].ended == 1);
        ranks.say(0, 1);
        ranks.say(1, 0);
        let both = |ranks: &Ranks| ranks.ears.iter().all(|ears| ears.messages.len() == 1);
        ranks.until(both);
        let left =
            |ranks: &Ranks| [0, 1].map(|rank: usize| ranks.counters[rank].lanes_failed.get());
        ranks.until(|ranks| left(ranks) == [1; 2]);
    }
}

/// The first rank's second device fails, and then its first one. Eventually it sleeps rather than ask again and again.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_device_that_cannot_be_armed_is_left_and_keeps_no_rank_awake() {
    let mut ranks = Ranks::new(2);
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
    ranks.core(0).rails[1].device.context.refuse_arming();
    ranks.fall_asleep(0);
    assert_eq!(ranks.counters[0].lanes_failed.get(), 1);
    assert!(ranks.ears[0].bad.is_empty(), "{:?}", ranks.ears[0].bad);
    ranks.say(1, 0);
    ranks.until(|ranks| ranks.ears[0].messages.len() == 1);
    ranks.core(0).rails[0].device.context.refuse_arming();
    // A queue that is armed stays so until something has come.
    ranks.say(1, 0);
    ranks.until(|ranks| ranks.ears[0].messages.len() == 2);
    ranks.fall_asleep(0);
    assert_eq!(ranks.ears[0].bad, ["WorldRank(1): Failed"]);
}

/// This happens after a datagram that was sent while the port was down: a device gives back all requests, and takes no more.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_rank_that_lost_a_datagram_queue_pair_sleeps_and_still_connects() {
    for speaks_meanwhile in [false, true] {
        let mut ranks = Ranks::new(3);
        ranks.say(0, 1);
        ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
        let core = ranks.core(0);
        for lane in 0..2 {
            core.datagrams.qp(lane).unwrap().qp.abandon();
        }
        if speaks_meanwhile {
            ranks.say(0, 2);
        }
        ranks.fall_asleep(0);
        ranks.say(2, 0);
        ranks.until(|ranks| ranks.ears[0].messages.len() == 1);
        ranks.say(0, 2);
        let more = 1 + usize::from(speaks_meanwhile);
        ranks.until(|ranks| ranks.ears[2].messages.len() == more);
    }
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_rank_that_lingered_in_vain_lets_go_of_what_is_under_way() {
    let mut ranks = Ranks::new(2);
    let (_memory, mut core) = ranks.closing_in_vain();
    core.release_memory();
    let idle = [0, 1].map(|lane| core.outbox.is_idle(lane));
    assert_eq!(
        (core.commands.touches_memory(WorldRank(1)), idle),
        (false, [true; 2])
    );
    assert!(core.finish(Duration::from_secs(60)));
}

/// The event that the command waits for may still come, but the memory is free by then.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_command_that_was_not_begun_when_a_rank_let_go_never_is() {
    let mut ranks = Ranks::new(2);
    let (from, _there, key) = ranks.memory();
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
    ranks.put(&from, key); // reads the table first
    let mut core = ranks.all[0].core.take().unwrap();
    core.begin_close(DownCause::Finished);
    assert_eq!(core.commands.idle(), 1);
    core.release_memory();
    assert_eq!(core.commands.len(), 0);
    assert!(core.finish(Duration::from_secs(60)));
}

/// No other event reports it, and there may be a peer to wake.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn the_completion_of_a_count_posted_during_a_sleep_ends_the_sleep() {
    let mut ranks = Ranks::new(2);
    let counters = offload::LocalCounters::for_tasks(&mut ranks.all[1], 1).unwrap();
    let counter = counters.remote().at(0).unwrap();
    ranks.say(1, 0);
    ranks.until(|ranks| ranks.ears[0].messages.len() == 1);
    ranks.fall_asleep(0);
    let is_armed = |ranks: &mut Ranks| {
        ranks
            .core(0)
            .rails
            .iter()
            .any(|rail| rail.is_armed_for_sends())
    };
    assert!(!is_armed(&mut ranks), "nothing is in flight");
    let (to, by) = (WorldRank(1), 1);
    let count = DriverCommand::Count { to, counter, by };
    assert!(matches!(ranks.all[0].post(count), PostResult::Posted));
    assert!(is_armed(&mut ranks));
}

/// The first datagram to a peer may be lost, and the thread was asleep before it left.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_first_datagram_posted_during_a_sleep_is_repeated_in_time() {
    for scheme in [ConnectPolicy::OnDemand, ConnectPolicy::Hybrid] {
        let mut ranks = Ranks::with(2, |config| config.scheme = Some(scheme));
        ranks.fall_asleep(0);
        ranks.say(0, 1);
        assert!(ranks.core(0).next_retry().is_some(), "{scheme:?}");
        // Rank 1 makes no turn, so only the alarm ends this.
        let timer = ranks.core(0).sleep.timer.wait_on();
        let mut fds = [PollFd::new(&timer, PollFlags::IN)];
        let guard = Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&guard)).unwrap(), 1, "{scheme:?}");
    }
}

/// If both ranks wait for credits, the word that gives some back must not wait behind words that need some.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_word_that_gives_credits_back_overtakes_words_that_wait_for_credits() {
    let mut ranks = Ranks::met();
    let core = ranks.core(0);
    core.links.get_or_new(WorldRank(1)).credits = 1;
    for word in [VerbsControlWord::NameRetired(7), VerbsControlWord::Credit] {
        core.links.queue_control(WorldRank(1), word);
        core.flush(WorldRank(1));
    }
    let link = core.links.get_or_new(WorldRank(1));
    assert_eq!(
        (link.credits, &link.control_queue),
        (0, &[VerbsControlWord::NameRetired(7)].into())
    );
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn short_puts_take_the_memory_of_those_before() {
    let mut ranks = Ranks::new(2);
    let (from, _there, key) = ranks.memory();
    let key = key.slice(0, 8).unwrap();
    let (from, mut spare) = (from.range().slice(0, 8), None);
    for ended in 1..=3 {
        ranks.put_and_count(from, key, None);
        ranks.until(|ranks| ranks.ears[0].ended == ended);
        let spares = ranks.core(0).commands.spares();
        assert_eq!(spares.len(), 1, "after put {ended}");
        let this = spares[0];
        assert_eq!(*spare.get_or_insert(this), this, "after put {ended}");
    }
}

/// The peer's device does not answer by the home any more, and the rank ends before it knows that.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn the_end_is_heard_although_the_home_has_failed() {
    for (how, heard) in [
        (DownCause::Finished, "WorldRank(0): Finished"),
        (DownCause::Failed, "WorldRank(0): Failed"),
    ] {
        let mut ranks = Ranks::new(2);
        ranks.say(0, 1);
        ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
        let link = ranks.core(1).links.get_or_new(WorldRank(0));
        link.lanes[link.home].qp.as_ref().unwrap().reset();
        let mut core = ranks.all[0].core.take().unwrap();
        core.begin_close(how);
        assert!(!core.finish(Duration::from_millis(100)), "no peer answers");
        drop(core);
        ranks.until_bad(&[1]);
        assert_eq!(ranks.ears[1].bad, [heard]);
    }
}

/// The limit of locked memory counts once for each device. A put that counts goes by the first lane.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn memory_that_is_registered_with_two_devices_counts_twice() {
    let mut ranks = Ranks::new(2);
    let (from, _there, key) = ranks.memory();
    let counters = offload::LocalCounters::new(&mut ranks.all[1], 1).unwrap();
    ranks.put(&from, key);
    ranks.put_and_count(from.range(), key, Some(counters.remote().at(0).unwrap()));
    ranks.until(|ranks| ranks.ears[0].ended == 2);
    // Memory that is no region of the first rank.
    let other = ranks.all[1].allocate(LONG).unwrap();
    let pinned = |ranks: &mut Ranks| ranks.core(0).registrations.pinned_for_commands();
    ranks.put(&other, key);
    assert_eq!(pinned(&mut ranks), 2 * LONG as u64);
    ranks.until(|ranks| ranks.ears[0].ended == 3);
    ranks.put_and_count(other.range(), key, Some(counters.remote().at(0).unwrap()));
    assert_eq!(pinned(&mut ranks), LONG as u64);
    // A registration with one device is not enough for both lanes.
    ranks.put(&other, key);
    assert_eq!(pinned(&mut ranks), 3 * LONG as u64);
    ranks.until(|ranks| ranks.ears[0].ended == 5);
    assert_eq!(pinned(&mut ranks), 0);
}

/// Two connections stay, and the one that was used less recently is evicted. The message for the third peer arrives.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_device_that_has_nothing_left_has_others_give_way() {
    let mut ranks = Ranks::new(4);
    for other in [1, 2] {
        ranks.say(0, other);
        ranks.until(|ranks| ranks.ears[other as usize].messages.len() == 1);
    }
    // As if nothing had been left to make a connection to the last rank.
    assert!(ranks.core(0).handle_exhausted(WorldRank(3)));
    ranks.say(0, 3);
    ranks.until(|ranks| ranks.ears[3].messages.len() == 1);
    assert_eq!(ranks.counters[0].evictions.get(), 1);
    assert!(
        !ranks.core(0).links.get_or_new(WorldRank(1)).is_made(),
        "silent for longer"
    );
    // Nothing can be evicted without connections.
    assert!(!ranks.core(3).handle_exhausted(WorldRank(1)));
}

/// An address that is reserved for documentation and leads nowhere.
const NOWHERE: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
const LONG: usize = 1 << 20;
const MESSAGES: u64 = 20;
/// A test that takes two minutes hangs. In picoseconds.
const GUARD: u64 = 120_000_000_000_000;
