//! Two ranks that dial each other, in all orders in which things can happen.
//!
//! Messages of one direction of a connection arrive in order. Everything else may happen in any order, and a few connections
//! may fail before they are confirmed. A connection that fails later is a rank's death, and not the handshake's matter.

use std::collections::{BTreeSet, VecDeque};

use super::{CrossingVerdict, PairStage};

/// Ranks 0 and 1, and the connections between them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PairWorld {
    stages: [PairStage; 2],
    /// Connections that each rank may still open.
    dials_left: [u32; 2],
    faults_left: u32,
    connections: Vec<Connection>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Connection {
    opener: usize,
    opening: OpeningEnd,
    listening: ListeningEnd,
    to_listener: VecDeque<Word>,
    to_opener: VecDeque<Word>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OpeningEnd {
    Connecting,
    Asked,
    Ready,
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ListeningEnd {
    Fresh,
    Answered,
    Ready,
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    Hello,
    Answer,
    Refusal,
    Confirmation,
    End,
}

impl PairWorld {
    fn new(dials: u32, faults: u32) -> Self {
        Self {
            stages: [PairStage::Unconnected; 2],
            dials_left: [dials; 2],
            faults_left: faults,
            connections: Vec::new(),
        }
    }

    /// Returns all worlds that may come next.
    fn next(&self) -> Vec<Self> {
        let mut next = Vec::new();
        for rank in 0..2 {
            let stage = self.stages[rank];
            // A second attempt beside the first is one at another address of the peer.
            let beside = matches!(stage, PairStage::Connecting | PairStage::Asked);
            if self.dials_left[rank] > 0 && (stage.may_dial() || beside) {
                next.push(self.after(|world| world.dial(rank)));
            }
        }
        for (at, connection) in self.connections.iter().enumerate() {
            if connection.opening == OpeningEnd::Connecting {
                next.push(self.after(|world| world.ask(at)));
            }
            if !connection.to_listener.is_empty() {
                next.push(self.after(|world| world.hear_as_listener(at)));
            }
            if !connection.to_opener.is_empty() {
                next.push(self.after(|world| world.hear_as_opener(at)));
            }
            if self.faults_left > 0 && connection.may_fail() {
                next.push(self.after(|world| world.fail(at)));
            }
        }
        next
    }

    fn after(&self, step: impl FnOnce(&mut Self)) -> Self {
        let mut world = self.clone();
        step(&mut world);
        world.forget();
        world
    }

    /// Forgets what makes no difference any more, so that worlds with the same future are one.
    fn forget(&mut self) {
        for connection in &mut self.connections {
            if connection.opening == OpeningEnd::Closed {
                connection.to_opener.clear();
            }
        }
        self.connections.retain(|connection| {
            let closed = connection.opening == OpeningEnd::Closed
                && connection.listening == ListeningEnd::Closed;
            !closed || connection.to_listener.contains(&Word::Confirmation)
        });
        self.connections.sort();
    }

    fn dial(&mut self, rank: usize) {
        self.dials_left[rank] -= 1;
        if self.stages[rank].may_dial() {
            self.stages[rank] = PairStage::Connecting;
        }
        self.connections.push(Connection {
            opener: rank,
            opening: OpeningEnd::Connecting,
            listening: ListeningEnd::Fresh,
            to_listener: VecDeque::new(),
            to_opener: VecDeque::new(),
        });
    }

    fn ask(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        connection.opening = OpeningEnd::Asked;
        connection.to_listener.push_back(Word::Hello);
        self.stages[connection.opener] = PairStage::Asked;
    }

    fn hear_as_listener(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let word = connection.to_listener.pop_front().unwrap();
        let listener = 1 - connection.opener;
        match (word, connection.listening) {
            (Word::Hello, ListeningEnd::Fresh) => self.judge_hello(at, listener),
            (Word::Confirmation, ListeningEnd::Answered) => {
                connection.listening = ListeningEnd::Ready;
                self.stages[listener] = PairStage::Connected;
            }
            (Word::End, ListeningEnd::Ready) => panic!("a ready connection was closed: {self:?}"),
            (Word::End, _) => {
                connection.listening = ListeningEnd::Closed;
                self.settle(listener);
            }
            (Word::Confirmation, _) => panic!("a confirmation was not expected: {self:?}"),
            _ => {}
        }
    }

    fn judge_hello(&mut self, at: usize, listener: usize) {
        let number = |rank: usize| u32::try_from(rank).unwrap();
        let verdict = self.stages[listener].judge(number(listener), number(1 - listener));
        if verdict == CrossingVerdict::AcceptInstead {
            self.close_attempts(listener, None);
        }
        let connection = &mut self.connections[at];
        if verdict == CrossingVerdict::Refuse {
            connection.listening = ListeningEnd::Closed;
            connection.to_opener.extend([Word::Refusal, Word::End]);
        } else {
            connection.listening = ListeningEnd::Answered;
            connection.to_opener.push_back(Word::Answer);
            self.stages[listener] = PairStage::Answered;
        }
    }

    fn hear_as_opener(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let word = connection.to_opener.pop_front().unwrap();
        let opener = connection.opener;
        match (word, connection.opening) {
            (Word::Answer, OpeningEnd::Asked) => {
                connection.opening = OpeningEnd::Ready;
                connection.to_listener.push_back(Word::Confirmation);
                self.close_attempts(opener, Some(at));
                self.stages[opener] = PairStage::Connected;
            }
            (Word::End, OpeningEnd::Ready) => panic!("a ready connection was closed: {self:?}"),
            (Word::Refusal | Word::End, OpeningEnd::Asked) => {
                connection.opening = OpeningEnd::Closed;
                connection.to_listener.push_back(Word::End);
                self.settle(opener);
            }
            _ => {}
        }
    }

    /// Closes what a rank opened, except one connection.
    fn close_attempts(&mut self, rank: usize, kept: Option<usize>) {
        let attempts = self.connections.iter_mut().enumerate();
        for (at, attempt) in attempts.filter(|(_, attempt)| attempt.opener == rank) {
            let open = matches!(attempt.opening, OpeningEnd::Connecting | OpeningEnd::Asked);
            if open && kept != Some(at) {
                attempt.opening = OpeningEnd::Closed;
                attempt.to_listener.push_back(Word::End);
            }
        }
    }

    /// Ends a connection before it is confirmed. Both sides notice later.
    fn fail(&mut self, at: usize) {
        self.faults_left -= 1;
        let connection = &mut self.connections[at];
        connection.to_listener.push_back(Word::End);
        if connection.opening == OpeningEnd::Connecting {
            connection.opening = OpeningEnd::Closed;
            let opener = connection.opener;
            self.settle(opener);
        } else {
            connection.to_opener = [Word::End].into();
        }
    }

    /// Finds out how far a rank is after one of its connections has ended.
    fn settle(&mut self, rank: usize) {
        if self.stages[rank] == PairStage::Connected {
            return;
        }
        let mine = |connection: &&Connection| connection.opener == rank;
        let opened = self.connections.iter().filter(mine);
        let opened = opened.map(|connection| match connection.opening {
            OpeningEnd::Connecting => PairStage::Connecting,
            OpeningEnd::Asked => PairStage::Asked,
            OpeningEnd::Ready | OpeningEnd::Closed => PairStage::Unconnected,
        });
        let theirs = self.connections.iter().filter(|one| !mine(one));
        let answered = theirs.filter(|one| one.listening == ListeningEnd::Answered);
        let stages = opened.chain(answered.map(|_| PairStage::Answered));
        self.stages[rank] = stages.max().unwrap_or_default();
    }

    /// Checks what must hold at any time.
    fn check(&self) {
        let ready = |one: &&Connection| one.opening == OpeningEnd::Ready;
        assert!(
            self.connections.iter().filter(ready).count() <= 1,
            "two connections are ready: {self:?}"
        );
        for connection in &self.connections {
            let kept = matches!(
                connection.listening,
                ListeningEnd::Answered | ListeningEnd::Ready
            );
            assert!(
                kept || connection.opening != OpeningEnd::Ready,
                "a connection was dropped on which the other side counts: {self:?}"
            );
            assert!(
                connection.opening == OpeningEnd::Ready
                    || connection.listening != ListeningEnd::Ready,
                "a connection is ready at the listening side alone: {self:?}"
            );
        }
    }

    fn is_connected(&self) -> bool {
        self.stages == [PairStage::Connected; 2]
    }
}

impl Connection {
    fn may_fail(&self) -> bool {
        matches!(self.opening, OpeningEnd::Connecting | OpeningEnd::Asked)
            && self.to_opener.back() != Some(&Word::End)
    }
}

/// Visits every world that can come about, and returns how many there are, and those in which nothing more happens.
fn explore(start: PairWorld) -> (usize, Vec<PairWorld>) {
    let mut seen = BTreeSet::from([start.clone()]);
    let (mut open, mut ends) = (vec![start], Vec::new());
    while let Some(world) = open.pop() {
        world.check();
        let next = world.next();
        let fails = |next: &PairWorld| next.faults_left < world.faults_left;
        if next.iter().all(fails) {
            ends.push(world.clone());
        }
        open.extend(next.into_iter().filter(|next| seen.insert(next.clone())));
    }
    (seen.len(), ends)
}

#[test]
fn two_ranks_that_dial_at_once_end_with_one_connection() {
    for (dials, worlds_min) in [(1, 20), (2, 200), (3, 1000)] {
        let (worlds, ends) = explore(PairWorld::new(dials, 0));
        assert!(worlds > worlds_min, "{worlds} worlds");
        for end in ends {
            assert!(end.is_connected(), "{end:?}");
        }
    }
}

#[test]
fn failed_connections_leave_no_rank_alone_with_one() {
    let (worlds, ends) = explore(PairWorld::new(3, 1));
    assert!(worlds > 5000, "{worlds} worlds");
    for end in ends {
        let connected = end.stages.map(|stage| stage == PairStage::Connected);
        assert_eq!(connected[0], connected[1], "{end:?}");
    }
}

#[test]
fn the_connection_of_the_lower_rank_is_kept() {
    let [mut lower, mut higher] = [PairStage::Asked; 2];
    assert_eq!(lower.judge(0, 1), CrossingVerdict::Refuse);
    assert_eq!(higher.judge(1, 0), CrossingVerdict::AcceptInstead);
    // An attempt that has said nothing gives way to either.
    [lower, higher] = [PairStage::Connecting; 2];
    assert_eq!(lower.judge(0, 1), CrossingVerdict::AcceptInstead);
    assert_eq!(higher.judge(1, 0), CrossingVerdict::AcceptInstead);
    // A rank never drops what it has.
    for (own, peer) in [(0, 1), (1, 0)] {
        assert_eq!(
            PairStage::Connected.judge(own, peer),
            CrossingVerdict::Refuse
        );
        assert_eq!(
            PairStage::Answered.judge(own, peer),
            CrossingVerdict::Accept
        );
    }
}
