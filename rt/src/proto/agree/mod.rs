//! Fault-tolerant agreement: all ranks that return have the same value, whichever ranks fail and when.
//!
//! The engine drives one [`AgreeProtocol`] for each communicator. The lowest surviving rank is the leader:
//!
//! 1. Each rank *reports* its value to the leader.
//! 2. When all survivors have reported, the leader *proposes* the combination of their values.
//! 3. When all survivors have *promised* to keep to the proposal, the leader *decides*, and sends the decision to them.
//!
//! So no rank returns before all survivors know the value, and every survivor has promised the value that a failed
//! leader may have decided.
//!
//! When a leader fails, every rank reports to the next one, with its decision or its promise if it has one. The next
//! leader proposes a value that some rank has promised. If there is none, then no rank has returned, and the leader
//! combines the reported values. There is never more than one promise to choose from: a leader gets a report from all
//! survivors before it proposes, and a rank that has reported to it ignores earlier leaders. Without failures this
//! takes 4 (size − 1) messages, four of them in sequence.
//!
//! Rounds are numbered. A rank in one round has decided the round before, and so has every rank once any rank decides
//! this round. So two rounds are kept.
//!
//! The protocol relies on two properties: messages from one rank to another arrive in order until one of the two fails,
//! and a rank that counts as down stays down forever. Messages of a rank that counts as down are ignored.
//!
//! Based on the rotating coordinator (Chandra, Toueg 1996), with a failure detector that makes no mistakes.

mod ranks;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, mem};

pub(crate) use self::ranks::RankSet;

/// The value that a rank contributes, and also the value that the ranks agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgreeValue {
    /// True if all ranks that reported pass `true`.
    pub(crate) flag: bool,
    /// Maximum of the numbers of all ranks.
    pub(crate) number: u32,
    /// Ranks that are down.
    pub(crate) down: RankSet,
}

/// A message of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgreeMessage {
    /// To the leader: the value of this rank, or, if the rank has promised, the proposal that it keeps to.
    Report { value: AgreeValue, promised: bool },
    /// The leader's proposal.
    Propose(AgreeValue),
    /// To the leader: this rank keeps to its proposal.
    Promise,
    /// To all survivors: the decided value.
    Decide(AgreeValue),
}

/// A message that must be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgreeOutMessage {
    pub(crate) to: usize,
    pub(crate) round: u32,
    pub(crate) message: AgreeMessage,
}

/// One rank's state in the agreements of one communicator.
///
/// The application calls [`begin`](Self::begin) and the network the two `handle_*` methods. Both `poll_*` methods
/// return the results.
#[derive(Debug)]
pub(crate) struct AgreeProtocol {
    me: usize,
    size: usize,
    down: RankSet,
    /// Number of the round in flight.
    number: u32,
    round: AgreeRound,
    /// Value decided in the previous round.
    last: Option<AgreeValue>,
    /// Values that this rank contributes to later rounds.
    calls: VecDeque<AgreeValue>,
    outgoing: VecDeque<AgreeOutMessage>,
    decided: VecDeque<(u32, AgreeValue)>,
}

#[derive(Debug, Default)]
struct AgreeRound {
    /// Value of this rank; `None` before this rank calls.
    mine: Option<AgreeValue>,
    /// Proposal that this rank has promised to keep to.
    promised: Option<AgreeValue>,
    /// Ranks that have reported to this rank. Used once this rank leads.
    heard: RankSet,
    /// Combined values of these ranks.
    joined: Option<AgreeValue>,
    /// Proposal that some of these ranks have promised to keep to.
    kept: Option<AgreeValue>,
    /// Ranks that promised to keep to this rank's own proposal; `None` before there is a proposal.
    keeping: Option<RankSet>,
}

impl AgreeProtocol {
    /// Creates the state of rank `me`. `down` are the ranks in `0..size` that are already down, without `me`.
    pub(crate) fn new(me: usize, size: usize, down: RankSet) -> Self {
        debug_assert!(me < size && !down.contains(me), "a rank that lives");
        Self {
            me,
            size,
            down,
            number: 0,
            round: AgreeRound::default(),
            last: None,
            calls: VecDeque::new(),
            outgoing: VecDeque::new(),
            decided: VecDeque::new(),
        }
    }

    /// Calls for an agreement, to which this rank contributes `value`. Returns the number of the round, which begins
    /// after those called before.
    pub(crate) fn begin(&mut self, value: AgreeValue) -> u32 {
        let ahead = usize::from(self.is_in_flight()) + self.calls.len();
        let ahead = u32::try_from(ahead).expect("fewer than 2^32 calls in progress");
        let number = self.number.wrapping_add(ahead);
        self.calls.push_back(value);
        self.go_on();
        number
    }

    /// Handles a message from a member. Returns false if the message makes no sense.
    pub(crate) fn handle(&mut self, from: usize, round: u32, say: AgreeMessage) -> bool {
        if from >= self.size || from == self.me {
            return false;
        }
        if self.down.contains(from) {
            return true; // too late
        }
        if round == self.number {
            let makes_sense = self.handle_now(from, say);
            self.go_on();
            return makes_sense;
        }
        if let AgreeMessage::Report { .. } = say {
            self.remind(from, round);
        }
        // A peer that this rank sends to is never ahead of it, and a decision may arrive twice, or late.
        round.wrapping_sub(self.number) > u32::MAX / 2
    }

    /// Handles the failure of a member.
    pub(crate) fn handle_down(&mut self, rank: usize) {
        let before = self.leader();
        if rank >= self.size || rank == self.me || !self.down.insert(rank) {
            return;
        }
        if self.leader() != before {
            self.report();
        }
        self.lead();
        self.go_on();
    }

    /// Handles a member that asks again for this rank's message in `round`.
    ///
    /// If the round is decided, sends it the decision and returns true. The member may have missed the decision,
    /// because this rank may take another rank for the leader.
    pub(crate) fn remind(&mut self, rank: usize, round: u32) -> bool {
        let last = self.last.clone().filter(|_| round == self.before());
        let over = last.is_some();
        if let Some(last) = last {
            self.tell(rank, round, AgreeMessage::Decide(last));
        }
        over
    }

    /// Returns the next message to send.
    pub(crate) fn poll_message(&mut self) -> Option<AgreeOutMessage> {
        self.outgoing.pop_front()
    }

    /// Returns the next decided round and its value, in order.
    pub(crate) fn poll_decided(&mut self) -> Option<(u32, AgreeValue)> {
        self.decided.pop_front()
    }

    /// Returns the number of the round in flight, or of the next one.
    pub(crate) fn round(&self) -> u32 {
        self.number
    }

    /// Returns true if this rank has called and not yet returned.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.round.mine.is_some()
    }

    /// Returns the ranks whose message this rank waits for.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = usize> {
        let leader = self.leader();
        let in_flight = self.is_in_flight();
        let waits = move |rank: &usize| {
            let said = if leader == self.me {
                let said = self.round.keeping.as_ref().unwrap_or(&self.round.heard);
                said.contains(*rank)
            } else {
                *rank != leader
            };
            in_flight && !said && *rank != self.me && !self.down.contains(*rank)
        };
        (0..self.size).filter(waits)
    }
}

impl AgreeProtocol {
    fn leader(&self) -> usize {
        self.down.first_missing() // this rank if no other rank survives
    }

    const fn before(&self) -> u32 {
        self.number.wrapping_sub(1)
    }

    /// Enters the next round if this rank has called for it.
    fn go_on(&mut self) {
        while !self.is_in_flight()
            && let Some(mut value) = self.calls.pop_front()
        {
            value.down.join(&self.down);
            self.round.mine = Some(value);
            if self.leader() != self.me {
                self.report_round();
            }
            self.lead();
        }
    }

    /// Reports to a new leader everything that it may need.
    fn report(&mut self) {
        if let Some(last) = self.last.clone() {
            self.tell(self.leader(), self.before(), AgreeMessage::Decide(last));
        }
        self.report_round();
    }

    fn report_round(&mut self) {
        let Some(mine) = &self.round.mine else { return };
        let (value, promised) = match &self.round.promised {
            Some(value) => (value.clone(), true),
            None => (mine.clone(), false),
        };
        self.tell(
            self.leader(),
            self.number,
            AgreeMessage::Report { value, promised },
        );
    }

    fn handle_now(&mut self, from: usize, say: AgreeMessage) -> bool {
        match say {
            AgreeMessage::Report { value, promised } => {
                self.hear(from, value, promised);
                self.lead();
            }
            AgreeMessage::Propose(value) => {
                if from != self.leader() || self.round.mine.is_none() {
                    return false;
                }
                self.round.promised = Some(value);
                self.tell(from, self.number, AgreeMessage::Promise);
            }
            AgreeMessage::Promise => match &mut self.round.keeping {
                Some(keeping) => {
                    keeping.insert(from);
                    self.lead();
                }
                None => return false,
            },
            AgreeMessage::Decide(value) => {
                if self.round.mine.is_none() {
                    return false;
                }
                self.decide(value);
            }
        }
        true
    }

    /// Handles a report. Its sender takes this rank for the leader, and may know of failures that this rank has not
    /// been notified of.
    fn hear(&mut self, from: usize, value: AgreeValue, promised: bool) {
        let round = &mut self.round;
        if !round.heard.insert(from) {
            return;
        }
        if promised {
            round.kept = Some(value);
        } else if let Some(joined) = &mut round.joined {
            joined.join(&value);
        } else {
            round.joined = Some(value);
        }
    }

    /// Proceeds as far as the received messages allow, if this rank leads.
    fn lead(&mut self) {
        if self.leader() != self.me || self.round.mine.is_none() {
            return;
        }
        self.hear_myself();
        let (size, down) = (self.size, &self.down);
        if self.round.keeping.is_none() && self.round.heard.covers_with(down, size) {
            self.propose();
        }
        let keeping = self.round.keeping.as_ref();
        if keeping.is_some_and(|keeping| keeping.covers_with(&self.down, size))
            && let Some(value) = self.round.promised.take()
        {
            self.decide(value);
        }
    }

    fn hear_myself(&mut self) {
        let AgreeRound { mine, promised, .. } = &self.round;
        let (value, promised) = match (promised, mine) {
            (Some(value), _) => (value.clone(), true),
            (None, Some(mine)) => (mine.clone(), false),
            (None, None) => return,
        };
        self.hear(self.me, value, promised);
    }

    fn propose(&mut self) {
        let Some(value) = self.round.kept.take().or_else(|| {
            let mut joined = self.round.joined.take()?;
            joined.down.join(&self.down);
            Some(joined)
        }) else {
            return;
        };
        self.tell_all(self.number, &AgreeMessage::Propose(value.clone()));
        self.round.promised = Some(value);
        let mut keeping = RankSet::default();
        keeping.insert(self.me);
        self.round.keeping = Some(keeping);
    }

    /// Ends the round with this value.
    fn decide(&mut self, value: AgreeValue) {
        let number = self.number;
        if self.leader() == self.me {
            self.tell_all(number, &AgreeMessage::Decide(value.clone()));
        } else {
            // These ranks take this rank for the leader: they know of a failure that this rank has not been notified of
            // yet.
            let heard = mem::take(&mut self.round.heard);
            for rank in (0..self.size).filter(|rank| heard.contains(*rank)) {
                self.tell(rank, number, AgreeMessage::Decide(value.clone()));
            }
        }
        self.decided.push_back((number, value.clone()));
        self.last = Some(value);
        self.number = number.wrapping_add(1);
        self.round = AgreeRound::default();
    }

    fn tell_all(&mut self, round: u32, say: &AgreeMessage) {
        for rank in 0..self.size {
            self.tell(rank, round, say.clone());
        }
    }

    fn tell(&mut self, to: usize, round: u32, say: AgreeMessage) {
        if to != self.me && !self.down.contains(to) {
            self.outgoing.push_back(AgreeOutMessage {
                to,
                round,
                message: say,
            });
        }
    }
}

impl AgreeValue {
    fn join(&mut self, other: &Self) {
        self.flag &= other.flag;
        self.number = self.number.max(other.number);
        self.down.join(&other.down);
    }
}
