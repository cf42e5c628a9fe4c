//! The way to one peer, from this side.

use std::{collections::VecDeque, io};

use super::{
    forgetting::Forgetting,
    inbox::WINDOW,
    objects::Qp,
    parked::{Parked, Want},
    regions::Imports,
    trail::Trail,
    waits::Waits,
    way::{FIRST, Far, Way, psn_after, psns},
    wire::{Name, Word},
};
use crate::{
    connect::{Connection, Lane, Lanes, Parcels, State},
    driver::Down,
    lanes::{Fences, LaneSet},
};

/// The way to one peer, from this side.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) dial: Connection,
    /// Its lanes; none before there are queue pairs.
    pub(super) ways: Vec<Way>,
    /// The peer's ports behind them.
    pub(super) far: Vec<Far>,
    pub(super) fences: Fences,
    /// The lane of messages and words, and the one before it until that is fenced: until then nothing more goes.
    pub(super) home: usize,
    pub(super) left: LaneSet,
    /// Lanes by which the peer is to hear of those that do not work.
    pub(super) untold: LaneSet,
    /// Where the peer's last message came by.
    pub(super) heard_by: usize,
    pub(super) trail: Trail,
    /// Words about the connection go by other lanes, too, because by the first there is no answer; the next by this one.
    pub(super) goes_around: bool,
    pub(super) detour: usize,
    /// The number that the last lane's own first packet has.
    psn: u32,
    /// Messages may be posted.
    pub(super) open: bool,
    /// The connection is being taken down in good order, and nothing of ours is under way any more.
    pub(super) draining: bool,
    pub(super) drained: bool,
    /// Why it broke, or there was none.
    pub(super) broken: Option<io::Error>,
    pub(super) gone: Option<Down>,
    /// Messages that the peer has buffers for.
    pub(super) credits: u32,
    /// Its messages whose buffers are free again, and that it was not told of.
    pub(super) owed: u32,
    /// Requests that the peer's adapter has acknowledged.
    pub(super) answers: u64,
    /// What goes without a connection.
    pub(super) parcels: Parcels,
    /// Messages that came before the connection.
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) words: VecDeque<Word>,
    /// Regions that may still be in use by lanes that keep no order with what is said.
    pub(super) forgetting: Forgetting,
    /// One-sided commands that wait for the connection or for room, and those that wait for a slot of the peer's table.
    pub(super) parked: Parked,
    pub(super) asking: Waits<u32>,
    /// Counts that are not posted yet, and do not wait for a name. Messages wait for them: one may say that nothing more will be
    /// counted.
    pub(super) counts: u32,
    /// Those that wait for a name.
    pub(super) naming: Waits<u64>,
    pub(super) imports: Imports,
    /// The peer has said by another lane than messages that it ends, how, and after how many of them.
    pub(super) ends: Option<(Down, u64)>,
    /// The end was said.
    pub(super) said_bye: bool,
    /// It was connected once.
    pub(super) met: bool,
    /// When it was used last, where connections are scarce.
    pub(super) used_at: u64,
    /// When its queue pair was made, and until when it does not give way; by the timer.
    pub(super) made_at: u64,
    pub(super) stays_until: u64,
}

/// A message that waits for its connection.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) header: Box<[u8]>,
    pub(super) body: Box<[u8]>,
}

impl Link {
    pub(super) fn new(peer: u32, psn: u32) -> Self {
        Self {
            dial: Connection::new(peer),
            ways: Vec::new(),
            far: Vec::new(),
            fences: Fences::new(LaneSet::first(1)),
            home: FIRST,
            left: LaneSet::EMPTY,
            untold: LaneSet::EMPTY,
            heard_by: FIRST,
            trail: Trail::default(),
            goes_around: false,
            detour: FIRST + 1,
            psn,
            open: false,
            draining: false,
            drained: false,
            broken: None,
            gone: None,
            credits: WINDOW,
            owed: 0,
            answers: 0,
            parcels: Parcels::default(),
            waiting: VecDeque::new(),
            words: VecDeque::new(),
            forgetting: Forgetting::default(),
            parked: Parked::default(),
            asking: Waits::default(),
            counts: 0,
            naming: Waits::default(),
            imports: Imports::default(),
            ends: None,
            said_bye: false,
            met: false,
            used_at: 0,
            made_at: 0,
            stays_until: 0,
        }
    }

    /// With these queue pairs, of which the first begins with this number. A lane may lack its own.
    pub(super) fn set_ways(&mut self, qps: Vec<Option<Qp>>, first: u32) {
        let way = |(qp, psn): (Option<Qp>, u32)| {
            qp.map_or_else(|| Way::absent(psn), |qp| Way::new(qp, psn))
        };
        self.ways = qps.into_iter().zip(psns(first)).map(way).collect();
        self.psn = self.ways.last().map_or(first, |way| way.psn);
    }

    /// The number that the next lane begins with.
    pub(super) const fn next_psn(&self) -> u32 {
        psn_after(self.psn)
    }

    /// The own ends, as the peer is told of them: 0 is no queue pair.
    pub(super) fn lanes(&self) -> Lanes {
        let lane = |way: &Way| Lane {
            qpn: way.qp.as_ref().map_or(0, Qp::number),
            psn: way.psn,
        };
        let all: Vec<_> = self.ways.iter().map(lane).collect();
        Lanes::new(&all).unwrap_or_default()
    }

    /// Whether there are queue pairs.
    pub(super) fn is_made(&self) -> bool {
        self.ways.iter().any(|way| way.qp.is_some())
    }

    /// Whether a device may go on with a queue pair that it did not take down.
    pub(super) fn is_stuck(&self) -> bool {
        self.ways.iter().any(|way| way.stuck)
    }

    /// Whether there are several lanes, or have been.
    pub(super) const fn is_wide(&self) -> bool {
        self.ways.len() > 1
    }

    /// Whether there is a connection: it is open, or being taken down, when lanes may still fail.
    pub(super) const fn is_connected(&self) -> bool {
        self.open || self.draining
    }

    /// Whether so many more requests may be posted to a lane.
    pub(super) fn has_room(&self, lane: usize, requests: u32) -> bool {
        self.open && self.has_slots(lane, requests)
    }

    /// Whether so many more requests fit into the queue pair of a lane, for what a connection is not taken down without.
    pub(super) fn has_slots(&self, lane: usize, requests: u32) -> bool {
        let fits = |way: &Way| !way.broken && !way.doomed && way.has_slots(requests);
        self.is_connected() && self.ways.get(lane).is_some_and(fits)
    }

    /// Whether so many more messages and words may be posted. Those that left as parcels come first.
    pub(super) fn has_room_at_home(&self, requests: u32) -> bool {
        self.left.is_empty() && self.parcels.is_answered() && self.has_room(self.home, requests)
    }

    /// Bytes that a message can be posted with.
    pub(super) fn inline_max(&self) -> usize {
        let qp = self.ways.get(self.home).and_then(|way| way.qp.as_ref());
        qp.map_or(0, Qp::inline_max)
    }

    /// Whether all that lanes which failed have left undone goes by others by now, and the peer knows of them.
    pub(super) fn is_settled(&self) -> bool {
        let leaving = self.ways.iter().any(|way| way.broken && way.qp.is_some());
        !leaving && self.left.is_empty() && self.untold.is_empty() && self.fences.are_settled()
    }

    /// Requests under way.
    pub(super) fn used(&self) -> u32 {
        self.ways.iter().map(|way| way.used).sum()
    }

    /// Whether all that is under way asks for no completion.
    pub(super) fn is_quiet(&self) -> bool {
        self.ways.iter().all(|way| way.used == way.quiet)
    }

    /// Whether something is under way on another lane than messages.
    pub(super) fn is_busy_abroad(&self) -> bool {
        let abroad = |(lane, way): (usize, &Way)| lane != self.home && way.used > 0;
        self.ways.iter().enumerate().any(abroad)
    }

    /// Whether there is something to say.
    pub(super) fn has_something(&self) -> bool {
        !self.waiting.is_empty()
            || !self.parked.is_empty()
            || !self.words.is_empty()
            || !self.untold.is_empty()
    }

    /// Whether the peer knows this rank, and may wait for it without end if it hears of none.
    pub(super) fn owes_bye(&self) -> bool {
        let reachable = self.open || self.met && self.dial.state() == State::Idle;
        reachable && self.gone.is_none() && !self.said_bye
    }

    /// As before the first connection, but for what waits.
    pub(super) fn renew(&mut self) {
        (self.credits, self.owed) = (WINDOW, 0);
        self.trail = Trail::default();
        self.ends = None;
        // The owner does not wait for who has no connection.
        self.forgetting.clear();
        self.words.retain(|word| word.outlives());
        for op in self.asking.take() {
            self.parked.push(op, Want::Room);
        }
        self.imports.renew();
    }

    /// Credits to give back with the next message.
    pub(super) fn take_owed(&mut self) -> u16 {
        u16::try_from(std::mem::take(&mut self.owed)).unwrap_or(u16::MAX)
    }

    /// The peer gave credits back. Never more than it has buffers, whatever it says.
    pub(super) fn add_credits(&mut self, credits: u16) {
        self.credits = (self.credits + u32::from(credits)).min(WINDOW);
    }

    /// The owner takes a region back. Whether it may: it gives a slot anew when it was said forgotten, so it never waits for
    /// more of them than it has.
    pub(super) fn handle_forget(&mut self, name: Name, under_way: Vec<u32>) -> bool {
        let unsaid = |word: &Word| matches!(word, Word::Forgot(of) if of.slot == name.slot);
        if self.forgetting.has(name.slot) || self.words.iter().any(unsaid) {
            return false;
        }
        self.imports.forget(name);
        self.forgetting.ask(name, under_way);
        true
    }

    /// Has a command wait for nothing any more.
    pub(super) fn forget_op(&mut self, op: u32) {
        self.parked.forget(op);
        self.asking.forget(op);
        self.naming.forget(op);
    }

    /// Whether a word may take a credit. The last one is for credits, so that both sides can always give them back.
    pub(super) fn may_say(&self, word: Word) -> bool {
        let kept = if matches!(word, Word::Credit | Word::Bye(_)) {
            0
        } else {
            1
        };
        self.credits > kept
    }

    /// Whether a message may take a credit: words come first.
    pub(super) const fn may_send(&self) -> bool {
        self.credits > CREDITS_KEPT
    }

    /// Takes a credit for a count. Whether it has to wake the peer, even if that waits for no count: else it might sleep on its
    /// buffers until nothing can be sent any more.
    pub(super) const fn take_credit_to_tell(&mut self) -> bool {
        self.credits -= 1;
        self.credits <= WINDOW / 2
    }

    /// Whether the peer should hear of its credits even if there is nothing else to tell it.
    pub(super) const fn owes_much(&self) -> bool {
        self.owed >= WINDOW / 2
    }

    /// Whether all that was posted here has left, as far as is known, and nothing waits.
    pub(super) fn is_done(&self) -> bool {
        let left = self.left.is_empty() && self.parcels.is_answered();
        self.is_quiet() && left && !self.has_something()
    }
}

/// Requests of a queue pair that may be under way.
pub(super) const REQUESTS_MAX: u32 = 128;

/// Credits that messages leave to words.
const CREDITS_KEPT: u32 = 3;

/// Messages that wait for a connection before there is no more room.
pub(super) const WAITING_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::{Link, Name, Word};

    /// Else one that gives no credits back has this rank keep an answer to each of its words.
    #[test]
    fn a_slot_is_taken_back_again_only_when_it_was_said_forgotten() {
        let mut link = Link::new(1, 0);
        let name = |slot, generation| Name { slot, generation };
        assert!(link.handle_forget(name(7, 1), vec![4]));
        assert!(!link.handle_forget(name(7, 2), vec![]), "it is in use");
        assert!(link.handle_forget(name(8, 1), vec![4]), "another slot");
        link.forgetting.handle_end(4);
        while let Some(over) = link.forgetting.poll_over() {
            link.words.push_back(Word::Forgot(over));
        }
        assert!(!link.handle_forget(name(7, 2), vec![]), "it was not said");
        assert_eq!(link.words.pop_front(), Some(Word::Forgot(name(7, 1))));
        assert!(link.handle_forget(name(7, 2), vec![]));
        assert!(!link.handle_forget(name(8, 2), vec![]));
    }
}
