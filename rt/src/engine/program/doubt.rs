//! Programs that wait for long ask whether they wait in vain.
//!
//! Ranks that call different collectives may send each other nothing: two that take each other for the root wait for ever. So
//! before a rank goes to sleep on a program, it sets a timer, and when that is due it asks those whom its programs wait for. A
//! rank that runs another collective in this place says so as in any mismatch. One that is through with this one answers that it
//! is: what it sent, and its word for what it has received, have come before the answer, in order, so whoever still waits for
//! something from it, or has something for it, has called another one.
//! So does one that has let go of the communicator, or leaves. What goes by task lists is counted by adapters, in no order with
//! messages: there such an answer only counts if the same is lacking when it is time to ask again.
//!
//! Agreements are asked for in the same way: a rank that has let go of the communicator says so, and they go on without it. So
//! are collectives that make communicators and windows, whose receives end then.
//!
//! Only where drivers keep messages in order. A simulation sees for itself that nothing can happen, and has its ranks ask then.

use std::{collections::BTreeSet, time::Duration};

use super::{News, agree::NO_PROGRAM, calls::Why, run::By};
use crate::{
    clock::Time,
    engine::{Core, message::Body, sleeper},
    ops::Life,
    proto::{
        matching::Want,
        wire::{Ask, Kind},
    },
    reactor::TimerId,
};

/// How long a rank sleeps on its programs before it asks. Long enough to cost nothing, short enough for who looks at a job that
/// hangs.
const PATIENCE: Duration = Duration::from_secs(1);

/// Nothing has been slept on.
const NEVER: Time = Time::from_nanos(u64::MAX);

/// The key of the timer: no operation's, and no sleeper's.
pub(in crate::engine) const KEY: u64 = sleeper::KEYS - (1 << 32);

/// When the programs under way are doubted.
pub(super) struct Doubt {
    timer: TimerId,
    /// Since when those under way are slept on.
    since: Time,
    /// The timer stays when they are over: whoever is asleep need not be told of that of the next ones.
    stays: bool,
}

impl Core {
    /// This rank is about to sleep, or somebody else sleeps and may not know of a program that has begun: then the timer `stays`.
    pub(crate) fn begin_doubt(&mut self, stays: bool, now: impl FnOnce() -> Time) {
        if !self.is_asking() || !self.hears_in_order() {
            return;
        }
        match &mut self.programs.doubt {
            None => self.set_doubt(now(), stays),
            Some(doubt) if doubt.since == NEVER => doubt.since = now(),
            Some(_) => {}
        }
    }

    /// Whether there may be something to ask for.
    #[inline]
    fn is_asking(&self) -> bool {
        self.programs.any() || self.is_agreeing() || self.is_making()
    }

    fn set_doubt(&mut self, since: Time, stays: bool) {
        let timer = self.timers.insert(since + PATIENCE, KEY);
        self.programs.doubt = Some(Doubt {
            timer,
            since,
            stays,
        });
    }

    /// A program is over: there may be nothing left to ask for.
    #[inline]
    pub(super) fn end_doubt(&mut self) {
        if self.programs.doubt.is_some() && !self.is_asking() {
            self.doubt_no_more();
        }
    }

    fn doubt_no_more(&mut self) {
        match &mut self.programs.doubt {
            Some(doubt) if doubt.stays => doubt.since = NEVER,
            doubt => {
                if let Some(Doubt { timer, .. }) = doubt.take() {
                    self.timers.cancel(timer);
                }
            }
        }
    }

    /// It has slept for long, or others have since then.
    #[cold]
    pub(in crate::engine) fn ask_for_programs(&mut self, now: Time) {
        let since = self
            .programs
            .doubt
            .take()
            .map_or(NEVER, |doubt| doubt.since);
        if since == NEVER {
            return;
        }
        if since + PATIENCE > now {
            self.set_doubt(since, true);
        } else {
            self.ask_all(false);
        }
    }

    /// Asks for programs that were not asked for before, or for all of them `again`. Whether there were any: nothing else can
    /// happen in this simulation.
    pub(crate) fn ask_in_vain(&mut self, again: bool) -> bool {
        self.is_asking() && self.ask_all(!again)
    }

    fn ask_all(&mut self, once: bool) -> bool {
        let mut asked = self.ask_agreed(once) | self.ask_makers(once);
        for index in self.programs.indices() {
            let key = self.programs.get(index).map(|run| run.key());
            if key.is_some_and(|key| self.agrees_before(key)) {
                continue;
            }
            let peers = self.awaited_by(index);
            let Some(run) = self.programs.get(index).filter(|run| run.failed.is_none()) else {
                continue;
            };
            let header = Ask::new(Kind::Ask, run.key(), run.sig());
            if std::mem::replace(&mut run.asked, true) {
                if let Some(stranger) = self.never_comes(index) {
                    self.fail_mismatched(index, stranger);
                    asked = true;
                    continue;
                }
                asked |= self.believe_through(index);
                if once {
                    continue;
                }
            }
            asked |= !peers.is_empty();
            for rank in peers {
                if self.peers.down(rank).is_none() {
                    self.peers.control(rank, &header);
                }
            }
        }
        asked
    }

    /// A peer has no place for what this rank puts. Whether it is asked what it does instead: if it has failed, it knows why.
    /// Who hears nothing from it for long takes it for one that has called another collective.
    pub(super) fn doubts(&mut self, peer: u32, (key, sig): ((u32, u32), u64)) -> bool {
        let may_ask = self.hears_in_order() && self.peers.down(peer).is_none();
        if may_ask && !self.agrees_before(key) {
            self.peers.control(peer, &Ask::new(Kind::Ask, key, sig));
        }
        may_ask
    }

    /// From whom nothing has come of what the program waits for, and who has not begun to receive what it sends.
    fn awaited_by(&mut self, index: u32) -> BTreeSet<u32> {
        let run = self.programs.runs[index as usize].as_deref();
        if let Some(run) = run.filter(|run| run.listed.is_some()) {
            return self.doubted_by(run).into_iter().collect();
        }
        let flights = self.programs.get(index).map(|run| run.flights());
        let awaited = |by| match by {
            By::Wait(peer) => Some(peer),
            By::Op(op) => {
                let slot = self.ops.live(op);
                let waits = matches!(slot.life, Life::Posted(_) | Life::Offered);
                slot.about.peer.filter(|_| waits)
            }
            By::Job => None,
        };
        flights.into_iter().flatten().filter_map(awaited).collect()
    }

    /// A peer waits for what this rank does in a collective, or for its word in an agreement.
    pub(in crate::engine) fn handle_ask(&mut self, rank: u32, header: &Ask) {
        let key = (header.ctx, header.tag);
        if key.0.is_multiple_of(2) {
            return self.handle_ask_agreed(rank, header);
        }
        let calls = &self.programs.calls;
        if calls.revoked_kind(key).is_some() {
            return self.tell_revoked(rank, header.ctx);
        }
        if header.sig == NO_PROGRAM && calls.agreeing.contains(&key) {
            return; // so does this rank
        }
        match (calls.running(key), calls.sig_of_over(key)) {
            (Some(running), _) if running.sig == header.sig => {} // so does this rank for somebody else
            (Some(running), _) if self.is_member(running.run, rank) => {
                self.fail_mismatched(running.run, rank);
            }
            (Some(_), _) => {}
            (None, Some(sig)) => {
                self.peers.control(rank, &Ask::new(Kind::Over, key, sig));
            }
            (None, None) => match self.agrees_in_vain(key, rank) {
                Some(first) if header.sig != NO_PROGRAM => {
                    let me = self.programs.me;
                    let why = Why::Mismatch(rank.min(me), rank.max(me));
                    self.revoke((header.ctx, first), why);
                }
                // Whether it was the same one is not known any more, and who waits for a message need not hear it.
                _ if self.never_begins(key, rank) => {
                    self.peers
                        .control(rank, &Ask::new(Kind::Over, key, header.sig));
                }
                _ => self.programs.calls.was_asked(key, rank, header.sig),
            },
        }
    }

    /// Whether this rank is past a collective that is not under way, or begins none of its communicator any more. Who asked
    /// before that asks again in a while: a rank that lets go of a communicator because it fails is to be known as failed. So is
    /// one that has finished, unless it cannot go before its own sends are received.
    fn never_begins(&mut self, key: (u32, u32), rank: u32) -> bool {
        let stays = self.leaving || self.is_kept_by_sends();
        let is_past = stays || self.programs.calls.is_long_over(key) && !self.is_offered(key, rank);
        self.has_left(key.0 & !1) || self.promised == 0 && is_past
    }

    /// Whether this rank has closed and cannot go before others receive what it sends.
    pub(in crate::engine) fn is_kept_by_sends(&self) -> bool {
        self.closing && !self.ops.which(|slot| slot.life.is_sending()).is_empty()
    }

    /// Whether a message of this peer may still be got for a collective that only its future knows of.
    fn is_offered(&mut self, (ctx, tag): (u32, u32), rank: u32) -> bool {
        let want = Want {
            ctx,
            source: Some(rank),
            tag: Some(tag),
        };
        let found = self.matching.peek(want);
        found.is_some_and(|found| matches!(self.messages.get(found.message).body, Body::Offered(_)))
    }

    /// A peer is through with a collective: with another one, or with this one, and so it has sent all that it ever sends. What
    /// it left in cells for it is looked for first.
    pub(in crate::engine) fn handle_over(&mut self, rank: u32, header: &Ask) {
        if header.ctx.is_multiple_of(2) {
            self.handle_over_agreed(rank, header);
        } else if self.programs.are_looking() {
            self.programs.news.push(News::Over(rank, *header));
        } else {
            self.is_through(rank, header);
        }
    }

    pub(super) fn is_through(&mut self, rank: u32, header: &Ask) {
        let Some(running) = self.programs.calls.running((header.ctx, header.tag)) else {
            return self.end_maker(rank, header);
        };
        if running.sig != header.sig {
            if self.is_member(running.run, rank) {
                self.fail_mismatched(running.run, rank);
            }
        } else if let Some(listed) = self.programs.listed(running.run) {
            listed.said_through.insert(rank);
        } else if self.awaited_by(running.run).contains(&rank) {
            self.fail_mismatched(running.run, rank);
        }
    }

    fn is_member(&mut self, run: u32, rank: u32) -> bool {
        let run = self.programs.get(run);
        run.is_some_and(|run| run.group().contains(rank))
    }
}
