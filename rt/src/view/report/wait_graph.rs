//! Which rank waits for which.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::{
    super::{
        FlightRecord, PublishedComm, PublishedPeer, PublishedWait, RankSnapshot, StoredGroup,
        WaitKind,
    },
    ObservedJob, ObservedRank,
    rank_standing::{RankStanding, is_asleep_in_both},
    wait_edges::{HubKey, WaitEdges, WaitTargets},
};

/// The ranks of a job and what they wait for.
pub(super) struct WaitGraph<'a> {
    job: &'a ObservedJob,
    ranks: BTreeMap<u32, (&'a ObservedRank, RankStanding)>,
    /// Members of each communicator, as far as their views name it.
    members: BTreeMap<(u32, u32, u64), Vec<u32>>,
    edges: WaitEdges,
}

impl<'a> WaitGraph<'a> {
    pub(super) fn of(job: &'a ObservedJob) -> Self {
        let standings = job
            .ranks
            .iter()
            .map(|rank| (rank.rank, (rank, RankStanding::of(rank))));
        let mut members: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        let ranks: BTreeMap<_, _> = standings.collect();
        for (&rank, (observed, _)) in &ranks {
            for comm in snapshot(observed).map_or(&[][..], |snapshot| &snapshot.comms) {
                members.entry(key(comm)).or_default().push(rank);
            }
        }
        let mut graph = Self {
            job,
            ranks,
            members,
            edges: WaitEdges::default(),
        };
        graph.edges = WaitEdges::of(&graph, job.size);
        graph
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = (u32, &RankStanding)> {
        self.ranks
            .iter()
            .map(|(rank, (_, standing))| (*rank, standing))
    }

    pub(super) fn standing(&self, rank: u32) -> Option<&RankStanding> {
        self.ranks.get(&rank).map(|(_, standing)| standing)
    }

    pub(super) fn pid(&self, rank: u32) -> u32 {
        self.ranks
            .get(&rank)
            .map_or(0, |(observed, _)| observed.pid)
    }

    /// Returns the name of a rank's node; empty for this one.
    pub(super) fn node(&self, rank: u32) -> &str {
        self.ranks
            .get(&rank)
            .map_or("", |(observed, _)| &observed.node)
    }

    /// Returns a clause about what a rank did last, if that is known.
    pub(super) fn last_words(&self, rank: u32) -> Option<String> {
        self.ranks.get(&rank)?.0.view.as_ref().ok()?.last_words()
    }

    pub(super) fn snapshot(&self, rank: u32) -> Option<&RankSnapshot> {
        snapshot(self.ranks.get(&rank)?.0)
    }

    /// Returns the operations that a rank awaits. If no future awaits any, these are all of its operations.
    pub(super) fn awaited(&self, rank: u32) -> Vec<&PublishedWait> {
        let waits = self
            .snapshot(rank)
            .map_or(&[][..], |snapshot| &snapshot.waits);
        waits.iter().filter(|wait| wait.is_awaited).collect()
    }

    /// Returns the operations that hold this rank up. A rank that does not wait is held up by none.
    pub(super) fn holding(&self, rank: u32) -> Vec<&PublishedWait> {
        match self.standing(rank) {
            Some(RankStanding::Waiting) => self.awaited(rank),
            _ => Vec::new(),
        }
    }

    /// Returns since when a rank has been in its state, of the machine's clock. `None` for a simulated rank, whose operations say
    /// 0.
    pub(super) fn waits_since(&self, rank: u32) -> Option<u64> {
        let snapshot = self.snapshot(rank)?;
        let awaited = self.holding(rank).iter().map(|wait| wait.since).max();
        Some(awaited.unwrap_or(snapshot.quiet_since)).filter(|since| *since > 0)
    }

    /// Returns the nanoseconds for which nothing has begun or ended.
    pub(super) fn silent(&self) -> u64 {
        let is_alive = |standing: &RankStanding| {
            !matches!(standing, RankStanding::Left | RankStanding::Dead { .. })
        };
        let alive = self.ranks().filter(|(_, standing)| is_alive(standing));
        let last = alive.filter_map(|(rank, _)| self.waits_since(rank)).max();
        last.map_or(0, |last| self.job.now.saturating_sub(last))
    }

    /// Returns the number of ranks that await operations.
    pub(super) fn waiting(&self) -> usize {
        let waiting = self
            .ranks()
            .filter(|(_, standing)| **standing == RankStanding::Waiting);
        waiting.count()
    }

    /// Returns the last operation of a rank that has ended, in words.
    pub(super) fn last_ended(&self, rank: u32) -> Option<&str> {
        let last = &*self.snapshot(rank)?.last_ended;
        Some(last).filter(|last| !last.is_empty())
    }

    /// Returns messages that `sender` has sent to another rank than `rank`, and that are what this receive of `rank` waits for.
    /// That other rank comes first. It has not received them.
    pub(super) fn misdirected(
        &self,
        rank: u32,
        wait: &PublishedWait,
        sender: u32,
    ) -> Option<(u32, &StoredGroup)> {
        let tag = wait.tag?;
        let one_of = |other: u32| {
            let mut stored = self.snapshot(other)?.stored.iter();
            let wanted = (sender, tag, wait.sig);
            let found = stored.find(|group| (group.source, group.tag, group.sig) == wanted)?;
            Some((other, found))
        };
        let mut others = self.ranks.keys().copied().filter(|other| *other != rank);
        others.find_map(one_of)
    }

    /// Returns true if probes of `rank` have reserved messages such as this send of `sender`.
    pub(super) fn has_probed(&self, rank: u32, sender: u32, send: &PublishedWait) -> bool {
        let stored = self.snapshot(rank).map_or(&[][..], |known| &known.stored);
        let mut probed = stored.iter().filter(|group| group.is_probed);
        probed.any(|group| {
            (group.source, group.comm, Some(group.tag)) == (sender, send.comm, send.tag)
        })
    }

    /// Returns messages that `rank` has of another rank than the awaited one, and that fit this receive otherwise.
    pub(super) fn other_messages(&self, rank: u32, wait: &PublishedWait) -> Option<&StoredGroup> {
        let awaited = wait.peer?;
        let mut stored = self.snapshot(rank)?.stored.iter();
        let fits = |group: &&StoredGroup| {
            let is_same = (group.comm, group.sig) == (wait.comm, wait.sig);
            is_same && wait.tag.is_none_or(|tag| tag == group.tag) && group.source != awaited
        };
        stored.find(fits)
    }

    /// Returns true if `from` awaits a send to `to` for which there is no room.
    pub(super) fn waits_for_room(&self, from: u32, to: u32) -> bool {
        let mut waits = self.holding(from).into_iter();
        waits.any(|wait| wait.kind == WaitKind::SendQueued && wait.peer == Some(to))
    }

    /// Returns the ranks that hold the lock for which `wait` waits, as far as the view of the rank with the memory names them.
    pub(super) fn lock_holders(&self, rank: u32, wait: &PublishedWait) -> Vec<u32> {
        let owner = wait.peer.filter(|_| wait.kind == WaitKind::WindowLock);
        let snapshot = owner.and_then(|owner| self.snapshot(owner));
        let locks = snapshot.map_or(&[][..], |snapshot| &snapshot.locks);
        let of_window = locks
            .iter()
            .filter(|lock| (lock.comm, Some(lock.window)) == (wait.comm, wait.tag));
        let holders = of_window.map(|lock| lock.holder);
        holders.filter(|holder| *holder != rank).collect()
    }

    /// Returns the ranks that could end a wait for a lock with these holders. The rank with the memory is one of them unless its
    /// thread or its agent passes the lock on by itself.
    fn lock_blockers(&self, mut holders: Vec<u32>, owner: u32) -> Vec<u32> {
        let passes_on = matches!(
            self.standing(owner),
            Some(RankStanding::Waiting | RankStanding::Idle | RankStanding::Sleeping { .. })
        );
        if !passes_on && !holders.contains(&owner) {
            holders.push(owner);
        }
        holders
    }

    /// Returns the ranks that could end this operation of `rank`.
    pub(super) fn blockers<'g>(
        &'g self,
        rank: u32,
        targets: &'g WaitTargets,
    ) -> impl Iterator<Item = u32> + Clone + 'g {
        self.edges.ranks_of(rank, targets)
    }

    /// Returns the operations that hold `rank` up, each with what it waits for.
    pub(super) fn holding_targets(
        &self,
        rank: u32,
    ) -> impl Iterator<Item = (&PublishedWait, &WaitTargets)> {
        let holding = self.holding(rank).into_iter();
        holding.zip(self.edges.targets_of(rank))
    }

    /// Returns the ranks that could end an operation that waits for single ones.
    pub(super) fn single_blockers(&self, rank: u32, wait: &PublishedWait) -> Vec<u32> {
        let holders = self.lock_holders(rank, wait);
        match wait.peer {
            Some(owner) if !holders.is_empty() => self.lock_blockers(holders, owner),
            peer => peer.into_iter().collect(),
        }
    }

    /// Returns the name of the set of ranks that could end an operation; `None` if it waits for single ranks.
    pub(super) fn hub_key(&self, rank: u32, wait: &PublishedWait) -> Option<HubKey> {
        // The peer of a lock has the memory. Any member may hold the lock.
        let is_single = match wait.kind {
            WaitKind::WindowLock => !self.lock_holders(rank, wait).is_empty(),
            _ => wait.peer.is_some(),
        };
        let number = wait.tag.filter(|_| wait.is_collective());
        let (comm, size, members) = match self.comm(rank, wait.comm) {
            Some(comm) => key(comm),
            None => (wait.comm, u32::MAX, 0),
        };
        (!is_single).then_some((comm, size, members, number))
    }

    /// Returns the ranks of that set, in ascending order.
    pub(super) fn hub_members(&self, rank: u32, wait: &PublishedWait) -> Vec<u32> {
        let comm = self.comm(rank, wait.comm);
        let members = comm.map_or_else(|| (0..self.job.size).collect(), |comm| self.members(comm));
        match wait.tag {
            Some(number) if wait.is_collective() => {
                let members = members.into_iter();
                members
                    .filter(|member| !self.has_begun(*member, wait, number))
                    .collect()
            }
            _ => members,
        }
    }

    /// Returns true if a rank takes part in the collective that `wait` is, or has taken part.
    pub(super) fn has_begun(&self, member: u32, wait: &PublishedWait, number: u32) -> bool {
        let is_in = self.collective_of(member, wait.comm, number).is_some();
        let next = self.comm(member, wait.comm).map(|comm| comm.next);
        is_in || next.is_some_and(|next| next.wrapping_sub(number).cast_signed() > 0)
    }

    /// Returns the collective with this number that a rank is in.
    pub(super) fn collective_of(
        &self,
        rank: u32,
        comm: u32,
        number: u32,
    ) -> Option<&PublishedWait> {
        let mut waits = self.snapshot(rank)?.waits.iter();
        waits.find(|wait| wait.is_collective() && wait.comm == comm && wait.tag == Some(number))
    }

    pub(super) fn comm(&self, rank: u32, comm: u32) -> Option<&PublishedComm> {
        self.snapshot(rank)?
            .comms
            .iter()
            .find(|known| known.comm == comm)
    }

    /// Returns true if two ranks are members of the same communicator with this number, which all parts of a split have.
    pub(super) fn share(&self, one: u32, other: u32, comm: u32) -> bool {
        let key_of = |rank| self.comm(rank, comm).map(key);
        key_of(one).is_some_and(|known| key_of(other) == Some(known))
    }

    /// Returns how many messages `rank` has exchanged with `peer`; `None` if that is not known.
    pub(super) fn exchanged(&self, rank: u32, peer: u32) -> Option<PublishedPeer> {
        let snapshot = self.snapshot(rank)?;
        let known = snapshot.peers.iter().find(|known| known.rank == peer);
        let is_none = || snapshot.has_all_peers.then(PublishedPeer::default);
        known.copied().or_else(is_none)
    }

    /// Returns how many messages `from` has sent to `to` that have not arrived; `None` if that is not known. It is negative if
    /// the view of `from` is older.
    pub(super) fn on_way(&self, from: u32, to: u32) -> Option<i32> {
        let sent = self.exchanged(from, to)?.sent;
        let received = self.exchanged(to, from)?.received;
        Some(sent.wrapping_sub(received).cast_signed())
    }

    /// Returns how many messages have come at least for a rank in which no thread takes them, because it has no agent and its
    /// thread is elsewhere. 0 if it has an agent, or if the number is not known.
    pub(super) fn untaken(&self, rank: u32) -> u64 {
        let Some((observed, _)) = self.ranks.get(&rank) else {
            return 0;
        };
        let (Ok(view), Some(before)) = (&observed.view, &observed.before) else {
            return 0;
        };
        // An agent would have published within that time.
        if view.is_current || before.is_current || self.job.between < BETWEEN_MIN {
            return 0;
        }
        let senders = self.ranks.keys().filter(|sender| **sender != rank);
        let on_way = senders.filter_map(|sender| u64::try_from(self.on_way(*sender, rank)?).ok());
        // Some may have been taken since that snapshot. Each of these was an event.
        let taken = view.flight.events.saturating_sub(view.snapshot.events);
        on_way.sum::<u64>().saturating_sub(taken)
    }

    /// Returns the last operations of a rank, the oldest first.
    pub(super) fn last_operations(&self, rank: u32) -> &[FlightRecord] {
        let observed = self.ranks.get(&rank).map(|(observed, _)| observed);
        let view = observed.and_then(|observed| observed.view.as_ref().ok());
        view.map_or(&[], |view| &view.flight.records)
    }

    /// Returns true if a message of a rank for which `rank` waits has not arrived, and may end the wait.
    fn may_be_reached(&self, rank: u32) -> bool {
        let peers = self
            .snapshot(rank)
            .map_or(&[][..], |snapshot| &snapshot.peers);
        let peers = peers.iter().map(|peer| peer.rank);
        let senders = self.edges.awaited_senders(rank, peers);
        let mut on_way = senders.filter_map(|sender| self.on_way(sender, rank));
        on_way.any(|count| count != 0)
    }

    /// Returns the members of a communicator: all ranks if it is as large as the job, otherwise those whose views name it.
    pub(super) fn members(&self, comm: &PublishedComm) -> Vec<u32> {
        if comm.size == self.job.size {
            return (0..self.job.size).collect();
        }
        self.members.get(&key(comm)).cloned().unwrap_or_default()
    }

    /// Returns the ranks that wait for `root`, directly or for others that do.
    pub(super) fn waiters_of(&self, root: u32) -> BTreeSet<u32> {
        self.edges.waiters_of([root])
    }

    /// Returns the ranks for which other ranks wait.
    pub(super) fn awaited_ranks(&self) -> BTreeSet<u32> {
        self.edges.awaited()
    }

    /// Returns the largest set of sleeping ranks whose operations can be ended by these ranks alone. Empty without two looks
    /// that are far enough apart.
    pub(super) fn closed_set(&self) -> BTreeSet<u32> {
        if self.job.between < BETWEEN_MIN {
            return BTreeSet::new();
        }
        let asleep = self.ranks.iter().filter(|(number, (rank, standing))| {
            *standing == RankStanding::Waiting
                && is_asleep_in_both(rank)
                && !self.may_be_reached(**number)
        });
        self.edges
            .closed_part(&asleep.map(|(rank, _)| *rank).collect())
    }

    /// Returns the shortest cycle of ranks that each wait for the next one, over operations that `counts` accepts.
    pub(super) fn cycle(
        &self,
        counts: impl Fn(u32, &PublishedWait) -> bool,
    ) -> Option<Vec<(u32, &PublishedWait)>> {
        let mut best: Option<Vec<(u32, &PublishedWait)>> = None;
        // A cycle that does not go through the first ranks is found from another start; a job of thousands needs no shortest one.
        for (start, _) in self.ranks().take(STARTS_MAX) {
            let mut before: BTreeMap<u32, (u32, &PublishedWait)> = BTreeMap::new();
            let mut visits = vec![HubVisit::None; self.edges.hubs()];
            let mut queue = vec![start];
            let mut at = 0;
            while at < queue.len() && !before.contains_key(&start) {
                let rank = queue[at];
                at += 1;
                let holding = self.holding_targets(rank);
                for (wait, targets) in holding.filter(|(wait, _)| counts(rank, wait)) {
                    let all = || -> Vec<u32> { self.edges.ranks_of(rank, targets).collect() };
                    let targets = match targets {
                        WaitTargets::Hub(hub) => visits[*hub].targets(rank, all),
                        WaitTargets::Ranks(_) => all(),
                    };
                    for to in targets {
                        if let Entry::Vacant(entry) = before.entry(to) {
                            entry.insert((rank, wait));
                            queue.push(to);
                        }
                    }
                }
            }
            if !before.contains_key(&start) {
                continue;
            }
            let mut cycle = Vec::new();
            let mut rank = start;
            loop {
                let (from, wait) = before[&rank];
                cycle.push((from, wait));
                rank = from;
                if rank == start {
                    break;
                }
            }
            cycle.reverse();
            if best.as_ref().is_none_or(|best| cycle.len() < best.len()) {
                best = Some(cycle);
            }
        }
        best
    }

    /// Returns the ranks whose operations are those of others, but for peers at the same distance.
    pub(super) fn shared_offsets(&self) -> BTreeSet<u32> {
        type Shape<'s> = Vec<(WaitKind, u32, Option<u32>, &'s str, i64)>;
        let mut shapes: BTreeMap<Shape<'_>, Vec<u32>> = BTreeMap::new();
        for (rank, _) in self.ranks() {
            let holding = self.holding(rank);
            if holding.is_empty() || holding.iter().any(|wait| wait.peer.is_none()) {
                continue;
            }
            let shape = holding.iter().map(|wait| {
                let offset = wait.peer.map_or(0, i64::from) - i64::from(rank);
                (wait.kind, wait.comm, wait.tag, &*wait.at, offset)
            });
            shapes.entry(shape.collect()).or_default().push(rank);
        }
        shapes
            .into_values()
            .filter(|ranks| ranks.len() > 1)
            .flatten()
            .collect()
    }

    /// Returns receives for which there is no message, and messages of the same sender that were not received.
    pub(super) fn near_misses<T>(
        &self,
        tell: impl Fn(u32, &PublishedWait, &StoredGroup) -> T,
    ) -> Vec<T> {
        let mut found = Vec::new();
        for (rank, _) in self.ranks() {
            let stored = self
                .snapshot(rank)
                .map_or(&[][..], |snapshot| &snapshot.stored);
            for wait in self
                .holding(rank)
                .into_iter()
                .filter(|wait| matches!(wait.kind, WaitKind::Recv | WaitKind::Probe))
            {
                // A probe takes messages of any type, so another probe holds those that it would take.
                let takes = |group: &StoredGroup| {
                    wait.kind == WaitKind::Probe
                        && wait.comm == group.comm
                        && wait.tag.is_none_or(|tag| tag == group.tag)
                };
                let is_near = |group: &&StoredGroup| {
                    wait.peer.is_none_or(|peer| peer == group.source) && !takes(group)
                };
                found.extend(
                    stored
                        .iter()
                        .filter(is_near)
                        .map(|group| tell(rank, wait, group)),
                );
            }
        }
        found
    }
}

/// Whether a search has come to a hub.
#[derive(Clone, Copy)]
enum HubVisit {
    None,
    /// From this rank, so that all others of the hub were found.
    From(u32),
    /// From two ranks, so that all were found.
    Done,
}

impl HubVisit {
    /// Returns the ranks of the hub that were not found from it yet.
    fn targets(&mut self, from: u32, all: impl FnOnce() -> Vec<u32>) -> Vec<u32> {
        match *self {
            Self::None => {
                *self = Self::From(from);
                all()
            }
            Self::From(first) if first == from => Vec::new(),
            Self::From(first) => {
                *self = Self::Done;
                all().into_iter().filter(|rank| *rank == first).collect()
            }
            Self::Done => Vec::new(),
        }
    }
}

/// Least nanoseconds between two looks that show that a rank sleeps: some periods in which it would publish a change.
const BETWEEN_MIN: u64 = 500_000_000;

/// Ranks from which cycles are searched.
const STARTS_MAX: usize = 64;

fn key(comm: &PublishedComm) -> (u32, u32, u64) {
    (comm.comm, comm.size, comm.members)
}

fn snapshot(rank: &ObservedRank) -> Option<&RankSnapshot> {
    rank.view.as_ref().ok().map(|view| &view.snapshot)
}
