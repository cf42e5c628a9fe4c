//! Fences of windows: a dissemination barrier over counters (after Hensgen, Finkel and Manber 1988).
//!
//! In round k a rank adds to a counter of the rank 2ᵏ after it, and waits for the rank 2ᵏ before it. All ranks have come after
//! ⌈log₂ size⌉ rounds. The counters are never reset: a fence has passed a round when the round's counter has reached the number
//! of fences so far. A round has two counters, which fences use in turn, because a driver may let the additions for two fences
//! in succession overtake each other.
//!
//! A fence ends the epochs of either all ranks or none, because a rank that has ended its epoch uses its memory for itself again.
//! So a counter also says how many fences were endings. A rank that sees another one than its own fails, and notifies the ranks
//! after it in all rounds. A rank that waits for a failed peer does the same, because not every rank learns of that failure by
//! itself. So a rank passes a fence only if all ranks agree on every path from them to it. Once failed, a window's fences
//! stay failed.

use std::mem;

use ripstop_fabric::{driver::DownCause, offload::LocalCounter};

use super::{
    LazyWindowTable, WindowId, WindowPart, WindowProgress, WindowTable,
    counter_pairs::{PeerCounter, WatchedCounter},
    fence_word::{FenceFailure, FenceVerdict, FenceWord},
};
use crate::{
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    proto::wire::{COUNT_FENCES, CounterKeysHeader, WireKind},
};

/// Fences of one end.
pub(super) struct WindowFences {
    rounds: Vec<FenceRound>,
    /// Fences to which this rank has come.
    come: u64,
    /// Fences that ended this rank's epoch, by the counter that they use.
    endings: [u64; 2],
    /// Round that the last fence is in.
    round: usize,
    /// Value of the round's counter from which on it may say more than it did.
    next: u64,
    /// True while the last fence is in progress.
    in_flight: bool,
    /// World rank for which the last fence waits.
    awaited: Option<WorldRank>,
    /// True if the last fence ends the epoch.
    ending: bool,
    /// Reason why no further fence will be passed.
    failed: Option<FenceFailure>,
}

struct FenceRound {
    /// Counters to which the rank before this one adds, for fences of even and of odd numbers; `None` if there was no memory for
    /// them.
    counters: Option<[LocalCounter; 2]>,
    /// Fences that this rank has announced to the rank after it.
    announced: u64,
    /// True once this rank has announced there that the fences have failed.
    told_failure: bool,
}

/// Says whether the fences of a window use counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FenceMethod {
    Counted,
    /// Counters are used, but an abandoned fence of the other kind is still in progress and must be passed first.
    Earlier,
    /// The driver has no counters, so the caller uses a barrier of messages.
    None,
}

/// Outcome of a fence; an error names the rank that is its cause.
pub(crate) type FenceResult = Result<(), (WorldRank, ErrorKind)>;

/// Outcome of a fence, or what it still waits for: a fence counter, or `None` for anything else.
pub(crate) type FencePoll = Result<FenceResult, Option<AwaitedFenceCounter>>;

/// The counter for which a fence waits in a round.
#[derive(Debug)]
pub(crate) struct AwaitedFenceCounter {
    counter: LocalCounter,
    /// Value from which on there may be news.
    from: u64,
}

impl AwaitedFenceCounter {
    /// Returns true if the rank before this one may have come or failed.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.counter.value() >= self.from
    }
}

impl WindowFences {
    /// Returns the rank for which the fence in progress waits.
    pub(super) fn awaited(&self) -> Option<WorldRank> {
        self.awaited.filter(|_| self.in_flight)
    }

    /// Returns the number of fences that this rank has passed.
    pub(super) fn passed(&self) -> u64 {
        self.come - u64::from(self.in_flight)
    }

    /// Returns one of the counters of a round.
    pub(super) fn counter(&self, round: usize, parity: usize) -> Option<&LocalCounter> {
        self.rounds.get(round)?.counters.as_ref()?.get(parity)
    }

    /// Returns the counter that the last fence uses in its round.
    fn awaited_counter(&self) -> Option<&LocalCounter> {
        self.counter(self.round, self.parity())
    }

    /// Returns which of the two counters of a round the last fence uses.
    pub(super) fn parity(&self) -> usize {
        parity_of(self.come)
    }

    /// Returns what the rank before this one has announced, or `None` if it has not come to the last fence. Notes then from which
    /// value on the counter may say more.
    fn hear(&mut self) -> Option<FenceVerdict> {
        let heard = FenceWord(self.awaited_counter()?.value());
        let fences = nth_of(self.come);
        self.next = heard.next(fences);
        heard.verdict(fences, self.endings[self.parity()])
    }

    /// Returns true if this rank has announced the last fence in this round.
    fn has_said(&self) -> bool {
        let round = self.rounds.get(self.round);
        round.is_some_and(|round| round.announced >= self.come)
    }

    /// Returns the counter of the rank after this one, by its parity, and what is due to be added to it. Notes that it is added.
    fn announce(&mut self, round: usize) -> Option<(usize, u64)> {
        let place = self.rounds.get_mut(round)?;
        match self.failed {
            None => {
                let parity = parity_of(self.come);
                let (fences, endings) = (nth_of(self.come), self.endings[parity]);
                let before = FenceWord::after(fences - 1, endings - u64::from(self.ending));
                place.announced = self.come;
                Some((parity, FenceWord::after(fences, endings).0 - before.0))
            }
            Some(_) if mem::replace(&mut place.told_failure, true) => None,
            Some(_) => {
                let next = place.announced + 1;
                Some((parity_of(next), FenceWord::failure(nth_of(next) - 1)))
            }
        }
    }
}

impl WindowProgress<'_> {
    /// Comes to the next fence, or continues an abandoned one. If the abandoned fence is of the other kind, it must be passed
    /// before the requested one begins ([`FenceMethod::Earlier`]).
    pub(crate) fn begin_fence(&mut self, id: WindowId, ending: bool) -> FenceMethod {
        if self.driver.event_counters().is_none() {
            return FenceMethod::None;
        }
        self.make_gates(id);
        let Some(fences) = self.part.windows.fences(id) else {
            return FenceMethod::Counted;
        };
        if fences.failed.is_none() && !mem::replace(&mut fences.in_flight, true) {
            fences.come += 1;
            fences.endings[fences.parity()] += u64::from(ending);
            (fences.round, fences.ending) = (0, ending);
        }
        if fences.ending == ending || fences.failed.is_some() {
            FenceMethod::Counted
        } else {
            FenceMethod::Earlier
        }
    }

    /// Advances the last fence as far as is possible now.
    pub(in crate::engine) fn advance_fence(
        &mut self,
        id: WindowId,
        gates: FenceMethod,
    ) -> FencePoll {
        if !self.part.is_all_quiet(id) {
            return Err(None);
        }
        if gates == FenceMethod::None {
            return Ok(Ok(()));
        }
        self.pass_fence(id)
            .ok_or_else(|| self.part.awaited_gate(id))
    }

    /// Advances the last fence through its rounds. Call only when none of this rank's operations is in flight.
    fn pass_fence(&mut self, id: WindowId) -> Option<FenceResult> {
        let Some(group) = self.part.common.members(id.context).cloned() else {
            return Some(Ok(()));
        };
        let me = self.part.common.me;
        loop {
            let fences = self.part.windows.fences(id)?;
            if let Some(failed) = fences.failed {
                fences.in_flight = false;
                return Some(Err(failed.error(me, id.sequence)));
            }
            let Some((after, before)) = partners(&group, me, fences.round) else {
                fences.in_flight = false;
                return Some(Ok(()));
            };
            let has_said = self.say_gate(id, after);
            let fences = self.part.windows.fences(id)?;
            let (heard, ending) = (has_said.then(|| fences.hear()).flatten(), fences.ending);
            let awaited = if has_said { before } else { after };
            fences.awaited = heard.is_none().then_some(awaited);
            let failed = match heard {
                Some(FenceVerdict::Come) => {
                    fences.round += 1;
                    continue;
                }
                Some(FenceVerdict::Apart) => FenceFailure::Apart(before, ending),
                Some(FenceVerdict::GaveUp) => FenceFailure::GaveUp(before),
                None if self.part.common.ended => {
                    return Some(Err((awaited, ErrorKind::Closed)));
                }
                None => self.part.lost_in(id, &group, awaited)?,
            };
            self.part.fail_fences(id, failed);
        }
    }

    /// Adds to the counter of the rank after this one in this round, once for each fence. Returns true if that was done.
    fn say_gate(&mut self, id: WindowId, after: WorldRank) -> bool {
        let fences = self.part.windows.fences(id);
        let Some(fences) = fences.filter(|fences| !fences.has_said()) else {
            return true;
        };
        let round = fences.round;
        self.reach_counters(id, after);
        self.part.say_in(id, round, after)
    }

    /// Asks the driver to wake the thread when the fence can advance.
    pub(in crate::engine) fn watch_fence(&mut self, id: WindowId) {
        if !self.part.is_all_quiet(id) {
            return; // the fence waits for this rank's own operations
        }
        // Watch even if the rank before this one has come since the last check: the next round is not watched, so this rank must
        // be woken to check it.
        let Some(fences) = self.part.windows.fences(id) else {
            return;
        };
        if fences.has_said() {
            let gate = WatchedCounter::Gate(fences.round, fences.parity());
            let next = fences.next;
            self.watch(id, gate, next);
        } else if let Some(after) = fences.awaited() {
            self.part.ask_to_fence(id, after);
        }
    }

    /// Creates the counters at the first fence, and sends their keys to the ranks that will add to them.
    fn make_gates(&mut self, id: WindowId) {
        let Self { driver, part } = self;
        let me = part.common.me;
        let WindowTable { ends, pool, .. } = &mut **part.windows;
        let end = ends.get_mut(&id).filter(|end| end.fences.is_none());
        let Some(end) = end else {
            return;
        };
        let Some(group) = part.common.members(id.context).cloned() else {
            return;
        };
        let mut rounds = Vec::new();
        let mut keys = Vec::new();
        while let Some((_, before)) = partners(&group, me, rounds.len()) {
            let (counters, key) = pool.take_pair(&mut **driver).unzip();
            rounds.push(FenceRound {
                counters,
                announced: 0,
                told_failure: false,
            });
            keys.push((before, key));
        }
        // Without memory for a counter these fences fail. Peers learn that in the rounds that have a counter, and from the
        // refusal sent below in the others.
        let lacks = rounds.iter().any(|round| round.counters.is_none());
        end.fences = Some(WindowFences {
            rounds,
            come: 0,
            endings: [0; 2],
            round: 0,
            next: 0,
            in_flight: false,
            awaited: None,
            ending: false,
            failed: lacks.then_some(FenceFailure::NoMemory),
        });
        for (before, key) in keys {
            if part.common.peers.down(before).is_some() {
                continue;
            }
            match key {
                Some(key) => {
                    let keys = id.keys_header(WireKind::FenceKeys, key);
                    part.common.peers.control(before, &keys);
                }
                None => part.refuse_fences(id, before),
            }
        }
        if lacks {
            part.tell_failure(id);
        }
    }
}

impl LazyWindowTable {
    fn fences(&mut self, id: WindowId) -> Option<&mut WindowFences> {
        self.0.as_mut()?.ends.get_mut(&id)?.fences.as_mut()
    }
}

impl WindowPart<'_> {
    fn awaited_gate(&mut self, id: WindowId) -> Option<AwaitedFenceCounter> {
        let fences = self.windows.fences(id).filter(|fences| fences.has_said())?;
        let from = fences.next;
        let counter = fences.awaited_counter()?.clone();
        Some(AwaitedFenceCounter { counter, from })
    }

    /// Adds what is due to a counter of the rank after this one. Returns false if that rank has not sent its keys yet.
    fn say_in(&mut self, id: WindowId, round: usize, after: WorldRank) -> bool {
        let Self {
            windows, common, ..
        } = self;
        let Some(end) = windows.ends.get_mut(&id) else {
            return false;
        };
        let peer_end = end.peer_ends.get(&after);
        let counters = peer_end.and_then(|peer_end| peer_end.fence_counters.as_ref());
        let Some((counters, fences)) = counters.zip(end.fences.as_mut()) else {
            return false; // the rank after us has not come to its first fence
        };
        if let Some((parity, by)) = fences.announce(round) {
            counters[parity].add(by, after, &mut common.commands);
        }
        true
    }

    /// Fails all further fences of this window, and says so in all rounds, including those already passed.
    fn fail_fences(&mut self, id: WindowId, failed: FenceFailure) {
        if let Some(fences) = self.windows.fences(id) {
            fences.failed = fences.failed.or(Some(failed));
        }
        self.tell_failure(id);
    }

    fn tell_failure(&mut self, id: WindowId) {
        let Some(group) = self.common.members(id.context).cloned() else {
            return;
        };
        let me = self.common.me;
        let afters = (0..).map_while(|round| partners(&group, me, round));
        for (round, (after, _)) in afters.enumerate() {
            self.say_in(id, round, after);
        }
    }

    /// Asks a rank that has sent no keys to its fence counters to say when it has freed its end, now or later.
    fn ask_to_fence(&mut self, id: WindowId, after: WorldRank) {
        let peer_end = self.windows.peer_end(id, after);
        if peer_end.is_some_and(|peer_end| !mem::replace(&mut peer_end.asked_to_fence, true)) {
            let waits = id.count_header(WireKind::WindowCount, COUNT_FENCES, 0);
            self.common.peers.control(after, &waits);
        }
    }

    /// Answers that no end here comes to fences.
    pub(super) fn refuse_fences(&mut self, id: WindowId, rank: WorldRank) {
        let refusal = id.count_header(WireKind::NoWindow, COUNT_FENCES, 0);
        self.common.peers.control(rank, &refusal);
    }

    /// Returns the reason why a fence in which this rank waits for `awaited` can never be passed: a member has failed or left.
    fn lost_in(&self, id: WindowId, group: &RankGroup, awaited: WorldRank) -> Option<FenceFailure> {
        let end = self.windows.ends.get(&id)?;
        let last = end
            .peer_ends
            .get(&awaited)
            .and_then(|peer_end| peer_end.last_fence);
        let come = end.fences.as_ref().map_or(0, |fences| fences.come);
        if last.is_some_and(|last| last < come) {
            return Some(FenceFailure::GaveUp(awaited));
        }
        if self.common.peers.downs() == 0 {
            return None;
        }
        let failed = |rank: &WorldRank| self.common.peers.down(*rank) == Some(DownCause::Failed);
        let down = self.common.peers.down(awaited).map(|down| (awaited, down));
        let down = down.or_else(|| Some((group.members().find(failed)?, DownCause::Failed)));
        down.map(|(rank, down)| FenceFailure::Gone(rank, down))
    }

    pub(in crate::engine) fn handle_fence_keys(
        &mut self,
        rank: WorldRank,
        header: &CounterKeysHeader,
    ) {
        let id = WindowId::new(header.ctx, header.tag);
        let Some(peer_end) = self.peer_end_of(id, rank) else {
            return self.refuse_fences(id, rank);
        };
        peer_end.fenced = true;
        peer_end
            .fence_counters
            .get_or_insert_with(|| [header.first, header.second].map(PeerCounter::new));
        let fences = self.windows.fences(id);
        if fences.is_some_and(|fences| fences.failed.is_some()) {
            self.tell_failure(id);
        }
        self.wake_window(id);
    }
}

/// Returns which of the two counters of a round a fence uses.
fn parity_of(fence: u64) -> usize {
    usize::from(!fence.is_multiple_of(2))
}

/// Returns how many fences up to this one use the same counter.
fn nth_of(fence: u64) -> u64 {
    fence.div_ceil(2)
}

/// Returns the ranks after and before this one in a round, or `None` after the last round.
fn partners(group: &RankGroup, me: WorldRank, round: usize) -> Option<(WorldRank, WorldRank)> {
    let rank = group.local_of(me)?;
    let distance = 1_usize.checked_shl(u32::try_from(round).ok()?)?;
    if distance >= group.len() {
        return None;
    }
    let after = group.world_after(rank, distance)?;
    Some((after, group.world_before(rank, distance)?))
}
