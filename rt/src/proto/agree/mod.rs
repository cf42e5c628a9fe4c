//! How ranks agree although some of them die: all who return have the same value, whoever dies when.
//!
//! The lowest rank that lives leads. Each rank *reports* what it brings in; when all who live have, the leader *proposes* the
//! combination; when all who live have *promised* to keep to it, it *decides*, and tells them. So nobody returns before all who
//! live know the value, and what a dead leader may have decided, each survivor has promised.
//!
//! When a leader dies, everybody reports to the next one, with the decision or the promise that it has. The next leader proposes
//! what anybody has promised; only if nobody has did nobody return, and then it combines what it hears. There is never more than
//! one promise to choose from: a leader hears all who live before it proposes, and who has spoken to it hears no earlier one any
//! more. Without deaths that is 4 (size − 1) messages, four of them in a row.
//!
//! Rounds are numbered. Who is in one round has decided the one before, and so has everybody as soon as anybody decides this one:
//! two rounds are kept.
//!
//! It relies on two things: messages from one rank to another arrive in order, until one of the two dies; and who counts as down
//! is down, for good. Nothing that a rank says is heard once it counts as down.
//!
//! After the paradigm of the rotating coordinator (Chandra, Toueg 1996), with a detector that makes no mistakes.

mod ranks;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, mem};

pub(crate) use self::ranks::Ranks;

/// What ranks bring in, and what they agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// All who were heard say yes.
    pub(crate) flag: bool,
    /// The greatest of all.
    pub(crate) number: u32,
    /// Who is down.
    pub(crate) down: Ranks,
}

/// What ranks say to each other in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Say {
    /// To the leader: what this rank brings in, or if it has promised, the proposal that it keeps to.
    Report { value: Value, promised: bool },
    /// The leader's proposal.
    Propose(Value),
    /// To the leader: this rank keeps to its proposal.
    Promise,
    /// It is decided.
    Decide(Value),
}

/// Something to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) to: usize,
    pub(crate) round: u32,
    pub(crate) say: Say,
}

/// One rank's part in the agreements of one communicator.
///
/// The application [begins](Self::begin), the world calls the two `handle_*`, and both `poll_*` give what came of it.
#[derive(Debug)]
pub(crate) struct Agree {
    me: usize,
    size: usize,
    down: Ranks,
    /// The number of the round under way.
    number: u32,
    round: Round,
    /// What was decided in the round before.
    last: Option<Value>,
    /// What this rank brings into later rounds.
    calls: VecDeque<Value>,
    letters: VecDeque<Letter>,
    decided: VecDeque<(u32, Value)>,
}

#[derive(Debug, Default)]
struct Round {
    /// What this rank brings in; `None` before it calls.
    mine: Option<Value>,
    /// The proposal that this rank keeps to.
    promised: Option<Value>,
    /// Who has reported here. Of use as soon as this rank leads.
    heard: Ranks,
    /// What they bring in.
    joined: Option<Value>,
    /// The proposal that some of them keep to.
    kept: Option<Value>,
    /// Who keeps to this rank's own proposal; `None` before there is one.
    keeping: Option<Ranks>,
}

impl Agree {
    /// `down` are those of the ranks `0..size` that are down already, without `me`.
    pub(crate) fn new(me: usize, size: usize, down: Ranks) -> Self {
        debug_assert!(me < size && !down.contains(me), "a rank that lives");
        Self {
            me,
            size,
            down,
            number: 0,
            round: Round::default(),
            last: None,
            calls: VecDeque::new(),
            letters: VecDeque::new(),
            decided: VecDeque::new(),
        }
    }

    /// This rank calls, and brings this in. Returns the number of the round, which begins after those called before.
    pub(crate) fn begin(&mut self, value: Value) -> u32 {
        let ahead = usize::from(self.is_under_way()) + self.calls.len();
        let ahead = u32::try_from(ahead).expect("fewer than 2^32 calls under way");
        let number = self.number.wrapping_add(ahead);
        self.calls.push_back(value);
        self.go_on();
        number
    }

    /// A member says something. `false`: that makes no sense.
    pub(crate) fn handle(&mut self, from: usize, round: u32, say: Say) -> bool {
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
        if let Say::Report { .. } = say {
            self.remind(from, round);
        }
        // Nobody is ahead of a rank that it speaks to; a decision may come twice, and late.
        round.wrapping_sub(self.number) > u32::MAX / 2
    }

    /// A member is down.
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

    /// A member that waits in a round asks for this rank's word. `true`: that round is over, and it is told what was decided. It
    /// may have missed that, and this rank may take another one for the leader.
    pub(crate) fn remind(&mut self, rank: usize, round: u32) -> bool {
        let last = self.last.clone().filter(|_| round == self.before());
        let over = last.is_some();
        if let Some(last) = last {
            self.tell(rank, round, Say::Decide(last));
        }
        over
    }

    /// What is to be sent next.
    pub(crate) fn poll_letter(&mut self) -> Option<Letter> {
        self.letters.pop_front()
    }

    /// A round that was decided, in order.
    pub(crate) fn poll_decided(&mut self) -> Option<(u32, Value)> {
        self.decided.pop_front()
    }

    /// The number of the round that is under way, or comes next.
    pub(crate) fn round(&self) -> u32 {
        self.number
    }

    /// Whether this rank has called and not returned.
    pub(crate) fn is_under_way(&self) -> bool {
        self.round.mine.is_some()
    }

    /// Whose word this rank waits for.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = usize> {
        let leader = self.leader();
        let under_way = self.is_under_way();
        let waits = move |rank: &usize| {
            let said = if leader == self.me {
                let said = self.round.keeping.as_ref().unwrap_or(&self.round.heard);
                said.contains(*rank)
            } else {
                *rank != leader
            };
            under_way && !said && *rank != self.me && !self.down.contains(*rank)
        };
        (0..self.size).filter(waits)
    }
}

impl Agree {
    fn leader(&self) -> usize {
        self.down.first_missing() // this rank, if no other
    }

    const fn before(&self) -> u32 {
        self.number.wrapping_sub(1)
    }

    /// Enters the next round, if this rank has called for it.
    fn go_on(&mut self) {
        while !self.is_under_way()
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

    /// Tells a new leader all that it may need.
    fn report(&mut self) {
        if let Some(last) = self.last.clone() {
            self.tell(self.leader(), self.before(), Say::Decide(last));
        }
        self.report_round();
    }

    fn report_round(&mut self) {
        let Some(mine) = &self.round.mine else { return };
        let (value, promised) = match &self.round.promised {
            Some(value) => (value.clone(), true),
            None => (mine.clone(), false),
        };
        self.tell(self.leader(), self.number, Say::Report { value, promised });
    }

    fn handle_now(&mut self, from: usize, say: Say) -> bool {
        match say {
            Say::Report { value, promised } => {
                self.hear(from, value, promised);
                self.lead();
            }
            Say::Propose(value) => {
                if from != self.leader() || self.round.mine.is_none() {
                    return false;
                }
                self.round.promised = Some(value);
                self.tell(from, self.number, Say::Promise);
            }
            Say::Promise => match &mut self.round.keeping {
                Some(keeping) => {
                    keeping.insert(from);
                    self.lead();
                }
                None => return false,
            },
            Say::Decide(value) => {
                if self.round.mine.is_none() {
                    return false;
                }
                self.decide(value);
            }
        }
        true
    }

    /// A report comes here; its sender takes this rank for the leader, and may know more than this rank.
    fn hear(&mut self, from: usize, value: Value, promised: bool) {
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

    /// Goes on as far as what has come allows, if this rank leads.
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
        let Round { mine, promised, .. } = &self.round;
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
        self.tell_all(self.number, &Say::Propose(value.clone()));
        self.round.promised = Some(value);
        let mut keeping = Ranks::default();
        keeping.insert(self.me);
        self.round.keeping = Some(keeping);
    }

    /// The round is over.
    fn decide(&mut self, value: Value) {
        let number = self.number;
        if self.leader() == self.me {
            self.tell_all(number, &Say::Decide(value.clone()));
        } else {
            // They take this rank for the leader: they know of a death that it will hear of.
            let heard = mem::take(&mut self.round.heard);
            for rank in (0..self.size).filter(|rank| heard.contains(*rank)) {
                self.tell(rank, number, Say::Decide(value.clone()));
            }
        }
        self.decided.push_back((number, value.clone()));
        self.last = Some(value);
        self.number = number.wrapping_add(1);
        self.round = Round::default();
    }

    fn tell_all(&mut self, round: u32, say: &Say) {
        for rank in 0..self.size {
            self.tell(rank, round, say.clone());
        }
    }

    fn tell(&mut self, to: usize, round: u32, say: Say) {
        if to != self.me && !self.down.contains(to) {
            self.letters.push_back(Letter { to, round, say });
        }
    }
}

impl Value {
    fn join(&mut self, other: &Self) {
        self.flag &= other.flag;
        self.number = self.number.max(other.number);
        self.down.join(&other.down);
    }
}
