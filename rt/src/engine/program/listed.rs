//! Programs that the driver's adapter carries out by itself, by task lists.
//!
//! A program whose [slot](super::slots) is free is lowered, and its first two lists are posted; when one of them has begun, the
//! next is. The host is woken for that, for the steps that are its own (reductions, but for short rows of integers where the
//! adapter combines those), and for the end.
//!
//! What fails is taken back. Peers may still have leave to put: the buffers come home when they say that they put no more.

use std::{collections::BTreeSet, io};

use ripstop_fabric::driver::{Caps, Down, Driver, Failure, Token};

use super::{
    Run, State,
    calls::{Why, is_before},
    slots::{Key, Lot, slots_of},
    still::Still,
};
use crate::{
    engine::{Core, Engine, Wanted, send::down_kind},
    error::ErrorKind,
    group::Group,
    offload::{
        Action,
        lists::{Code, Duties, End, FAMILIES, Posted},
    },
    proto::wire,
};

/// How far a program is with its lists.
pub(super) struct Listed {
    pub(super) serial: u32,
    pub(super) key: Key,
    /// Nothing while it waits for its slot.
    pub(super) posted: Option<Posted>,
    /// What is the host's and may begin.
    pub(super) duties: Duties,
    /// Receives are counted for who may want to know of them.
    pub(super) tells: bool,
    pub(super) over: bool,
    /// A peer that has no place for what was put to it: it has called another collective, or has failed and will say why.
    pub(super) stranger: Option<u32>,
    /// What was put found no place, and it is not known yet at whom or why.
    homeless: bool,
    /// Ranks that are through with it, and had said so when they were asked last.
    through: BTreeSet<u32>,
    /// Those that have said so since.
    pub(super) said_through: BTreeSet<u32>,
    /// What is taken back, and which of its families are not under way any more.
    pub(super) ending: Option<[bool; FAMILIES.len()]>,
    /// What is said before its memory is closed.
    pub(super) still: Still,
}

/// What the driver says of a program.
pub(in crate::engine) enum Heard {
    Reached,
    Triggered,
    Failed(Failure),
}

/// Tasks of a list on this driver, or 0 where programs go by messages. Half of what it holds, so that it has two.
pub(in crate::engine) fn list_max(caps: &Caps) -> usize {
    let reaches_all = caps.counters && caps.names && caps.any_memory.is_ok();
    if reaches_all && caps.triggered_max >= TRIGGERED_MIN {
        caps.triggered_max / 2
    } else {
        0
    }
}

/// Two lists that hold any four steps in a row.
const TRIGGERED_MIN: usize = 8;

/// Tokens with this bit are those of programs; windows and operations never come so far.
pub(super) const TOKENS: u64 = 1 << 62;

pub(in crate::engine) const fn is_token(token: Token) -> bool {
    token.0 & TOKENS != 0
}

impl Listed {
    pub(super) fn is_over(&self, failed: bool) -> bool {
        let untouched = self.posted.is_none() || self.still.is_there();
        self.over || failed && self.puts_no_more() && untouched
    }

    /// Whether this rank puts no more of it, when it has failed.
    pub(super) fn puts_no_more(&self) -> bool {
        let ended = self
            .ending
            .is_some_and(|ended| ended.iter().all(|over| *over));
        self.over || self.posted.is_none() || ended
    }

    /// From now on it says which of its receives are over.
    pub(super) fn tell_landed(&mut self, driver: &mut dyn Driver) {
        if let Some(posted) = &mut self.posted {
            posted.tell(driver);
        }
    }

    /// Whether the driver may still touch its memory.
    pub(super) fn is_under_way(&self) -> bool {
        self.posted.is_some() && !self.is_over(true)
    }
}

impl State {
    /// A program that is to go by lists.
    pub(super) fn list(&mut self, (ctx, tag): (u32, u32), size: usize, tells: bool) -> Box<Listed> {
        self.serial = self.serial.wrapping_add(1) & (u32::MAX >> 2);
        Box::new(Listed {
            serial: self.serial,
            key: (ctx, tag % slots_of(size)),
            posted: None,
            duties: Duties::default(),
            tells,
            over: false,
            stranger: None,
            homeless: false,
            through: BTreeSet::new(),
            said_through: BTreeSet::new(),
            ending: None,
            still: Still::default(),
        })
    }

    /// How far a program under way is that goes by lists.
    pub(super) fn listed(&mut self, index: u32) -> Option<&mut Listed> {
        self.get(index)?.listed.as_deref_mut()
    }

    fn of_token(&self, token: Token) -> Option<u32> {
        let is_it = |run: &Run| {
            let listed = run.listed.as_ref();
            listed.is_some_and(|listed| u64::from(listed.serial) == (token.0 & !TOKENS) >> 32)
        };
        let mut runs = (0..).zip(&self.runs);
        let found = runs.find(|(_, run)| run.as_deref().is_some_and(is_it));
        found.map(|(index, _)| index)
    }
}

impl Engine {
    /// Has a program that has not failed go on. Returns why it cannot.
    pub(super) fn go_on_listed(&mut self, index: u32, run: &mut Run) -> Option<ErrorKind> {
        let listed = run.listed.as_mut()?;
        if listed.posted.is_none() && !listed.over {
            match self.take_slot(index, run) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(ErrorKind::Transport(error)),
            }
        }
        self.do_due(index, run);
        None
    }

    /// Does the steps of the host's that may begin.
    fn do_due(&mut self, index: u32, run: &mut Run) {
        while let Some(listed) = run.listed.as_mut()
            && let Some(&step) = listed.duties.steps.front()
            && let Some(posted) = &listed.posted
        {
            let (action, end) = (posted.action(step), posted.end_of(step));
            if matches!(action, Action::Reduce { .. }) && run.reducer.is_none() {
                return; // another one is under way
            }
            listed.duties.steps.pop_front();
            if run.work_now(&action) {
                self.core.count_own(end);
            } else {
                self.begin_job(index, run, step);
            }
        }
    }

    /// A program that has failed: what has not begun never does.
    pub(super) fn take_back(&mut self, run: &mut Run) {
        if let Some(listed) = run.listed.as_mut()
            && let Some(posted) = listed.posted.as_mut()
            && listed.ending.is_none()
        {
            posted.cancel(&mut *self.driver);
            listed.ending = Some([false; FAMILIES.len()]);
        }
    }

    /// The driver says something of a program.
    pub(super) fn listen(&mut self, token: Token, heard: Heard) {
        let Some(index) = self.core.programs.of_token(token) else {
            return; // it is over
        };
        let Some(mut run) = self.core.programs.runs[index as usize].take() else {
            return;
        };
        let code = Code::unpack(wire::low_half(token.0));
        let refused = match heard {
            Heard::Failed(why) => self.hear_failure(&mut run, code, why),
            Heard::Reached | Heard::Triggered => self.hear(&mut run, code),
        };
        self.core.programs.runs[index as usize] = Some(run);
        if let Some(kind) = refused {
            self.core.fail(index, kind);
        }
        self.go_on(index);
    }

    /// Why the program fails, if it does.
    fn hear(&mut self, run: &mut Run, code: Code) -> Option<ErrorKind> {
        let under_way = |listed: &&mut Box<Listed>| listed.ending.is_none() && !listed.over;
        let listed = run.listed.as_mut().filter(under_way)?;
        let lot = self.core.programs.slots.get(&listed.key)?;
        let posted = listed.posted.as_mut()?;
        let (driver, slot) = (&mut *self.driver, &lot.slot);
        let duties = &mut listed.duties;
        match code {
            Code::List(list) => posted.begun(driver, slot, list, duties),
            Code::Held | Code::Single => posted.post_held(driver, slot, duties),
            Code::Told(nth) => {
                posted.heard(code, duties);
                let waker = self.core.ops.live(run.buffers).waker.take();
                self.core.wakers.extend(waker);
                run.landed
                    .iter_mut()
                    .for_each(|landed| landed.extend(posted.told(nth)));
            }
            Code::Step(_) | Code::Spread(_) | Code::End => posted.heard(code, duties),
        }
        let end = posted.end(driver);
        listed.over = end == End::Well;
        self.core.count_for(listed);
        (end == End::Overcounted).then(overcounted)
    }

    /// Lists are taken back, by us or because a task has failed. Why the program does, if that is known now.
    fn hear_failure(&mut self, run: &mut Run, code: Code, why: Failure) -> Option<ErrorKind> {
        let first = run
            .listed
            .as_ref()
            .is_some_and(|listed| listed.ending.is_none());
        self.take_back(run);
        let (key, sig) = (run.key(), run.sig());
        let listed = run.listed.as_mut()?;
        if let (Some(ended), Some(family)) = (&mut listed.ending, code.family()) {
            ended[family] = true;
        }
        if listed.puts_no_more() {
            self.core.tell_still(key, sig, listed);
        }
        let lot = self.core.programs.slots.get(&listed.key)?;
        let posted = listed.posted.as_ref().filter(|_| first)?;
        match why {
            Failure::Unmatched | Failure::BadRange => {
                run.asked = false;
                let stranger = posted.stranger(&lot.slot);
                let Some(stranger) = stranger.and_then(|peer| run.group.world_of(peer)) else {
                    // A peer has closed its memory, and will say why; or nobody does.
                    listed.homeless = true;
                    return (!self.core.hears_in_order()).then(homeless);
                };
                listed.stranger = Some(stranger);
                let waits = self.core.doubts(stranger, (key, sig));
                (!waits).then(|| self.core.mismatch_with(stranger))
            }
            // Who is down is said after this, if it was not before.
            Failure::PeerDown => self.core.first_down(&run.group),
            Failure::Transport(error) => Some(ErrorKind::Transport(error)),
            _ => None,
        }
    }

    /// Before the driver goes: ranks that have let us send what we do not send are told that we have finished.
    pub(in crate::engine) fn turn_invitations_down(&mut self) {
        let core = &mut self.core;
        if core.programs.slots.is_empty() {
            return;
        }
        let slots = std::mem::take(&mut core.programs.slots);
        // Who comes after the look finds no slot.
        slots.values().for_each(|lot| core.unname(lot));
        self.flush();
        for (key, lot) in slots {
            self.core.turn_down(key, &lot);
        }
        self.flush();
    }
}

impl Core {
    /// Counts what is the host's to count.
    pub(super) fn count_for(&mut self, listed: &mut Listed) {
        let counts = listed.duties.counts.drain(..);
        counts.for_each(|counter| self.count_own(counter));
    }

    fn count_own(&mut self, counter: ripstop_fabric::offload::RemoteCounter) {
        let rank = self.programs.me;
        self.wanted.push(Wanted::Count {
            rank,
            counter,
            by: 1,
        });
    }

    /// A job of a program is done. `true`: it goes by lists.
    pub(super) fn listed_job_over(&mut self, index: u32, step: usize) -> bool {
        let Some(run) = self.programs.get(index) else {
            return false;
        };
        let Some(listed) = &run.listed else {
            return false;
        };
        let end = listed.posted.as_ref().map(|posted| posted.end_of(step));
        // What a reduction left behind that panicked is nobody's.
        if let Some(end) = end.filter(|_| run.failed.is_none() && run.panic.is_none()) {
            self.count_own(end);
        }
        true
    }

    fn first_down(&self, group: &Group) -> Option<ErrorKind> {
        let down = |rank: u32| Some(down_kind(rank, self.peers.down(rank)?));
        group.members().find_map(down)
    }

    /// Ranks that have let us send in this slot what we do not send are told that we have finished.
    pub(super) fn turn_down(&mut self, (ctx, nth): Key, lot: &Lot) {
        let slots = slots_of(lot.slot.size());
        let next = self.programs.calls.next(ctx);
        // No collective that anybody may still end, and one of this slot.
        let tag = next.wrapping_add((nth + slots - next % slots) % slots);
        let finished = Why::Finished(self.programs.me).header((ctx, tag));
        for rank in lot.slot.waiting() {
            if self.peers.down(rank).is_none() {
                self.peers.control(rank, &finished);
            }
        }
    }

    /// A peer has finished before this collective, and what was to come in this slot from there on never does.
    pub(super) fn lose_invited(&mut self, rank: u32, (ctx, tag): (u32, u32)) {
        let waits = |run: &Run| {
            let slots = slots_of(run.group.len());
            let listed = run.listed.as_ref();
            run.group.contains(rank)
                && !is_before(run.key().1, tag)
                && listed.is_some_and(|it| it.posted.is_some() && it.key == (ctx, tag % slots))
        };
        for index in self.programs.indices() {
            if self.programs.get(index).is_some_and(|run| waits(run)) {
                self.fail(index, down_kind(rank, Down::Finished));
            }
        }
    }

    /// A rank has finished: programs that need it still never end.
    pub(super) fn lose_listed(&mut self, rank: u32) {
        for index in self.programs.indices() {
            if self.needs(index, rank) {
                self.fail(index, down_kind(rank, Down::Finished));
            }
        }
    }

    fn needs(&self, index: u32, rank: u32) -> bool {
        let Some((run, listed, lot, posted)) = self.posted(index) else {
            return false; // it hears of it when it begins
        };
        let Some(local) = run.group.local_of(rank) else {
            return false;
        };
        let gone = |peer| {
            let rank = run.group.world_of(peer);
            rank.is_some_and(|rank| self.peers.down(rank).is_some())
        };
        listed.ending.is_some()
            || posted.uninvited(&lot.slot).any(|peer| peer == local)
            || posted.starves(gone)
    }

    /// Whom a program that goes by lists waits for in vain, as far as it has asked: a rank that has called another collective, or
    /// is through with this one while something of it is lacking.
    pub(super) fn never_comes(&self, index: u32) -> Option<u32> {
        let (run, listed, lot, posted) = self.posted(index)?;
        if listed.stranger.is_some() {
            return listed.stranger;
        }
        let world = |peer| run.group.world_of(peer);
        let is_through = |peer| world(peer).is_some_and(|rank| listed.through.contains(&rank));
        let uninvited = posted.uninvited(&lot.slot).find(|peer| is_through(*peer));
        uninvited.and_then(world).or_else(|| {
            let alone = |rank: &u32| posted.starves(|peer| world(peer) == Some(*rank));
            let found = listed.through.iter().find(|rank| alone(rank));
            // Counters need not tell them apart.
            let any = || {
                listed
                    .through
                    .first()
                    .filter(|_| posted.starves(is_through))
            };
            found.or_else(any).copied()
        })
    }

    /// What ranks have said that are through has had time to overtake what they have put. Whether there are new ones. And those
    /// that have closed their memory have had time to say why.
    pub(super) fn believe_through(&mut self, index: u32) -> bool {
        let Some(listed) = self.programs.listed(index) else {
            return false;
        };
        if listed.homeless {
            self.fail(index, homeless());
            return true;
        }
        let said = std::mem::take(&mut listed.said_through);
        let news = !said.is_subset(&listed.through);
        listed.through.extend(said);
        news
    }

    /// A program that goes by lists, and has begun and is not over.
    fn posted(&self, index: u32) -> Option<(&Run, &Listed, &Lot, &Posted)> {
        let run = self.programs.runs[index as usize].as_deref()?;
        let listed = run.listed.as_deref().filter(|listed| !listed.over)?;
        let lot = self.programs.slots.get(&listed.key)?;
        Some((run, listed, lot, listed.posted.as_ref()?))
    }

    /// Ranks that programs by lists wait for. What they put is counted by the adapter, which says nothing of their death.
    pub(in crate::engine) fn awaited_listed(&self) -> impl Iterator<Item = u32> {
        let runs = self.programs.runs.iter().flatten();
        let runs = runs.filter_map(|run| Some((run, run.listed.as_deref()?)));
        let under_way = runs.filter(|(run, listed)| run.failed.is_none() && !listed.over);
        under_way.flat_map(|(run, listed)| {
            let from = run.sources();
            let lot = self.programs.slots.get(&listed.key);
            let posted = listed.posted.as_ref().zip(lot);
            let to = posted.map(|(posted, lot)| posted.uninvited(&lot.slot));
            let peers = from.chain(to.into_iter().flatten());
            peers.filter_map(|peer| run.group().world_of(peer))
        })
    }

    /// Whom a program that goes by lists may wait for in vain: its neighbours, of whom one shows it if ranks disagree, some that
    /// have not allowed a message, and some from whom none has come. Of those with many sources, neighbours are some.
    pub(super) fn doubted_by(&self, run: &Run) -> Vec<u32> {
        let (group, me) = (run.group(), self.programs.me);
        let size = group.len();
        let rank = group.local_of(me).unwrap_or_default();
        let mut peers = vec![(rank + 1) % size, (rank + size - 1) % size];
        if let Some(listed) = &run.listed
            && let Some(lot) = self.programs.slots.get(&listed.key)
            && let Some(posted) = &listed.posted
        {
            peers.extend(posted.uninvited(&lot.slot).take(ASKED_MAX));
            let lacking = |peer: &usize| posted.starves(|from| from == *peer);
            peers.extend(run.sources().take(LOOKED_MAX).filter(lacking));
        }
        let stranger = run.listed.as_ref().and_then(|listed| listed.stranger);
        let peers = peers.into_iter().filter_map(|peer| group.world_of(peer));
        peers.chain(stranger).filter(|peer| *peer != me).collect()
    }
}

/// What a collective ends in whose counters cannot be believed any more.
fn overcounted() -> ErrorKind {
    ErrorKind::Transport(io::Error::other(
        "more was counted in a collective than its ranks have to count: a peer or an adapter has counted what was not its own; \
         RIPSTOP_COLLECTIVES=messages for all ranks does without counters",
    ))
}

/// What a collective ends in whose peers say nothing of why they have no place for what it puts.
fn homeless() -> ErrorKind {
    ErrorKind::Transport(io::Error::other(
        "a peer has no place for what a collective puts there, and does not say why: its memory is closed, or the adapter finds \
         no name of it; RIPSTOP_COLLECTIVES=messages for all ranks does without names",
    ))
}

/// Of those that have not allowed a message.
const ASKED_MAX: usize = 8;

/// Sources that are looked at, each in a pass over all steps: more than a tree of 2³² ranks has.
const LOOKED_MAX: usize = 32;
