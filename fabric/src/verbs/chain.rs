//! Posting to a peer's queue pair: immediately, or together with other requests of the same turn.
//!
//! Each post rings a doorbell, which costs a system call on some devices. Tasks of lists begin in the middle of a turn, often
//! several for one peer. So their requests are gathered meanwhile, and posted as one chain. A queue pair works in order, so the
//! last request of a chain completes for all of them.

use std::io;

use super::{
    lane::{PeerLane, VerbsLane},
    link::VerbsLink,
    objects::{CHAIN_MAX, STEP_MAX, WorkOp, WorkRequest},
    outbox::{FlightContent, QpFlight, VerbsOutbox, quiet, signaled},
};

/// Requests gathered for a peer's queue pair, which are posted in one call.
#[derive(Debug, Default)]
pub(super) struct RequestChain {
    works: Vec<WorkRequest<'static>>,
    flights: Vec<QpFlight>,
}

impl RequestChain {
    pub(super) const fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }
}

impl VerbsOutbox {
    /// Posts requests to the queue pair of the flight's lane. The last request completes as the flight.
    pub(super) fn post(
        &mut self,
        link: &mut VerbsLink,
        mut flight: QpFlight,
        works: &[WorkRequest<'_>],
    ) -> io::Result<()> {
        let nth = flight.to.lane;
        let before = self.post_chain(link, nth);
        flight.stand_for(link);
        let lane = &mut link.lanes[nth];
        self.count(lane, &mut flight, works.len());
        let id = self.launch(flight);
        let (last, rest) = works.split_last().expect("a flight has requests");
        let mut all = [*last; STEP_MAX];
        all[..rest.len()].copy_from_slice(rest);
        all[rest.len()] = signaled(*last, id);
        let posted = before.and_then(|()| self.give(lane, &all[..works.len()]));
        lane.strand(id, posted)
    }

    /// Posts the requests of a step, or gathers them if `gathers` is set.
    pub(super) fn post_step(
        &mut self,
        link: &mut VerbsLink,
        mut flight: QpFlight,
        works: &[WorkRequest<'static>],
    ) -> io::Result<()> {
        if !self.gathers {
            return self.post(link, flight, works);
        }
        let nth = flight.to.lane;
        let mut posted = Ok(());
        if link.lanes[nth].chain.works.len() + works.len() > CHAIN_MAX {
            posted = self.post_chain(link, nth);
        }
        flight.stand_for(link);
        let lane = &mut link.lanes[nth];
        self.count(lane, &mut flight, works.len());
        if lane.chain.works.is_empty() {
            self.gathered.push(flight.to);
        }
        lane.chain.works.extend(works);
        lane.chain.flights.push(flight);
        posted
    }

    /// Posts the requests gathered for a lane of a peer.
    pub(super) fn post_chain(&mut self, link: &mut VerbsLink, nth: usize) -> io::Result<()> {
        let Some(lane) = link.lanes.get_mut(nth) else {
            return Ok(());
        };
        let Some(mut flight) = lane.chain.flights.pop() else {
            return Ok(());
        };
        flight.before = std::mem::take(&mut lane.chain.flights);
        let id = self.launch(flight);
        let mut works = std::mem::take(&mut lane.chain.works);
        if let Some(last) = works.last_mut() {
            *last = signaled(*last, id);
        }
        let posted = self.give(lane, &works);
        works.clear();
        lane.chain.works = works; // its memory serves the next chain
        lane.strand(id, posted)
    }

    /// Posts bytes that the device copies. With `seen`, the request asks for a completion.
    pub(super) fn post_inline(
        &mut self,
        link: &mut VerbsLink,
        to: PeerLane,
        bytes: &[u8],
        seen: bool,
    ) -> io::Result<()> {
        let work = WorkRequest {
            id: quiet(to.peer),
            op: WorkOp::Inline(bytes),
            signaled: false,
            solicited: true,
        };
        if seen || link.lanes[to.lane].quiet + 1 >= self.signal_every {
            let flight = QpFlight::new(to, FlightContent::Message { chunk: None }, None);
            return self.post(link, flight, &[work]);
        }
        let before = self.post_chain(link, to.lane);
        let lane = &mut link.lanes[to.lane];
        lane.used += 1;
        lane.quiet += 1;
        self.add(to.lane, 1);
        before.and_then(|()| self.give(lane, &[work]))
    }

    fn count(&mut self, lane: &mut VerbsLane, flight: &mut QpFlight, works: usize) {
        let requests = u32::try_from(works).unwrap_or(u32::MAX);
        flight.requests = requests + std::mem::take(&mut lane.quiet);
        lane.used += requests;
        self.add(flight.to.lane, requests);
    }

    /// Posts requests, unless an earlier one could not be posted: nothing may follow that one.
    fn give(&self, lane: &VerbsLane, works: &[WorkRequest<'_>]) -> io::Result<()> {
        let Some(qp) = lane.qp.as_ref().filter(|_| !lane.is_unusable()) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        self.counters.posts.add(1);
        qp.post(works)
    }
}

impl QpFlight {
    /// Notes, if messages are kept for a retry, that all messages posted to the same queue pair before have arrived with this
    /// one.
    fn stand_for(&mut self, link: &VerbsLink) {
        let behind = link.is_wide() && self.to.lane == link.home && link.left.is_empty();
        if behind && self.sent == 0 {
            self.sent = link.replay_log.sent();
        }
    }
}

impl VerbsLane {
    /// Records a flight that could not be posted, or only in part. No completion will report it, and the device may work on its
    /// first requests as long as the queue pair exists.
    fn strand(&mut self, flight: u64, posted: io::Result<()>) -> io::Result<()> {
        if posted.is_err() {
            self.stranded.push(flight);
        }
        posted
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Verbs, VerbsConfig};
    use crate::{
        driver::{
            ArmResult, CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView,
            PostResult, Sink, WorldRank,
        },
        memory::{MemoryRegion, RemoteRegion},
    };

    #[derive(Default)]
    struct Ears {
        ended: Vec<CommandToken>,
        failed: Vec<(CommandToken, bool)>,
        down: Vec<(WorldRank, DownCause)>,
    }

    impl Sink for Ears {
        fn message(&mut self, _: WorldRank, _: &[u8], _: PayloadView<'_>) {}
        fn complete(&mut self, token: CommandToken) {
            self.ended.push(token);
        }
        fn fetched(&mut self, token: CommandToken, _: u64) {
            self.ended.push(token);
        }
        fn failed(&mut self, token: CommandToken, why: CommandFailure) {
            self.failed
                .push((token, matches!(why, CommandFailure::PeerDown)));
        }
        fn reached(&mut self, _: CommandToken) {}
        fn triggered(&mut self, _: CommandToken) {}
        fn peer_down(&mut self, peer: WorldRank, how: DownCause) {
            self.down.push((peer, how));
        }
    }

    fn two() -> [Verbs; 2] {
        let prepared =
            [0, 1].map(|rank| Verbs::prepare(VerbsConfig::new(WorldRank(rank), 2)).unwrap());
        let addresses: Vec<_> = prepared.iter().map(|one| one.address()).collect();
        prepared.map(|one| one.connect(addresses.clone()).unwrap())
    }

    fn put(from: &MemoryRegion, into: RemoteRegion, token: u64) -> DriverCommand<'static> {
        DriverCommand::Put {
            to: WorldRank(1),
            from: from.range(),
            into,
            count: None,
            token: CommandToken(token),
        }
    }

    /// A queue pair that was reset refuses requests, and completes none.
    #[test]
    #[ignore = "needs an RDMA device: run it in the virtual machine"]
    fn what_cannot_be_posted_ends_in_an_error_and_is_not_slept_over() {
        let [mut ours, mut theirs] = two();
        let (from, there) = (ours.allocate(LEN).unwrap(), theirs.allocate(LEN).unwrap());
        let into = theirs.expose(there.range()).unwrap();
        let mut ears = Ears::default();
        assert!(matches!(ours.post(put(&from, into, 1)), PostResult::Posted));
        while ears.ended.is_empty() {
            let _events = ours.progress(64, &mut ears);
            let _events = theirs.progress(64, &mut Ears::default());
        }
        let core = ours.core();
        core.rails[0].reports_last_wqe = Some(false); // do not wait for the device to say so
        core.links.get_or_new(WorldRank(1)).lanes[0]
            .qp
            .as_ref()
            .unwrap()
            .reset();
        for token in [2, 3] {
            assert!(matches!(
                ours.post(put(&from, into, token)),
                PostResult::Posted
            ));
        }
        assert_eq!(ours.arm(), ArmResult::Busy, "the end is to be told");
        let _events = ours.progress(64, &mut ears);
        let lost = [2, 3].map(|token| (CommandToken(token), true));
        assert_eq!(ears.failed, lost);
        assert_eq!(ears.down, [(WorldRank(1), DownCause::Failed)]);
        let core = ours.core();
        assert!(core.outbox.is_idle(0) && core.commands.len() == 0);
        assert!(
            !core.links.get_or_new(WorldRank(1)).is_made(),
            "nothing can come late"
        );
        assert!(
            ours.core_ref()
                .links
                .why_down(WorldRank(1))
                .unwrap()
                .contains("posting")
        );
    }

    const LEN: usize = 100_000;
}
