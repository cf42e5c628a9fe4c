//! A model check that visits every state that two peers can get into, with up to three datagrams lost or duplicated.
//!
//! Datagrams arrive in any order, and timers fire, users send, and users evict at any moment. A datagram that is sent while an
//! equal one is in flight counts as one, because a second copy costs a fault. Queue pairs and the data by them are modeled as
//! well, so the check sees a connection to a queue pair that does not exist.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::{
    ConnectAction, ConnectConfig, ConnectContext, ConnectEvent, ConnectFailure, ConnectKind,
    ConnectLimits, ConnectMessage, ConnectState, NEVER, PeerConnection, RankIncarnation,
};
use crate::driver::WorldRank;

/// Transition function of a connection: the real one, or a mutant.
pub(super) type Step = fn(&mut PeerConnection, ConnectEvent, &mut ConnectContext<'_>);

/// Behavior of the two peers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scenario {
    /// Messages that each side's user sends, at any time.
    pub(super) sends: [u8; 2],
    /// Times that each side evicts a ready connection.
    pub(super) evicts: [u8; 2],
    /// Times that each side's process ends and is started anew.
    pub(super) restarts: [u8; 2],
    /// Times that each side finds no queue pair.
    pub(super) shortages: [u8; 2],
    /// Datagrams that are lost or duplicated.
    pub(super) faults: u8,
    /// True if both know the other's queue pair from the start, and begin at any time.
    pub(super) bound: bool,
    /// True for sides that cannot bind their own queue pair then, and ask.
    pub(super) unbound: [bool; 2],
    /// True if devices wait forever for an acknowledgment.
    pub(super) patient: bool,
}

/// Numbers of visited states.
#[derive(Debug)]
pub(super) struct Visited {
    pub(super) states: usize,
    pub(super) transitions: usize,
    /// States in which nothing is left to do.
    pub(super) ends: usize,
}

/// Visits all states.
///
/// # Errors
/// A state that can be reached is wrong. The text describes it.
pub(super) fn explore(scenario: Scenario, step: Step) -> Result<Visited, String> {
    let mut graph = Graph::default();
    let start = World::new(scenario);
    graph.index(&start);
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        let (from, _) = graph.index(&world);
        let next = world.successors(step)?;
        if next.is_empty() {
            world.check_end()?;
            graph.ends.push(from);
        }
        for world in next {
            let (to, new) = graph.index(&world);
            graph.edges.push((to, from));
            if new {
                open.push(world);
            }
        }
    }
    graph.check_that_all_can_end()
}

#[derive(Default)]
struct Graph {
    states: BTreeMap<u64, u32>,
    /// Transitions, as target and origin.
    edges: Vec<(u32, u32)>,
    ends: Vec<u32>,
}

impl Graph {
    fn index(&mut self, world: &World) -> (u32, bool) {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        let next = u32::try_from(self.states.len()).expect("not that many states");
        let index = *self.states.entry(hasher.finish()).or_insert(next);
        (index, index == next)
    }

    /// Checks that every state has a way to an end.
    fn check_that_all_can_end(mut self) -> Result<Visited, String> {
        self.edges.sort_unstable();
        let mut good = vec![false; self.states.len()];
        let mut open = self.ends.clone();
        while let Some(state) = open.pop() {
            if std::mem::replace(&mut good[state as usize], true) {
                continue;
            }
            let first = self.edges.partition_point(|(to, _)| *to < state);
            let before = self.edges[first..]
                .iter()
                .take_while(|(to, _)| *to == state);
            open.extend(before.map(|(_, from)| *from));
        }
        match good.iter().filter(|good| !**good).count() {
            0 => Ok(Visited {
                states: good.len(),
                transitions: self.edges.len(),
                ends: self.ends.len(),
            }),
            stuck => Err(format!("{stuck} states have no way to an end")),
        }
    }
}

#[derive(Clone, Debug, Hash)]
struct World {
    sides: [Side; 2],
    /// Datagrams in flight, sorted.
    net: Vec<Datagram>,
    faults: u8,
    patient: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Datagram {
    to: usize,
    message: ConnectMessage,
    /// Queue pair of the sender, as its lane.
    lane: u8,
}

#[derive(Clone, Debug, Hash)]
struct Side {
    connection: PeerConnection,
    incarnation: u32,
    pair: Option<Pair>,
    /// Queue pairs made so far. Their numbers are never used twice.
    made: u8,
    /// True if the queue pair may be posted to.
    open: bool,
    quiescing: bool,
    /// Messages of the user: still to come, waiting, sent, and posted but not arrived.
    future: u8,
    waiting: u8,
    sent: u8,
    flying: u8,
    heard: u8,
    evicts: u8,
    restarts: u8,
    shortages: u8,
    started: bool,
    unbound: bool,
    greeting: Greeting,
    /// True once this side was notified that all its messages failed.
    failed: bool,
}

/// State of the greeting that a side posted when it bound its queue pair.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Greeting {
    None,
    InFlight,
    /// The greeting has arrived, and the acknowledgment is in flight.
    Heard,
    /// The greeting was acknowledged, and there is another one.
    Again,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Pair {
    number: u8,
    bound: Option<u8>,
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let side = |me: usize| Side {
            connection: PeerConnection::new(rank(1 - me)),
            incarnation: 1,
            pair: None,
            made: 0,
            open: false,
            quiescing: false,
            future: scenario.sends[me],
            waiting: 0,
            sent: 0,
            flying: 0,
            heard: 0,
            evicts: scenario.evicts[me],
            restarts: scenario.restarts[me],
            shortages: scenario.shortages[me],
            started: !scenario.bound,
            unbound: scenario.unbound[me],
            greeting: Greeting::None,
            failed: false,
        };
        Self {
            sides: [side(0), side(1)],
            net: Vec::new(),
            faults: scenario.faults,
            patient: scenario.patient,
        }
    }

    /// Returns every state that can come next.
    fn successors(&self, step: Step) -> Result<Vec<Self>, String> {
        let mut next = Vec::new();
        self.move_datagrams(step, &mut next)?;
        for me in 0..2 {
            if !self.sides[me].started {
                next.push(self.start(me, step)?);
                continue;
            }
            self.move_greeting(me, step, &mut next)?;
            self.move_data(me, step, &mut next)?;
            self.move_user(me, step, &mut next)?;
            self.move_timer(me, step, &mut next)?;
        }
        Ok(next)
    }

    fn move_datagrams(&self, step: Step, next: &mut Vec<Self>) -> Result<(), String> {
        for at in 0..self.net.len() {
            if at > 0 && self.net[at] == self.net[at - 1] {
                continue;
            }
            let mut arrived = self.clone();
            let datagram = arrived.net.remove(at);
            let heard = self.sides[datagram.to].started;
            if self.faults > 0 {
                let faults = self.faults - 1;
                next.push(Self {
                    faults,
                    ..arrived.clone()
                });
                let mut doubled = self.clone();
                doubled.net.insert(at, datagram.clone());
                next.push(Self { faults, ..doubled });
            }
            if !heard {
                continue; // it waits until the side has started
            }
            let event = ConnectEvent::Message(datagram.message);
            arrived.tell(datagram.to, event, datagram.lane, step)?;
            next.push(arrived);
        }
        Ok(())
    }

    /// Starts a side. It binds the queue pair that the other knows and greets it, or cannot and asks.
    fn start(&self, me: usize, step: Step) -> Result<Self, String> {
        let mut world = self.clone();
        let side = &mut world.sides[me];
        side.started = true;
        if side.unbound {
            side.connection = PeerConnection::unbound(rank(1 - me), 1);
            world.tell(me, ConnectEvent::Connect, 0, step)?;
            return Ok(world);
        }
        side.connection = PeerConnection::bound(rank(1 - me), 1);
        side.made = 1;
        side.pair = Some(Pair {
            number: 1,
            bound: Some(1),
        });
        side.greeting = Greeting::InFlight;
        Ok(world)
    }

    /// Moves a greeting. A queue pair that is bound takes and acknowledges it. The device gives up a greeting that was not taken,
    /// or whose receiver does not exist any more.
    fn move_greeting(&self, me: usize, step: Step, next: &mut Vec<Self>) -> Result<(), String> {
        let greeting = self.sides[me].greeting;
        if greeting == Greeting::InFlight && self.joined(me) {
            let mut world = self.clone();
            world.sides[me].greeting = Greeting::Heard;
            world.tell(1 - me, ConnectEvent::GreetingArrived, 0, step)?;
            next.push(world);
        }
        if greeting == Greeting::Heard || greeting == Greeting::Again && self.joined(me) {
            let mut world = self.clone();
            world.sides[me].greeting = Greeting::None;
            world.tell(me, ConnectEvent::GreetingAcked, 0, step)?;
            next.push(world);
        }
        let taken = matches!(greeting, Greeting::Heard | Greeting::Again) && self.joined(me);
        if greeting != Greeting::None && !taken && !self.patient {
            let mut world = self.clone();
            world.sides[me].greeting = Greeting::None;
            world.tell(me, ConnectEvent::Broken, 0, step)?;
            next.push(world);
        }
        Ok(())
    }

    /// Delivers posted data. If nothing is in flight, notifies a side that waits for that.
    fn move_data(&self, me: usize, step: Step, next: &mut Vec<Self>) -> Result<(), String> {
        let side = &self.sides[me];
        if side.flying > 0 {
            let mut world = self.clone();
            if world.joined(me) {
                world.sides[me].flying -= 1;
                world.sides[1 - me].heard += 1;
                world.tell(1 - me, ConnectEvent::Data, 0, step)?;
            } else if world.sides[1 - me].incarnation > 1 || world.sides[1 - me].failed {
                world.tell(me, ConnectEvent::Broken, 0, step)?;
            } else {
                return Err(format!(
                    "data into a queue pair that does not exist: {self:?}"
                ));
            }
            next.push(world);
        } else if side.quiescing && side.greeting == Greeting::None {
            let mut world = self.clone();
            world.sides[me].quiescing = false;
            world.tell(me, ConnectEvent::Quiesced, 0, step)?;
            next.push(world);
        }
        Ok(())
    }

    fn move_user(&self, me: usize, step: Step, next: &mut Vec<Self>) -> Result<(), String> {
        let side = &self.sides[me];
        if side.future > 0 {
            let mut world = self.clone();
            world.sides[me].future -= 1;
            world.sides[me].waiting += 1;
            world.push(me, step)?;
            next.push(world);
        }
        if side.evicts > 0 && side.connection.state() == ConnectState::Ready {
            let mut world = self.clone();
            world.sides[me].evicts -= 1;
            world.tell(me, ConnectEvent::Evict, 0, step)?;
            next.push(world);
        }
        if side.restarts > 0 {
            let mut world = self.clone();
            world.restart(me);
            next.push(world);
        }
        Ok(())
    }

    fn move_timer(&self, me: usize, step: Step, next: &mut Vec<Self>) -> Result<(), String> {
        if self.sides[me].connection.next_timeout().is_some() {
            let mut world = self.clone();
            world.tell(me, ConnectEvent::Timeout, 0, step)?;
            next.push(world);
        }
        Ok(())
    }

    /// Starts a new process. The state of the old one is lost, and its user goes on with the messages that were still to come.
    fn restart(&mut self, me: usize) {
        let side = &mut self.sides[me];
        side.connection = PeerConnection::new(rank(1 - me));
        side.incarnation += 1;
        side.restarts -= 1;
        side.pair = None;
        side.greeting = Greeting::None;
        side.open = false;
        side.quiescing = false;
        side.waiting = 0;
        side.flying = 0;
        side.failed = false;
    }

    fn tell(&mut self, me: usize, event: ConnectEvent, lane: u8, step: Step) -> Result<(), String> {
        let local = ConnectConfig {
            end: RankIncarnation {
                rank: rank(me),
                incarnation: self.sides[me].incarnation,
            },
            limits: ConnectLimits::default(),
            seed: 0,
        };
        let mut actions = Vec::new();
        let mut cx = ConnectContext {
            local: &local,
            now: SOME_TIME,
            actions: &mut actions,
        };
        let connection = &mut self.sides[me].connection;
        step(connection, event, &mut cx);
        connection.forget_time();
        for action in actions {
            if action == ConnectAction::Create && self.sides[me].shortages > 0 {
                self.sides[me].shortages -= 1;
                self.tell(me, ConnectEvent::CreateFailed, 0, step)?;
                break;
            }
            self.perform(me, action, lane)?;
        }
        self.push(me, step)
    }

    fn perform(&mut self, me: usize, action: ConnectAction, lane: u8) -> Result<(), String> {
        let side = &mut self.sides[me];
        match action {
            ConnectAction::Create if side.pair.is_some() => {
                return Err(format!("side {me} makes a second queue pair: {self:?}"));
            }
            ConnectAction::Create => {
                side.made += 1;
                side.pair = Some(Pair {
                    number: side.made,
                    bound: None,
                });
            }
            ConnectAction::Bind => match &mut side.pair {
                Some(pair) if pair.bound.is_none() => pair.bound = Some(lane),
                pair => return Err(format!("side {me} binds {pair:?}")),
            },
            ConnectAction::Send(message) => self.send(me, message),
            ConnectAction::Greet if side.greeting == Greeting::None => {
                side.greeting = Greeting::Again
            }
            ConnectAction::Greet => {} // it follows the first
            ConnectAction::Open => side.open = true,
            ConnectAction::Quiesce => (side.open, side.quiescing) = (false, true),
            ConnectAction::Destroy if side.pair.is_none() => {
                return Err(format!(
                    "side {me} destroys a queue pair that does not exist: {self:?}"
                ));
            }
            ConnectAction::Destroy => {
                (side.pair, side.open, side.quiescing) = (None, false, false);
                side.greeting = Greeting::None;
            }
            ConnectAction::Fail(why) => {
                let legal = self.sides.iter().any(|side| side.incarnation > 1);
                if !legal || why == ConnectFailure::Unreachable {
                    return Err(format!("side {me} fails: {why:?}, {self:?}"));
                }
                let side = &mut self.sides[me];
                (side.waiting, side.flying, side.failed) = (0, 0, true);
            }
        }
        Ok(())
    }

    fn send(&mut self, me: usize, message: ConnectMessage) {
        let with_lane = matches!(message.kind, ConnectKind::Request | ConnectKind::Reply);
        let pair = self.sides[me].pair.map_or(0, |pair| pair.number);
        let datagram = Datagram {
            to: 1 - me,
            message,
            lane: if with_lane { pair } else { 0 },
        };
        if let Err(at) = self.net.binary_search(&datagram) {
            self.net.insert(at, datagram);
        }
    }

    /// Posts the messages that wait, or asks for a connection.
    fn push(&mut self, me: usize, step: Step) -> Result<(), String> {
        let side = &mut self.sides[me];
        if side.waiting == 0 {
            return Ok(());
        }
        if side.open {
            side.flying += side.waiting;
            side.sent += side.waiting;
            side.waiting = 0;
        } else if matches!(
            side.connection.state(),
            ConnectState::Idle | ConnectState::Failed
        ) {
            self.tell(me, ConnectEvent::Connect, 0, step)?;
        }
        Ok(())
    }

    /// Returns true if both queue pairs exist and are bound to each other.
    fn joined(&self, me: usize) -> bool {
        let [ours, theirs] = [self.sides[me].pair, self.sides[1 - me].pair];
        ours.zip(theirs).is_some_and(|(ours, theirs)| {
            ours.bound == Some(theirs.number) && theirs.bound == Some(ours.number)
        })
    }

    /// Checks a state without anything left to do: there is one connection or none, and no message is missing.
    fn check_end(&self) -> Result<(), String> {
        let states = [0, 1].map(|me| self.sides[me].connection.state());
        let restarted = self.sides.iter().any(|side| side.incarnation > 1);
        let none = self.sides.iter().all(|side| side.pair.is_none());
        let attempts = [0, 1].map(|me| self.sides[me].connection.attempt);
        let whole = match states {
            [ConnectState::Ready, ConnectState::Ready] => {
                self.joined(0) && attempts[0] == attempts[1]
            }
            [ConnectState::Idle, ConnectState::Idle] => none,
            // A process that died has notified no peer. A peer that had nothing to send has not noticed.
            _ => restarted,
        };
        let heard = (0..2).all(|me| self.sides[me].sent == self.sides[1 - me].heard);
        let waiting = self.sides.iter().any(|side| side.waiting > 0);
        if whole && (heard || restarted) && !waiting {
            Ok(())
        } else {
            Err(format!("it ends as {self:?}"))
        }
    }
}

impl PeerConnection {
    /// Removes times from the state. States that differ only in times and tries behave the same until the tries are used up,
    /// which does not happen in any scenario.
    fn forget_time(&mut self) {
        if self.deadline != NEVER {
            self.deadline = SOME_TIME;
        }
        self.tries = self.tries.min(1);
    }
}

fn rank(me: usize) -> WorldRank {
    WorldRank(u32::try_from(me).expect("0 or 1"))
}

/// Time of every event: all timers are always due.
const SOME_TIME: u64 = 1;
