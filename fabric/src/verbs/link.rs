//! The way to one peer, from this side.

use std::{collections::VecDeque, io};

use super::{chain::Chain, inbox::WINDOW, objects::Qp, regions::Imports, wire::Word};
use crate::{
    connect::{Connection, Lane, State},
    driver::Down,
};

/// The way to one peer, from this side.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) dial: Connection,
    pub(super) qp: Option<Qp>,
    /// The number of the own first packet.
    pub(super) psn: u32,
    /// Messages may be posted.
    pub(super) open: bool,
    /// The connection is being taken down in good order.
    pub(super) draining: bool,
    /// The queue pair is of no use any more, and goes when nothing of it is under way.
    pub(super) doomed: bool,
    /// Why it broke, or there was none.
    pub(super) broken: Option<io::Error>,
    pub(super) gone: Option<Down>,
    /// Messages that the peer has buffers for.
    pub(super) credits: u32,
    /// Its messages whose buffers are free again, and that it was not told of.
    pub(super) owed: u32,
    /// Requests that the peer's adapter has acknowledged.
    pub(super) answers: u64,
    /// Requests in the queue pair, and those of them that no flight stands for.
    pub(super) used: u32,
    pub(super) quiet: u32,
    pub(super) chain: Chain,
    /// Flights that could not be posted. They end with the queue pair.
    pub(super) stranded: Vec<u64>,
    /// Messages that came before the connection.
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) words: VecDeque<Word>,
    /// One-sided commands that wait for the connection or for room, and those that wait for a slot of the peer's table.
    pub(super) parked: VecDeque<u32>,
    pub(super) asking: Vec<(u32, u32)>,
    /// Counts that are not posted yet. Messages wait for them: one may say that nothing more will be counted.
    pub(super) counts: u32,
    /// Those that wait for a name.
    pub(super) naming: Vec<(u64, u32)>,
    pub(super) imports: Imports,
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
            qp: None,
            psn,
            open: false,
            draining: false,
            doomed: false,
            broken: None,
            gone: None,
            credits: WINDOW,
            owed: 0,
            answers: 0,
            used: 0,
            quiet: 0,
            chain: Chain::default(),
            stranded: Vec::new(),
            waiting: VecDeque::new(),
            words: VecDeque::new(),
            parked: VecDeque::new(),
            asking: Vec::new(),
            counts: 0,
            naming: Vec::new(),
            imports: Imports::default(),
            said_bye: false,
            met: false,
            used_at: 0,
            made_at: 0,
            stays_until: 0,
        }
    }

    /// The own end, as the peer is told of it.
    pub(super) fn lane(&self) -> Lane {
        let qpn = self.qp.as_ref().map_or(0, Qp::number);
        Lane { qpn, psn: self.psn }
    }

    /// Whether so many more requests fit into the queue pair.
    pub(super) const fn has_room(&self, requests: u32) -> bool {
        self.open && self.broken.is_none() && self.has_slots(requests)
    }

    pub(super) const fn has_slots(&self, requests: u32) -> bool {
        self.used + requests <= REQUESTS_MAX
    }

    /// Whether there is something to say.
    pub(super) fn has_something(&self) -> bool {
        !self.waiting.is_empty() || !self.parked.is_empty() || !self.words.is_empty()
    }

    /// Whether the peer knows this rank, and may wait for it without end if it hears of none.
    pub(super) fn owes_bye(&self) -> bool {
        let reachable = self.open || self.met && self.dial.state() == State::Idle;
        reachable && self.gone.is_none() && !self.said_bye
    }

    /// As before the first connection, but for what waits.
    pub(super) fn renew(&mut self) {
        self.draining = false;
        (self.credits, self.owed) = (WINDOW, 0);
        self.words.retain(|word| word.outlives());
        self.parked.extend(self.asking.drain(..).map(|(_, op)| op));
        // The owner knows who has asked, and answers on another connection.
        self.imports = Imports::default();
        self.naming
            .iter()
            .for_each(|(name, _)| self.imports.ask_name(*name));
    }

    /// Credits to give back with the next message.
    pub(super) fn take_owed(&mut self) -> u16 {
        u16::try_from(std::mem::take(&mut self.owed)).unwrap_or(u16::MAX)
    }

    /// The peer gave credits back. Never more than it has buffers, whatever it says.
    pub(super) fn add_credits(&mut self, credits: u16) {
        self.credits = (self.credits + u32::from(credits)).min(WINDOW);
    }

    /// Has a command wait for nothing any more.
    pub(super) fn forget_op(&mut self, op: u32) {
        self.parked.retain(|parked| *parked != op);
        self.asking.retain(|(_, asking)| *asking != op);
        self.naming.retain(|(_, naming)| *naming != op);
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

    /// Whether the peer should hear of its credits even if there is nothing else to tell it.
    pub(super) const fn owes_much(&self) -> bool {
        self.owed >= WINDOW / 2
    }

    /// Whether all that was posted here has left, as far as is known, and nothing waits.
    pub(super) fn is_done(&self) -> bool {
        self.used == self.quiet && !self.has_something()
    }
}

/// Requests of a queue pair that may be under way.
pub(super) const REQUESTS_MAX: u32 = 128;

/// Credits that messages leave to words.
const CREDITS_KEPT: u32 = 3;

/// Messages that wait for a connection before there is no more room.
pub(super) const WAITING_MAX: usize = 64;
