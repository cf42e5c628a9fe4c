//! Fences: a dissemination barrier over counters (after Hensgen, Finkel and Manber 1988).
//!
//! In round k a rank counts one at the rank 2ᵏ further, and waits for the rank 2ᵏ before. After ⌈log₂ size⌉ rounds all have come.
//! The counters are never reset: fence number n is passed in a round when the upper half of the round's counter is at n.
//!
//! A fence either ends the epochs of all ranks, or of none: who has ended takes its memory for its own again. So the lower half
//! counts the endings, and whoever sees another number than its own says so to all that come after, and fails. A rank gets
//! through only over paths from all others on which all agree.

use ripstop_fabric::{driver::Down, offload::Counter};

use super::{
    All, Core, Engine, WindowId,
    tally::{Remote, What},
};
use crate::{
    engine::send::down_kind,
    error::ErrorKind,
    group::Group,
    proto::wire::{Kind, Tally},
};

/// The fences of one end.
pub(super) struct Fences {
    /// By round.
    counters: Vec<Counter>,
    /// Fences that this rank has come to.
    come: u64,
    /// The round that the last of them is in, and whether its word was said.
    round: usize,
    said: bool,
    /// The last of them is not over.
    under_way: bool,
    /// Whom it waits for.
    awaited: Option<u32>,
    /// The last of them ends the epoch.
    ending: bool,
    /// Those that did.
    endings: u64,
    /// A rank that did not agree: no fence will be passed any more.
    apart: Option<u32>,
}

/// A word that says that a rank has come; in the lower half, whether to an ending.
const COME: u64 = 1 << 32;
/// What a rank adds instead that has seen two that do not agree: no number of endings comes so far.
const APART: u64 = 3;

/// Whether a window's fences can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gates {
    Counted,
    /// They do, and one that was given up is still under way.
    Earlier,
    /// The driver has no counters: a barrier of messages does it.
    None,
}

impl Fences {
    /// A rank whose silence would leave us waiting for ever.
    pub(super) fn awaited(&self) -> Option<u32> {
        self.awaited.filter(|_| self.under_way)
    }

    pub(super) fn counter(&self, round: usize) -> Option<&Counter> {
        self.counters.get(round)
    }

    fn word(&self) -> u64 {
        match self.apart {
            None => COME + u64::from(self.ending),
            Some(_) => COME + APART,
        }
    }

    /// Whether the rank before us in this round, which has come, has ended as many epochs. It may be further than we are, but
    /// only if it agreed with all others so far.
    fn agrees(&self) -> bool {
        self.counter(self.round).is_none_or(|counter| {
            let (come, endings) = (counter.value() / COME, counter.value() % COME);
            endings.wrapping_sub(self.endings) <= come - self.come
        })
    }
}

/// Two ranks came to fences of two kinds; in ranks of the window's communicator.
fn mismatch(group: &Group, me: u32, other: u32) -> (u32, ErrorKind) {
    let rank_of = |rank| group.local_of(rank).unwrap_or_default();
    let [rank, other_rank] = [me, other].map(rank_of);
    let why = ErrorKind::Mismatch {
        rank,
        other: other_rank,
    };
    (other, why)
}

impl Engine {
    /// This rank comes to the next fence, or goes on to wait in one that was given up. That may be one of the other kind: then
    /// it is to be passed before the one that is asked for.
    pub(crate) fn begin_fence(&mut self, id: WindowId, ending: bool) -> Gates {
        if !self.driver.caps().counters {
            return Gates::None;
        }
        self.make_gates(id);
        let Some(fences) = self.core.fences(id) else {
            return Gates::Counted;
        };
        if !std::mem::replace(&mut fences.under_way, true) {
            fences.come += 1;
            fences.endings += u64::from(ending);
            (fences.round, fences.said, fences.ending) = (0, false, ending);
        }
        if fences.ending == ending {
            Gates::Counted
        } else {
            Gates::Earlier
        }
    }

    /// Makes the counters at the first fence, and says where they are to those who will count there.
    fn make_gates(&mut self, id: WindowId) {
        let Some(group) = self.core.members(id.ctx).cloned() else {
            return;
        };
        let me = self.core.windows.me;
        let All { ends, pool, .. } = &mut *self.core.windows;
        let end = ends.get_mut(&id).filter(|end| end.fences.is_none());
        let Some(end) = end else {
            return;
        };
        let mut counters = Vec::new();
        let mut keys = Vec::new();
        while let Some((_, before)) = partners(&group, me, counters.len()) {
            let Some((counter, key)) = pool.take(&mut *self.driver) else {
                break;
            };
            counters.push(counter);
            keys.push((before, key));
        }
        end.fences = Some(Fences {
            counters,
            come: 0,
            round: 0,
            said: false,
            under_way: false,
            awaited: None,
            ending: false,
            endings: 0,
            apart: None,
        });
        for (before, key) in keys {
            if self.core.peers.down(before).is_none() {
                let gate = id.tally(Kind::Gate, [key, bytemuck::Zeroable::zeroed()]);
                self.core.peers.control(before, &gate);
            }
        }
    }

    /// Goes through the rounds of the last fence as far as that is possible now. Only when nothing of ours is under way.
    pub(crate) fn pass_fence(&mut self, id: WindowId) -> Option<Result<(), (u32, ErrorKind)>> {
        let Some(group) = self.core.members(id.ctx).cloned() else {
            return Some(Ok(()));
        };
        let me = self.core.windows.me;
        loop {
            let round = self.core.fences(id)?.round;
            let Some((after, before)) = partners(&group, me, round) else {
                let fences = self.core.fences(id)?;
                fences.under_way = false;
                let apart = fences.apart;
                return Some(apart.map_or(Ok(()), |other| Err(mismatch(&group, me, other))));
            };
            let awaited = if !self.say_gate(id, after) {
                Some(after)
            } else if !self.core.has_come(id) {
                Some(before)
            } else {
                None
            };
            self.core.fences(id)?.awaited = awaited;
            if let Some(awaited) = awaited {
                let lost = self.core.lost_in(&group, awaited)?;
                self.core.fences(id)?.under_way = false;
                return Some(Err(lost));
            }
            let fences = self.core.fences(id)?;
            if !fences.agrees() {
                fences.apart = fences.apart.or(Some(before));
            }
            (fences.round, fences.said) = (round + 1, false);
        }
    }

    /// Counts at the rank after us in this round, once; whether that could be done.
    fn say_gate(&mut self, id: WindowId, after: u32) -> bool {
        let fences = self.core.fences(id).filter(|fences| !fences.said);
        let Some(word) = fences.map(|fences| fences.word()) else {
            return true;
        };
        self.reach_counters(id, after);
        let Some(gate) = self
            .core
            .windows
            .near(id, after)
            .and_then(|near| near.gate.as_ref())
        else {
            return false; // it has not come to its first fence
        };
        gate.add(word, after, &mut self.core.wanted);
        if let Some(fences) = self.core.fences(id) {
            fences.said = true;
        }
        self.flush();
        true
    }

    /// Has the driver wake who waits in a fence.
    pub(crate) fn watch_fence(&mut self, id: WindowId) {
        if !self.core.is_all_quiet(id) {
            return; // what is waited for are own operations
        }
        // Also if it has come since the last look: that must lead to another one, because the next round is not watched.
        if let Some(fences) = self.core.fences(id)
            && fences.said
        {
            let (round, come) = (fences.round, fences.come);
            self.watch(id, What::Gate(round), come * COME);
        }
    }
}

impl Core {
    fn fences(&mut self, id: WindowId) -> Option<&mut Fences> {
        self.windows.ends.get_mut(&id)?.fences.as_mut()
    }

    /// Whether the rank before us in this round has come.
    fn has_come(&mut self, id: WindowId) -> bool {
        self.fences(id).is_none_or(|fences| {
            let counter = fences.counter(fences.round);
            counter.is_none_or(|counter| counter.value() / COME >= fences.come)
        })
    }

    /// A member whose end keeps a fence, in which this rank waits for `awaited`, from ever being passed.
    fn lost_in(&self, group: &Group, awaited: u32) -> Option<(u32, ErrorKind)> {
        if self.ended {
            return Some((awaited, ErrorKind::Closed));
        }
        if self.peers.downs() == 0 {
            return None;
        }
        let failed = |rank: &u32| self.peers.down(*rank) == Some(Down::Failed);
        let down = self.peers.down(awaited).map(|down| (awaited, down));
        let down = down.or_else(|| Some((group.members().find(failed)?, Down::Failed)));
        down.map(|(rank, down)| (rank, down_kind(rank, down)))
    }

    pub(in crate::engine) fn handle_gate(&mut self, rank: u32, header: &Tally) {
        let id = WindowId {
            ctx: header.ctx,
            tag: header.tag,
        };
        if let Some(near) = self.near_of(id, rank) {
            near.gate.get_or_insert_with(|| Remote::new(header.first));
            self.stir_window(id);
        }
    }
}

/// The ranks after and before one in a round; `None` after the last round.
fn partners(group: &Group, me: u32, round: usize) -> Option<(u32, u32)> {
    let (size, rank) = (group.len(), group.local_of(me)?);
    let distance = 1_usize.checked_shl(u32::try_from(round).ok()?)?;
    if distance >= size {
        return None;
    }
    let after = group.world_of((rank + distance) % size)?;
    Some((after, group.world_of((rank + size - distance) % size)?))
}
