//! Programs and cells: what lies in one may be for a program under way, or show that a peer called another collective.
//!
//! A program that is not [quick](super::quick) any more, or never was, looks for its messages in cells too, in every turn.

use std::mem;

use ripstop_fabric::driver::{CellName, Down, Payload, Peer, Taken};

use super::{News, RunCall, calls::Why, run::By, run::Run};
use crate::{
    engine::{Core, Engine},
    error::ErrorKind,
    group::Group,
    ops::Life,
};

/// Ranks of a communicator whose programs look into cells: in every turn they look at one line for each.
const RANKS_MAX: usize = 16;

/// Turns of which one looks into all cells of a program's ranks. The others look into those that it waits for.
const ALL_EVERY: u32 = 16;

impl Engine {
    /// What programs under way wait for may lie in cells. Then what peers said last is heard.
    #[inline(never)]
    pub(in crate::engine) fn look_in_cells(&mut self) -> u32 {
        let turns = &mut self.core.programs.looked;
        *turns = turns.wrapping_add(1);
        let all = turns.is_multiple_of(ALL_EVERY) || !self.core.programs.news.is_empty();
        let runs = self.core.programs.runs.len();
        let events = (0..runs).map(|index| self.look_for_run(index, all)).sum();
        for news in mem::take(&mut self.core.programs.news) {
            match news {
                News::Down(rank, why) => self.core.lose(rank, why),
                News::Over(rank, header) => self.core.is_through(rank, &header),
            }
        }
        events
    }

    fn look_for_run(&mut self, index: usize, all: bool) -> u32 {
        let Ok(index) = u32::try_from(index) else {
            return 0;
        };
        let (mut events, mut rank) = (0, 0);
        while let Some(run) = self.core.programs.get(index)
            && run.looks
            && run.failed.is_none()
            && let Some(peer) = run.group().world_of(rank)
        {
            rank += 1;
            if !all && run.awaits(peer).is_none() {
                continue; // a message from there would show that the peer calls another collective
            }
            let (name, sig) = (run.cell(), run.sig());
            if let Some(its) = self.driver.peek_cell(Peer(peer), name) {
                events += u32::from(self.find_in_cell(index, peer, its == sig));
            }
        }
        events
    }

    /// Whether a message that lies in a cell is for the program now.
    fn find_in_cell(&mut self, index: u32, peer: u32, same_type: bool) -> bool {
        let Some(run) = self.core.programs.get(index) else {
            return false;
        };
        let name = run.cell();
        let Some((at, by)) = run.awaits(peer).filter(|_| same_type) else {
            if !same_type {
                self.driver.take_cell(Peer(peer), name, &mut |_| true);
                self.core.fail_mismatched(index, peer);
            }
            return !same_type; // or it comes before its time
        };
        let posted = match by {
            By::Op(op) => match self.core.ops.live(op).life {
                Life::Posted(posted) => Some((op, posted)),
                _ => return false,
            },
            By::Wait(_) | By::Job => None,
        };
        let programs = &mut self.core.programs;
        let mut fill = |pieces: &[Payload<'_>]| {
            let run = programs.get(index);
            run.is_some_and(|run| run.fill(at, pieces))
        };
        let taken = self.driver.take_cell(Peer(peer), name, &mut fill);
        let calm = taken.is_none_or(|taken| self.is_calm_behind(&taken, peer, name));
        if !calm {
            return true; // it has failed
        }
        if let Some((op, posted)) = posted {
            self.core.matching.unpost(posted);
            self.core.release(op);
        }
        let filled = taken.is_some_and(|taken| taken.filled);
        self.core.bring(index, peer, at, filled);
        true
    }

    /// A receive of a program begins: what lies in its cell is taken. Whether there was anything.
    pub(super) fn take_from_cell(
        &mut self,
        run: &mut Run,
        at: usize,
        from: usize,
    ) -> Result<bool, ErrorKind> {
        let peer = run.world_of(from);
        let is_there = |engine: &Self, run: &Run| {
            engine.driver.peek_cell(Peer(peer), run.cell()) == Some(run.sig())
        };
        if !run.looks || !is_there(self, run) {
            return Ok(false);
        }
        let name = run.cell();
        let mut fill = |pieces: &[Payload<'_>]| run.fill(at, pieces);
        let taken = self.driver.take_cell(Peer(peer), name, &mut fill);
        let filled =
            taken.is_some_and(|taken| taken.filled && self.is_calm_behind(&taken, peer, name));
        if !filled {
            let revoked = self.core.programs.revoked_kind(name.ctx, Some(name.tag));
            return Err(revoked.unwrap_or_else(|| self.core.mismatch_with(peer)));
        }
        run.over(at);
        Ok(true)
    }

    /// Whether a message for a program lies in a cell: nobody may sleep over it.
    pub(in crate::engine) fn has_cells_to_take(&mut self) -> bool {
        if !self.core.programs.are_looking() {
            return false;
        }
        let Self { driver, core, .. } = self;
        let runs = core.programs.runs.iter().flatten();
        runs.filter(|run| run.looks && run.failed.is_none())
            .any(|run| {
                let mut peers = run.group().members();
                peers.any(|peer| match driver.peek_cell(Peer(peer), run.cell()) {
                    Some(sig) => sig != run.sig() || run.awaits(peer).is_some(),
                    None => false,
                })
            })
    }

    /// Whether a collective may go on with a message of a peer's. One that has overtaken others may show that the peer called
    /// another collective before.
    #[inline]
    pub(super) fn is_calm_behind(&mut self, taken: &Taken, from: u32, name: CellName) -> bool {
        !taken.overtook || self.find_no_strays(from, name)
    }

    /// Takes the messages of a peer's that are for collectives which are over here: they show that it called others, unless those
    /// had failed. Whether `name` was not one of those that follow.
    #[cold]
    fn find_no_strays(&mut self, from: u32, name: CellName) -> bool {
        let names = self.driver.cells_from(Peer(from));
        let over = |name: &&CellName| self.core.programs.calls.is_over((name.ctx, name.tag));
        let strays: Vec<CellName> = names.iter().filter(over).copied().collect();
        for stray in strays {
            self.driver.take_cell(Peer(from), stray, &mut |_| true);
            if !self.core.has_failed(stray) {
                let me = self.core.programs.me;
                let why = Why::Mismatch(from.min(me), from.max(me));
                self.core.revoke((stray.ctx, stray.tag), why);
            }
        }
        let revoked = self.core.programs.revoked_kind(name.ctx, Some(name.tag));
        revoked.is_none()
    }

    /// Before a collective is over: a message of it may have come another way and have passed one in a cell, which shows that its
    /// sender called another collective before. Why it does not go well then.
    pub(in crate::engine) fn look_behind(
        &mut self,
        (ctx, tag): (u32, u32),
        group: &Group,
    ) -> Option<ErrorKind> {
        if !self.core.cells || group.len() > RANKS_MAX {
            return None;
        }
        let name = CellName { ctx, tag };
        let stray = |engine: &mut Self, peer: &u32| {
            engine.driver.are_cells_behind(Peer(*peer)) && !engine.find_no_strays(*peer, name)
        };
        let peer = group.members().find(|peer| stray(self, peer))?;
        let revoked = self.core.programs.revoked_kind(ctx, Some(tag));
        Some(revoked.unwrap_or_else(|| self.core.mismatch_with(peer)))
    }
}

impl Core {
    /// Whether messages of a program may lie in cells.
    pub(super) fn may_look(&self, call: &RunCall) -> bool {
        let by_lists = call.offload && self.programs.lists;
        self.cells && !by_lists && call.group.len() <= RANKS_MAX
    }

    /// Whether a collective that is over went wrong: as is known, or as it must have, on a communicator that this rank has left.
    fn has_failed(&self, name: CellName) -> bool {
        let revoked = self.programs.revoked_kind(name.ctx, Some(name.tag));
        revoked.is_some() || self.members(name.ctx).is_none()
    }

    /// A receive has its message from a cell, if that was as it should be.
    fn bring(&mut self, index: u32, peer: u32, at: usize, filled: bool) {
        let Some(run) = self.programs.get(index) else {
            return;
        };
        run.landed(at);
        if !filled {
            return self.fail_mismatched(index, peer);
        }
        run.over(at);
        if run.is_watched() {
            self.show_landed(index, at);
        }
        self.programs.stir(index);
    }

    /// A peer is gone. What it left in cells is looked for first.
    pub(in crate::engine) fn hear_of_end(&mut self, rank: u32, why: Down) {
        if self.programs.are_looking() {
            self.programs.news.push(News::Down(rank, why));
        } else {
            self.lose(rank, why);
        }
    }
}

impl Run {
    fn cell(&self) -> CellName {
        let (ctx, tag) = self.key();
        CellName { ctx, tag }
    }
}
